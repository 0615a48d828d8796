//! CPUs and memory that processes may use: affinity, and limits of cgroups of version 1. Those of
//! version 2 are tested in the complete system.

use std::{fs, path::PathBuf};

use e2e::runs::{Profiler, wait_until};

use crate::cgroup::Group;

const MEMORY: u64 = 64 << 20;

/// Cgroups with a memory limit, and with a third of a CPU: directories that a process enters.
struct Limits([Group; 2]);

impl Limits {
    fn new() -> Self {
        let groups = ["memory", "cpu"].map(|name| Group::new(&["-t", "cgroup", "-o", name]));
        let [memory, cpu] = &groups;
        let write = |group: &Group, name: &str, value: u64| {
            fs::write(group.outer().join(name), value.to_string()).expect(name);
        };
        write(memory, "memory.limit_in_bytes", MEMORY);
        write(cpu, "cpu.cfs_period_us", 90_000);
        write(cpu, "cpu.cfs_quota_us", 30_000);
        Self(groups)
    }

    /// The cgroups below those with the limits.
    fn inner(&self) -> [PathBuf; 2] {
        [0, 1].map(|index| self.0[index].outer().join("inner"))
    }
}

#[test]
fn affinity_and_limits_of_each_process() {
    let limits = Limits::new();
    let [memory, cpu] = limits.inner();
    // A process before it is moved, one after it, and one with an affinity of its own.
    let script = format!(
        "sleep 0.31 & echo $$ > {}/cgroup.procs; echo $$ > {}/cgroup.procs; sleep 0.32; \
         taskset -c 1 sleep 0.33; wait",
        memory.display(),
        cpu.display()
    );
    let finished = Profiler::new()
        .args(["-i", "100ms"])
        .command(&["taskset", "-c", "0,1", "sh", "-c", &script])
        .finish();
    assert_eq!(finished.code(), 0);
    let data = finished.dataset();
    let of = |seconds: &str| -> (String, Option<f64>, Option<u64>) {
        data.row(&format!(
            "SELECT allowed_cpus, quota_cpus, memory_limit FROM process WHERE argv[2] = '{seconds}'"
        ))
    };
    let before = of("0.31");
    assert_eq!(before.0, "0-1");
    assert_ne!(before.2, Some(MEMORY));
    assert_eq!(
        of("0.32"),
        ("0-1".to_owned(), Some(1.0 / 3.0), Some(MEMORY))
    );
    assert_eq!(of("0.33"), ("1".to_owned(), Some(1.0 / 3.0), Some(MEMORY)));
    // The cgroups are empty, so that they can be removed.
    wait_until("the processes have ended", || {
        let members = |group: &PathBuf| fs::read_to_string(group.join("cgroup.procs"));
        [&memory, &cpu]
            .iter()
            .all(|group| members(group).is_ok_and(|pids| pids.is_empty()))
    });
}
