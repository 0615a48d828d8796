//! `--cgroup`: members of the cgroup and of cgroups below it, joining and leaving processes; v1 and
//! v2.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    procfs::Reading,
    runs::{Profiler, wait_until},
    workload_driver::WorkloadDriver,
};

use crate::WORKLOAD;

/// A cgroup and one below it, in a hierarchy mounted for the test.
pub struct Group {
    mount: tempfile::TempDir,
    outer: PathBuf,
    inner: PathBuf,
}

impl Group {
    pub fn new(kind: &[&str]) -> Self {
        let mount = tempfile::TempDir::new().expect("a directory");
        let mounted = Command::new("mount")
            .args(kind)
            .arg("none")
            .arg(mount.path())
            .status();
        assert!(mounted.expect("mount").success());
        let outer = mount.path().join(format!("e2e-{}", std::process::id()));
        let inner = outer.join("inner");
        fs::create_dir_all(&inner).expect("groups");
        Self {
            mount,
            outer,
            inner,
        }
    }

    pub fn outer(&self) -> &Path {
        &self.outer
    }

    fn root(&self) -> &Path {
        self.mount.path()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A cgroup stays busy for a moment after its last member has ended.
        for group in [&self.inner, &self.outer] {
            wait_until("the group is empty", || {
                fs::remove_dir(group).is_ok() || !group.exists()
            });
        }
        let _ = Command::new("umount").arg("-l").arg(self.root()).status();
    }
}

pub fn put(pid: u32, group: &Path) {
    fs::write(group.join("cgroup.procs"), pid.to_string()).expect("it moves");
}

/// All workloads are idle whenever counters are read or processes are moved, so that the sums are
/// exact.
fn members_are_followed(kind: &[&str]) {
    let group = Group::new(kind);
    let mut outer = WorkloadDriver::new(WORKLOAD, 1);
    let mut inner = WorkloadDriver::new(WORKLOAD, 1);
    let mut leaves = WorkloadDriver::new(WORKLOAD, 1);
    let mut comes = WorkloadDriver::new(WORKLOAD, 1);
    let mut outsider = WorkloadDriver::new(WORKLOAD, 1);
    put(outer.pid(), &group.outer);
    put(leaves.pid(), &group.outer);
    put(inner.pid(), &group.inner);
    comes.run("burn 50");
    let oncpu =
        |workload: &WorkloadDriver| Reading::now(workload.pid()).sum(|thread| thread.oncpu_ns);
    let start = [&outer, &inner, &leaves, &comes].map(oncpu);

    let profiler = Profiler::new()
        .args(["-i", "100ms", "--cgroup"])
        .args([&group.outer])
        .start();
    for workload in [&mut outer, &mut inner, &mut leaves, &mut outsider] {
        workload.run("burn 150");
    }
    put(leaves.pid(), group.root());
    put(comes.pid(), &group.inner);
    let left = oncpu(&leaves);
    for workload in [&mut leaves, &mut comes] {
        workload.run("burn 150");
    }
    let end = [oncpu(&outer), oncpu(&inner), left, oncpu(&comes)];
    let pids = [&outer, &inner, &leaves, &comes].map(WorkloadDriver::pid);
    drop((outer, inner, comes));
    // The last member has ended; processes that left the cgroup do not count.
    let finished = profiler.finish();
    let data = finished.dataset();
    data.assert_complete();

    let rows: Vec<(u32,)> = data.rows("SELECT pid FROM process");
    let found: BTreeSet<u32> = rows.into_iter().map(|row| row.0).collect();
    assert_eq!(found, BTreeSet::from(pids), "{kind:?}");
    for (index, name) in ["outer", "inner", "leaves", "comes"]
        .into_iter()
        .enumerate()
    {
        let pid = pids[index];
        let counted: u64 = data.value(&format!(
            "SELECT sum(oncpu_ns) FROM sched WHERE pid = {pid}"
        ));
        let truth = end[index] - start[index];
        if name == "leaves" {
            assert_eq!(counted, truth, "{kind:?}: {name}");
        } else {
            // The others also use CPU time while they exit, which `/proc` does not show.
            let more = counted.checked_sub(truth).expect(name);
            assert!(
                more < 20_000_000 + data.stolen_ns(),
                "{kind:?}: {name}: {counted}, not {truth}"
            );
        }
    }
}

#[test]
fn cgroup_v2_members_are_followed() {
    members_are_followed(&["-t", "cgroup2"]);
}

#[test]
fn cgroup_v1_members_are_followed() {
    members_are_followed(&["-t", "cgroup", "-o", "none,name=e2e"]);
}

#[test]
fn run_ends_when_the_empty_cgroup_is_removed() {
    let group = Group::new(&["-t", "cgroup2"]);
    let profiler = Profiler::new()
        .args(["-i", "100ms", "--cgroup"])
        .args([&group.outer])
        .start();
    fs::remove_dir(&group.inner).expect("it is empty");
    fs::remove_dir(&group.outer).expect("it is empty");
    profiler.finish().dataset().assert_complete();
}
