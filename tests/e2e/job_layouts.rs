//! `--job` in cgroups with the layout of each scheduler, which need not be installed.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    procfs::Reading,
    runs::{ProcessGroup, Profiler, wait_until},
    workload_driver::WorkloadDriver,
};
use tempfile::TempDir;

use crate::WORKLOAD;

/// A cgroup hierarchy mounted for the test.
pub struct Tree {
    mount: TempDir,
    made: Vec<PathBuf>,
}

impl Tree {
    /// Mounts a v2 hierarchy, or a v1 hierarchy without controllers.
    pub fn mounted(version: u32) -> Self {
        let mount = TempDir::new().expect("a directory");
        let v1: &[&str] = &["-t", "cgroup", "-o", "none,name=e2e-jobs"];
        let kind = if version == 1 { v1 } else { &["-t", "cgroup2"] };
        let status = Command::new("mount")
            .args(kind)
            .arg("none")
            .arg(mount.path())
            .status();
        assert!(status.expect("mount").success());
        Self {
            mount,
            made: Vec::new(),
        }
    }

    /// The mount point of the hierarchy.
    pub fn root(&self) -> &Path {
        self.mount.path()
    }

    /// Creates a cgroup and its parents.
    pub fn make(&mut self, path: &str) -> PathBuf {
        let mut directory = self.mount.path().to_owned();
        for part in Path::new(path.trim_start_matches('/')) {
            directory.push(part);
            if !directory.exists() {
                fs::create_dir(&directory).expect("a group");
                self.made.push(directory.clone());
            }
        }
        directory
    }

    /// Removes the cgroups, which stay busy for a moment after their last member has ended.
    pub fn clear(&mut self) {
        while let Some(directory) = self.made.pop() {
            wait_until("the group is empty", || {
                fs::remove_dir(&directory).is_ok() || !directory.exists()
            });
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.clear();
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.mount.path())
            .status();
    }
}

pub fn put(workload: &WorkloadDriver, group: &Path) {
    fs::write(group.join("cgroup.procs"), workload.pid().to_string()).expect("it moves");
}

pub fn oncpu(workload: &WorkloadDriver) -> u64 {
    Reading::now(workload.pid()).sum(|thread| thread.oncpu_ns)
}

/// Size of all files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        data => data.map_or(0, |data| data.len()),
    });
    bytes.sum()
}

/// A profiler that finds no commands of a scheduler, even if one is installed.
pub fn profiler() -> Profiler {
    Profiler::new()
        .args(["-i", "100ms"])
        .env("PATH", "/nowhere")
}

