//! What is profiled: for each kind of target the kernel sees other programs, because constants are folded.

use std::{fs, path::PathBuf};

use e2e::{
    procfs::Reading,
    puppet::Puppet,
    rows::{Row, sum},
    runs::{Finished, Profiler, wait_until},
};

use crate::WORKLOAD;

/// Naps under the profiler, which has to have seen that, and that only.
#[track_caller]
fn naps_are_seen(profiler: Profiler, puppet: &mut Puppet) -> Finished {
    let before = Reading::now(puppet.pid());
    let running = profiler.args(["-i", "1s"]).start();
    puppet.tell("nap 50");
    let finished = running.interrupt();
    let after = Reading::now(puppet.pid());
    let rows = of(finished.dataset().table("sched"), puppet.pid());
    let (whole, threads): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.u64("tid").is_none());
    let truth = after.sum(|thread| thread.oncpu_ns) - before.sum(|thread| thread.oncpu_ns);
    assert_eq!(sum(&whole, "oncpu_ns"), truth);
    if !threads.is_empty() {
        assert_eq!(sum(&threads, "oncpu_ns"), truth);
    }
    finished
}

fn of(mut rows: Vec<Row>, pid: u32) -> Vec<Row> {
    rows.retain(|row| row.u64("pid") == Some(pid.into()));
    rows
}

#[test]
fn node() {
    let mut puppet = Puppet::new(WORKLOAD, 0);
    let finished = naps_are_seen(Profiler::new().args(["--node"]), &mut puppet);
    let rows = finished.dataset().table("process");
    assert_eq!(of(rows, std::process::id()).len(), 1, "the test itself");
}

#[test]
fn threads() {
    let mut puppet = Puppet::new(WORKLOAD, 2);
    let profiler = Profiler::new().args(["--threads"]).pid(puppet.pid());
    let finished = naps_are_seen(profiler, &mut puppet);
    let rows = of(finished.dataset().table("sched"), puppet.pid());
    assert!(rows.iter().any(|row| row.u64("tid").is_some()));
}

/// A group of cgroup v2, which this kernel is expected to have mounted.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc");
        let mut mounts = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|fields| fields[2] == "cgroup2");
        let root = PathBuf::from(mount.expect("cgroup2 is mounted")[1]);
        let group = root.join(format!("profiler-test-{}", std::process::id()));
        fs::create_dir(&group).expect("a group");
        Self(group)
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it moves");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group stays busy for a moment after its last member.
        wait_until("the group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn cgroup() {
    let group = Group::new();
    let mut puppet = Puppet::new(WORKLOAD, 0);
    let comes = Puppet::new(WORKLOAD, 0);
    let stranger = Puppet::new(WORKLOAD, 0);
    group.add(puppet.pid());
    let profiler = Profiler::new().args(["--cgroup"]).args([&group.0]);
    let before = Reading::now(puppet.pid());
    let running = profiler.args(["-i", "1s"]).start();
    group.add(comes.pid());
    puppet.tell("nap 50");
    let finished = running.interrupt();
    let after = Reading::now(puppet.pid());
    let truth = after.sum(|thread| thread.oncpu_ns) - before.sum(|thread| thread.oncpu_ns);
    let rows = of(finished.dataset().table("sched"), puppet.pid());
    assert_eq!(sum(&rows, "oncpu_ns"), truth);
    let rows = finished.dataset().table("process");
    let known = |puppet: &Puppet| {
        rows.iter()
            .any(|row| row.u64("pid") == Some(puppet.pid().into()))
    };
    assert_eq!([&puppet, &comes, &stranger].map(known), [true, true, false]);
    drop((puppet, comes));
}

#[test]
fn command_in_its_own_pid_namespace() {
    let wrapper = ["unshare", "--pid", "--fork", "--mount-proc"];
    let script = "i=0; while [ $i -lt 20 ]; do (exit 5); i=$((i+1)); done; exit 0";
    let finished = Profiler::within(&wrapper)
        .command(&["sh", "-c", script])
        .finish();
    let rows = finished.dataset().table("process");
    let ends = rows.iter().filter(|row| row.i64("exit_code") == Some(5));
    assert_eq!(ends.count(), 20);
    let highest = rows.iter().filter_map(|row| row.u64("pid")).max();
    assert!(highest < Some(60), "pids of another namespace: {rows:?}");
}
