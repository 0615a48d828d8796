//! `--cgroup`: members, those of groups below, who comes and who goes; v1 and v2.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    procfs::Reading,
    puppet::Puppet,
    runs::{Profiler, wait_until},
};

use crate::WORKLOAD;

/// A group in a hierarchy that is mounted for the test, and one below it.
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
        // A group stays busy for a moment after its last member.
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

/// All puppets rest whenever something is read or moved, so that the sums are exact.
fn members_are_followed(kind: &[&str]) {
    let group = Group::new(kind);
    let mut outer = Puppet::new(WORKLOAD, 1);
    let mut inner = Puppet::new(WORKLOAD, 1);
    let mut leaves = Puppet::new(WORKLOAD, 1);
    let mut comes = Puppet::new(WORKLOAD, 1);
    let mut stranger = Puppet::new(WORKLOAD, 1);
    put(outer.pid(), &group.outer);
    put(leaves.pid(), &group.outer);
    put(inner.pid(), &group.inner);
    comes.tell("burn 50");
    let oncpu = |puppet: &Puppet| Reading::now(puppet.pid()).sum(|thread| thread.oncpu_ns);
    let start = [&outer, &inner, &leaves, &comes].map(oncpu);

    let profiler = Profiler::new()
        .args(["-i", "100ms", "--cgroup"])
        .args([&group.outer])
        .start();
    for puppet in [&mut outer, &mut inner, &mut leaves, &mut stranger] {
        puppet.tell("burn 150");
    }
    put(leaves.pid(), group.root());
    put(comes.pid(), &group.inner);
    let left = oncpu(&leaves);
    for puppet in [&mut leaves, &mut comes] {
        puppet.tell("burn 150");
    }
    let end = [oncpu(&outer), oncpu(&inner), left, oncpu(&comes)];
    let pids = [&outer, &inner, &leaves, &comes].map(Puppet::pid);
    drop((outer, inner, comes));
    // The last member has ended; who left does not count.
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
            // The others also spend some time on their end, which no file tells.
            let more = counted.checked_sub(truth).expect(name);
            assert!(
                more < 20_000_000,
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
