//! The assumptions of the other tests about the system.

use std::{fs, path::Path};

use rustix::fs::statfs;

/// `CGROUP2_SUPER_MAGIC`.
const CGROUP2: i64 = 0x6367_7270;

#[test]
fn systemd_is_pid_1_and_cgroups_are_v2_only() {
    let comm = fs::read_to_string("/proc/1/comm").expect("a process");
    assert_eq!(comm, "systemd\n");
    let found = statfs("/sys/fs/cgroup").expect("mounted");
    assert_eq!(found.f_type, CGROUP2);
    assert!(Path::new("/proc/pressure/io").exists(), "no PSI");
}