/// A job with two processes, the second of which is a task of a step.
struct Layout<'a> {
    version: u32,
    scheduler: &'a str,
    /// The job id that users know.
    id: &'a str,
    /// Cgroups of the two processes.
    groups: [&'a str; 2],
    /// Cgroup of another job with a similar name.
    similar: &'a str,
    /// Expected values of the columns.
    job: &'a str,
    steps: [Option<&'a str>; 2],
    /// Environment and expected rank of the second process.
    variables: &'a [(&'a str, &'a str)],
    rank: Option<u32>,
    /// Title of slurmstepd in the first cgroup, if the name of the cgroup does not contain the job
    /// id.
    title: Option<&'a str>,
}

/// Starts a slurmstepd of root with a title.
pub fn slurmstepd(title: &str, directory: &Path) -> ProcessGroup {
    let program = directory.join("slurmstepd");
    fs::copy("/bin/sleep", &program).expect("a copy");
    ProcessGroup::start(Command::new(program).arg0(title).arg("600"))
}

impl Layout<'_> {
    /// Asserts that both processes and a third one that joins are followed, and neither a process
    /// outside nor the job with a similar name, and that the run ends with the job.
    #[track_caller]
    fn check(&self) {
        let mut tree = Tree::mounted(self.version);
        let groups = self.groups.map(|group| tree.make(group));
        let similar = tree.make(self.similar);
        let mut first = WorkloadDriver::new(WORKLOAD, 1);
        let mut task = WorkloadDriver::with_env(WORKLOAD, 1, self.variables);
        let mut comes = WorkloadDriver::new(WORKLOAD, 1);
        let outsider = WorkloadDriver::new(WORKLOAD, 1);
        put(&first, &groups[0]);
        put(&task, &groups[1]);
        put(&outsider, &similar);
        let directory = TempDir::new().expect("a directory");
        let daemon = self.title.map(|title| slurmstepd(title, directory.path()));
        if let Some(daemon) = &daemon {
            crate::cgroup::put(daemon.pid(), &groups[0]);
        }
        let before = [oncpu(&first), oncpu(&task)];
        let mut running = profiler().args(["--job", self.id]).start();
        first.run("burn 100");
        task.run("burn 100");
        let before_write = bytes_below(&running.run_dir().join("process"));
        put(&comes, &groups[1]);
        comes.run("burn 50");
        let after = [oncpu(&first), oncpu(&task)];
        wait_until("the third process is recorded", || {
            bytes_below(&running.run_dir().join("process")) > before_write
        });
        let pids = [first.pid(), task.pid(), comes.pid()];
        assert!(!running.has_ended(), "{}", running.stderr());
        drop((first, task, comes, daemon));
        let finished = running.finish();
        let data = finished.dataset();
        data.assert_complete();
        let target = data.manifest()["target"]["job"].clone();
        assert_eq!(target["found_by"], "cgroup", "{target}");
        assert_eq!(target["scheduler"], self.scheduler, "{target}");

        let mut rows: Vec<(u32, String, Option<String>, Option<u32>)> = data.rows(
            "SELECT pid, job_id, step_id, task_rank FROM process \
                 WHERE comm <> 'slurmstepd' AND job_source = 'cgroup'",
        );
        rows.sort_by_key(|row| pids.iter().position(|pid| *pid == row.0));
        let step = |at: usize| self.steps[at].map(str::to_owned);
        let job = self.job.to_owned();
        assert_eq!(
            rows,
            [
                (pids[0], job.clone(), step(0), None),
                (pids[1], job.clone(), step(1), self.rank),
                (pids[2], job, step(1), None),
            ]
        );
        for at in 0..2 {
            let counted: u64 = data.value(&format!(
                "SELECT sum(oncpu_ns) FROM sched WHERE pid = {}",
                pids[at]
            ));
            let more = counted
                .checked_sub(after[at] - before[at])
                .expect("no less");
            assert!(
                more < 20_000_000 + data.stolen_ns(),
                "{counted}, not {}",
                after[at] - before[at]
            );
        }
        drop(outsider);
    }
}

