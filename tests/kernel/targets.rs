//! Kinds of targets. Constants are folded, so that each kind has its own BPF programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use e2e::{
    procfs::Reading,
    rows::{Row, sum},
    runs::{Finished, Profiler, wait_until},
    workload_driver::WorkloadDriver,
};

use crate::WORKLOAD;

/// Profiles naps; asserts that exactly their time is recorded.
#[track_caller]
fn assert_naps_recorded(profiler: Profiler, workload: &mut WorkloadDriver) -> Finished {
    let before = Reading::now(workload.pid());
    let running = profiler.args(["-i", "1s"]).start();
    workload.run("nap 50");
    let finished = running.interrupt();
    let after = Reading::now(workload.pid());
    let rows = of(finished.dataset().table("sched"), workload.pid());
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
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let finished = assert_naps_recorded(Profiler::new().args(["--node"]), &mut workload);
    let rows = finished.dataset().table("process");
    assert_eq!(of(rows, std::process::id()).len(), 1, "the test itself");
}

#[test]
fn threads() {
    let mut workload = WorkloadDriver::new(WORKLOAD, 2);
    let profiler = Profiler::new().args(["--threads"]).pid(workload.pid());
    let finished = assert_naps_recorded(profiler, &mut workload);
    let rows = of(finished.dataset().table("sched"), workload.pid());
    assert!(rows.iter().any(|row| row.u64("tid").is_some()));
}

/// A cgroup in the mounted v2 hierarchy.
pub struct Group(pub PathBuf);

impl Group {
    pub fn new() -> Self {
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

    pub fn add(&self, pid: u32) {
        Self::put(pid, &self.0);
    }

    /// Moves a process to the root.
    pub fn remove(&self, pid: u32) {
        Self::put(pid, self.0.parent().expect("below the root"));
    }

    fn put(pid: u32, group: &Path) {
        fs::write(group.join("cgroup.procs"), pid.to_string()).expect("it moves");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A cgroup stays busy for a moment after its last member has ended.
        wait_until("the group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn cgroup() {
    let group = Group::new();
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    let joining = WorkloadDriver::new(WORKLOAD, 0);
    let outsider = WorkloadDriver::new(WORKLOAD, 0);
    group.add(workload.pid());
    let profiler = Profiler::new().args(["--cgroup"]).args([&group.0]);
    let before = Reading::now(workload.pid());
    let running = profiler.args(["-i", "1s"]).start();
    group.add(joining.pid());
    workload.run("nap 50");
    let finished = running.interrupt();
    let after = Reading::now(workload.pid());
    let truth = after.sum(|thread| thread.oncpu_ns) - before.sum(|thread| thread.oncpu_ns);
    let rows = of(finished.dataset().table("sched"), workload.pid());
    assert_eq!(sum(&rows, "oncpu_ns"), truth);
    let rows = finished.dataset().table("process");
    let known = |workload: &WorkloadDriver| {
        rows.iter()
            .any(|row| row.u64("pid") == Some(workload.pid().into()))
    };
    assert_eq!(
        [&workload, &joining, &outsider].map(known),
        [true, true, false]
    );
    drop((workload, joining));
}

#[test]
fn command_in_its_own_pid_namespace() {
    let wrapper = ["unshare", "--pid", "--fork", "--mount-proc"];
    let script = "i=0; while [ $i -lt 20 ]; do (exit 5); i=$((i+1)); done; exit 0";
    let finished = Profiler::wrapped_in(&wrapper)
        .command(&["sh", "-c", script])
        .finish();
    let rows = finished.dataset().table("process");
    let ends = rows.iter().filter(|row| row.i64("exit_code") == Some(5));
    assert_eq!(ends.count(), 20);
    let highest = rows.iter().filter_map(|row| row.u64("pid")).max();
    assert!(highest < Some(60), "pids of another namespace: {rows:?}");
}
