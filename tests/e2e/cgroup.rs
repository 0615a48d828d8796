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

/// Limits of processes in sibling cgroups, as a profiler in a cgroup namespace of the first one sees them.
fn limits_in_a_namespace(preparation: &str) -> [Option<u64>; 2] {
    let group = Group::new(&["-t", "cgroup", "-o", "memory"]);
    let [own, sibling] = ["own", "sibling"].map(|name| group.outer.join(name));
    let workloads = [(&own, LIMITS[0]), (&sibling, LIMITS[1])].map(|(directory, limit)| {
        fs::create_dir(directory).expect("a group");
        let file = directory.join("memory.limit_in_bytes");
        fs::write(file, limit.to_string()).expect("a limit");
        let workload = WorkloadDriver::new(WORKLOAD, 0);
        put(workload.pid(), directory);
        workload
    });
    let pids = workloads.each_ref().map(WorkloadDriver::pid);
    let script = format!(
        "echo $$ > $0/cgroup.procs && exec unshare --cgroup --mount sh -ec '{preparation}; exec \"$@\"' $1 \"$@\""
    );
    let mount = group.root().to_str().expect("UTF-8");
    let directory = own.to_str().expect("UTF-8");
    let finished = Profiler::wrapped_in(&["sh", "-c", &script, directory, mount])
        .args(["-i", "100ms", "--source", "process", "-d", "200ms"])
        .pid(pids[0])
        .pid(pids[1])
        .finish();
    let data = finished.dataset();
    let limits = pids.map(|pid| {
        data.value(&format!(
            "SELECT memory_limit FROM process WHERE pid = {pid}"
        ))
    });
    drop(workloads);
    for directory in [own, sibling] {
        wait_until("the group is empty", || fs::remove_dir(&directory).is_ok());
    }
    limits
}

/// Memory limits of the cgroups, bytes.
const LIMITS: [u64; 2] = [256 << 20, 512 << 20];

/// The hierarchy is mounted from its root, which is outside of the namespace (`/../..`).
#[test]
fn cgroups_outside_of_a_namespace_are_found() {
    let limits = limits_in_a_namespace("shift");
    assert_eq!(limits, LIMITS.map(Some));
}

/// As in a container: the mount begins at the root of the namespace.
#[test]
fn cgroups_outside_of_a_container_have_no_limits() {
    let limits = limits_in_a_namespace(
        "umount $1; shift; mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/memory; \
         mount -t cgroup -o memory none /sys/fs/cgroup/memory",
    );
    assert_eq!(limits, [Some(LIMITS[0]), None]);
}