#[test]
fn slurm_with_cgroup_v1() {
    Layout {
        version: 1,
        scheduler: "slurm",
        id: "4000001",
        groups: [
            "slurm_node-1/uid_0/job_4000001/step_batch",
            "slurm_node-1/uid_0/job_4000001/step_3/task_1",
        ],
        similar: "slurm_node-1/uid_0/job_40000011/step_batch",
        job: "4000001",
        steps: [Some("batch"), Some("3")],
        variables: &[
            ("SLURM_JOB_ID", "4000001"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_PROCID", "7"),
        ],
        rank: Some(7),
        title: None,
    }
    .check();
}

#[test]
fn slurm_with_cgroup_v2() {
    Layout {
        version: 2,
        scheduler: "slurm",
        id: "4000002",
        groups: [
            "system.slice/n1_slurmstepd.scope/job_4000002/step_extern/user/task_special",
            "system.slice/n1_slurmstepd.scope/job_4000002/step_0/user/task_0",
        ],
        similar: "system.slice/n1_slurmstepd.scope/job_400000/step_0/user/task_0",
        job: "4000002",
        steps: [Some("extern"), Some("0")],
        // The rank of mpirun within the task of Slurm.
        variables: &[
            ("SLURM_JOB_ID", "4000002"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("OMPI_COMM_WORLD_RANK", "5"),
        ],
        rank: Some(5),
        title: None,
    }
    .check();
}

/// The name of the directory is not the job id; the processes' environments contain it.
#[test]
fn slurm_with_sluids() {
    Layout {
        version: 2,
        scheduler: "slurm",
        id: "4000003",
        groups: [
            "system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_1",
            "system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
        ],
        similar: "system.slice/slurmstepd.scope/s5K1KKYAYG5D01/step_0/user/task_0",
        job: "4000003",
        steps: [Some("0"), Some("0")],
        variables: &[("SLURM_JOB_ID", "4000003"), ("PMIX_RANK", "0")],
        rank: Some(0),
        title: Some("slurmstepd: [4000003.0]"),
    }
    .check();
}

#[test]
fn pbs_with_cgroup_v1() {
    Layout {
        version: 1,
        scheduler: "pbs",
        id: "4000004",
        groups: [
            "pbspro.service/jobid/4000004.server",
            "pbspro.service/jobid/4000004.server/below",
        ],
        similar: "pbspro.service/jobid/40000041.server",
        job: "4000004.server",
        steps: [None, None],
        variables: &[("PBS_JOBID", "4000004.server"), ("PALS_RANKID", "2")],
        rank: Some(2),
        title: None,
    }
    .check();
}

#[test]
fn pbs_with_cgroup_v2() {
    Layout {
        version: 2,
        scheduler: "pbs",
        id: "4000005.server",
        groups: [
            "pbs_jobs.service/jobs/4000005.server",
            "pbs_jobs.service/jobs/4000005.server/below",
        ],
        similar: "pbs_jobs.service/jobs/4000005.other",
        job: "4000005.server",
        steps: [None, None],
        variables: &[("PMI_RANK", "1")],
        rank: Some(1),
        title: None,
    }
    .check();
}

#[test]
fn oar_with_cpusets() {
    Layout {
        version: 1,
        scheduler: "oar",
        id: "4000006",
        groups: ["oar/some_body_4000006", "oar/some_body_4000006/below"],
        similar: "oar/some_4000006_1",
        job: "4000006",
        steps: [None, None],
        variables: &[("OAR_JOB_ID", "4000006")],
        rank: None,
        title: None,
    }
    .check();
}

#[test]
fn oar_with_slices() {
    Layout {
        version: 2,
        scheduler: "oar",
        id: "4000007",
        groups: [
            "oar.slice/oar-u1000.slice/oar-u1000-j4000007.slice",
            "oar.slice/oar-u1000.slice/oar-u1000-j4000007.slice/oar-u1000-j4000007-s12.scope",
        ],
        similar: "oar.slice/oar-u1000.slice/oar-u1000-j40000071.slice",
        job: "4000007",
        steps: [None, None],
        variables: &[("OAR_JOB_ID", "4000007"), ("MV2_COMM_WORLD_RANK", "4")],
        rank: Some(4),
        title: None,
    }
    .check();
}

#[test]
fn flux() {
    Layout {
        version: 2,
        scheduler: "flux",
        id: "ƒ2RtKLfMbN",
        groups: [
            "user.slice/user@500.service/shell-0-f2RtKLfMbN.service",
            "user.slice/user@500.service/shell-0-f2RtKLfMbN.service/below",
        ],
        similar: "user.slice/user@500.service/shell-0-f2RtKLfMbNa.service",
        job: "f2RtKLfMbN",
        steps: [None, None],
        variables: &[("FLUX_JOB_ID", "ƒ2RtKLfMbN"), ("FLUX_TASK_RANK", "3")],
        rank: Some(3),
        title: None,
    }
    .check();
}

#[test]
fn systemd_scope() {
    Layout {
        version: 2,
        scheduler: "none",
        id: "run-r0123456789abcdef.scope",
        groups: [
            "user.slice/run-r0123456789abcdef.scope",
            "user.slice/run-r0123456789abcdef.scope/below",
        ],
        similar: "user.slice/run-r0123456789abcde.scope",
        job: "run-r0123456789abcdef.scope",
        steps: [None, None],
        variables: &[],
        rank: None,
        title: None,
    }
    .check();
}

#[test]
fn systemd_service() {
    Layout {
        version: 2,
        scheduler: "none",
        id: "e2e-solver",
        groups: [
            "system.slice/e2e-solver.service",
            "system.slice/e2e-solver.service/below",
        ],
        similar: "system.slice/e2e-solver2.service",
        job: "e2e-solver",
        steps: [None, None],
        variables: &[],
        rank: None,
        title: None,
    }
    .check();
}
