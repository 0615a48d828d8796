//! `--job` in cgroups that are laid out as schedulers lay them out, whether or not such a scheduler is at hand; and what is
//! done when there is no cgroup.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use e2e::{
    procfs::Reading,
    puppet::Puppet,
    runs::{Kept, Profiler, Running, wait_until},
};
use tempfile::TempDir;

use crate::WORKLOAD;

const USAGE: i32 = 2;
const TARGET: i32 = 3;

/// A hierarchy that is mounted for the test, with directories below it.
struct Tree {
    mount: TempDir,
    made: Vec<PathBuf>,
}

impl Tree {
    /// Version 2, or one of version 1 without controllers.
    fn mounted(version: u32) -> Self {
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

    fn make(&mut self, path: &str) -> PathBuf {
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

    /// Removes what was made; a group stays busy for a moment after its last member.
    fn clear(&mut self) {
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

fn put(puppet: &Puppet, group: &Path) {
    fs::write(group.join("cgroup.procs"), puppet.pid().to_string()).expect("it moves");
}

fn oncpu(puppet: &Puppet) -> u64 {
    Reading::now(puppet.pid()).sum(|thread| thread.oncpu_ns)
}

/// How much has been written of a table.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        data => data.map_or(0, |data| data.len()),
    });
    bytes.sum()
}

/// No scheduler is at hand, also where one is installed.
fn profiler() -> Profiler {
    Profiler::new()
        .args(["-i", "100ms"])
        .env("PATH", "/nowhere")
}

/// A job of two processes, of which one is a task of a step.
struct Layout<'a> {
    version: u32,
    scheduler: &'a str,
    /// As users call it.
    id: &'a str,
    /// Groups of the two.
    groups: [&'a str; 2],
    /// One of another job, with a similar name.
    similar: &'a str,
    /// What the columns are to say of the two.
    job: &'a str,
    steps: [Option<&'a str>; 2],
    /// Environment and rank of the second.
    variables: &'a [(&'a str, &'a str)],
    rank: Option<u32>,
    /// Title of slurmstepd, which runs beside the first where the group does not name the job.
    title: Option<&'a str>,
}

/// Root's slurmstepd, with a title.
fn slurmstepd(title: &str, directory: &Path) -> Kept {
    let program = directory.join("slurmstepd");
    fs::copy("/bin/sleep", &program).expect("a copy");
    Kept::start(Command::new(program).arg0(title).arg("60"))
}

impl Layout<'_> {
    /// Follows both and a third that comes, and neither a stranger nor a job with a similar name; ends with the job.
    #[track_caller]
    fn check(&self) {
        let mut tree = Tree::mounted(self.version);
        let groups = self.groups.map(|group| tree.make(group));
        let similar = tree.make(self.similar);
        let mut first = Puppet::new(WORKLOAD, 1);
        let mut task = Puppet::with(WORKLOAD, 1, self.variables);
        let mut comes = Puppet::new(WORKLOAD, 1);
        let stranger = Puppet::new(WORKLOAD, 1);
        put(&first, &groups[0]);
        put(&task, &groups[1]);
        put(&stranger, &similar);
        let directory = TempDir::new().expect("a directory");
        let daemon = self.title.map(|title| slurmstepd(title, directory.path()));
        if let Some(daemon) = &daemon {
            crate::cgroup::put(daemon.pid(), &groups[0]);
        }
        let before = [oncpu(&first), oncpu(&task)];
        let mut running = profiler().args(["--job", self.id]).start();
        first.tell("burn 100");
        task.tell("burn 100");
        let told = bytes_below(&running.run_dir().join("process"));
        put(&comes, &groups[1]);
        comes.tell("burn 50");
        let after = [oncpu(&first), oncpu(&task)];
        wait_until("it is known", || {
            bytes_below(&running.run_dir().join("process")) > told
        });
        let pids = [first.pid(), task.pid(), comes.pid()];
        assert!(!running.has_ended(), "{}", running.said());
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
                more < 20_000_000,
                "{counted}, not {}",
                after[at] - before[at]
            );
        }
        drop(stranger);
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
        // mpirun's rank within Slurm's task.
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

/// The directory does not tell the number of the job; its processes do.
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

fn of_environment(id: &str) -> [(String, String); 2] {
    [("SLURM_JOB_ID", id), ("SLURM_PROCID", "0")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

fn puppet_of(id: &str) -> Puppet {
    let variables = of_environment(id);
    let variables = variables
        .each_ref()
        .map(|(name, value)| (&name[..], &value[..]));
    Puppet::with(WORKLOAD, 1, &variables)
}

/// Two processes that only their environment names; the second comes later.
#[track_caller]
fn followed_by_environment(mut running: Running, id: &str, first: Puppet) {
    let note = "environment names it;";
    let mut second = puppet_of(id);
    let pids = [first.pid(), second.pid()];
    // It is looked for every second.
    let begin = Instant::now();
    while begin.elapsed().as_millis() < 1500 {
        second.tell("burn 20");
    }
    let start = oncpu(&second);
    second.tell("burn 200");
    let life = oncpu(&second);
    let truth = life - start;
    assert!(!running.has_ended(), "{}", running.said());
    drop((first, second));
    let finished = running.finish();
    assert_eq!(
        finished.stderr.matches(note).count(),
        1,
        "{}",
        finished.stderr
    );
    let data = finished.dataset();
    data.assert_complete();
    let target = data.manifest()["target"]["job"].clone();
    assert_eq!(target["found_by"], "environment", "{target}");
    let rows: Vec<(u32, String, String, u32)> = data.rows(
        "SELECT pid, job_id, step_id, task_rank FROM process WHERE job_source = 'environment' ORDER BY start_ts",
    );
    assert_eq!(
        rows,
        pids.map(|pid| (pid, id.to_owned(), "batch".to_owned(), 0))
    );
    let counted: u64 = data.value(&format!(
        "SELECT sum(oncpu_ns) FROM sched WHERE pid = {}",
        pids[1]
    ));
    // No more than its life, and its end, which no file tells.
    let known = truth..life + 20_000_000;
    assert!(known.contains(&counted), "{counted}, not {known:?}");
}

#[test]
fn environment_identifies_a_job_without_cgroup_and_scheduler() {
    let first = puppet_of("4000010");
    let running = profiler()
        .args(["--job", "4000010", "--scheduler", "slurm"])
        .start();
    let note = "scontrol is not installed or not in PATH";
    // Once to find it, once when it is empty.
    assert!(running.said().contains(note), "{}", running.said());
    followed_by_environment(running, "4000010", first);
}

#[test]
fn hanging_scheduler_is_not_waited_for() {
    let directory = TempDir::new().expect("a directory");
    let stub = directory.path().join("scontrol");
    fs::write(&stub, "#!/bin/sh\nexec /bin/sleep 600\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&stub, mode).expect("our file");
    let first = puppet_of("4000011");
    let running = Profiler::new()
        .args(["-i", "100ms", "--job", "4000011", "--scheduler", "slurm"])
        .env("PATH", directory.path())
        .start();
    let note = "scontrol did not answer within 5 s, asked 2 times";
    assert!(running.said().contains(note), "{}", running.said());
    followed_by_environment(running, "4000011", first);
}

#[test]
fn wait_times_out_without_processes() {
    let refused = profiler()
        .args([
            "--job",
            "4000012",
            "--scheduler",
            "slurm",
            "--wait",
            "200ms",
        ])
        .finish();
    refused.assert_refused(TARGET, "job 4000012 (Slurm) has no process on this node");
}

/// Who waits for longer than a moment is told what for.
#[test]
fn waiting_is_reported() {
    let refused = profiler()
        .args(["--job", "4000017", "--scheduler", "slurm", "--wait", "3s"])
        .finish();
    assert_eq!(refused.code(), TARGET, "{}", refused.stderr);
    let mut lines = refused.stderr.lines();
    assert_eq!(
        lines.next(),
        Some("profiler: waiting for job 4000017 (Slurm) on this node: 2 of 3 s (--wait)")
    );
    assert!(
        lines
            .next()
            .is_some_and(|line| line.contains("has no process on this node"))
    );
    assert_eq!(lines.next(), None);
    let quiet = profiler()
        .args([
            "--job",
            "4000017",
            "--scheduler",
            "slurm",
            "--wait",
            "3s",
            "--quiet",
        ])
        .finish();
    quiet.assert_refused(TARGET, "has no process on this node");
}

#[test]
fn invalid_job_ids_are_rejected() {
    for id in ["a b", "-x", "../x", ""] {
        let refused = profiler().args([format!("--job={id}")]).finish();
        assert_eq!(refused.code(), USAGE, "{id}: {}", refused.stderr);
        refused.assert_nothing_left();
    }
    let refused = profiler().args(["--job", "4000013"]).finish();
    refused.assert_refused(USAGE, "name it with --scheduler");
    let refused = profiler().args(["--job", "--scheduler", "pbs"]).finish();
    refused.assert_refused(USAGE, "give its ID");
}

#[test]
fn job_of_another_user() {
    let mut tree = Tree::mounted(2);
    let group = tree.make("system.slice/slurmstepd.scope/job_4000014/step_0/user/task_0");
    let puppet = Puppet::new(WORKLOAD, 0);
    put(&puppet, &group);
    // A copy that anybody may execute.
    let directory = TempDir::new().expect("a directory");
    let copy = directory.path().join("profiler");
    fs::copy(e2e::setting("PROFILER_BIN"), &copy).expect("a copy");
    let script = format!(
        "chmod 755 {0} {1}; chmod 777 $(dirname $4); shift; exec setpriv --reuid 65534 --regid 65534 \
         --clear-groups {0}/profiler \"$@\"",
        directory.path().display(),
        tree.mount.path().display(),
    );
    let refused = Profiler::within(&["sh", "-c", &script, "sh"])
        .args(["--job", "4000014"])
        .finish();
    refused.assert_refused(TARGET, "job 4000014 is of another user (uid 0)");
    drop(puppet);
}

/// While the file reads INPROGRESS, and no longer.
#[test]
fn ipc_file_ends_the_run() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join(".ipc-4000015");
    fs::write(&file, "INPROGRESS\n").expect("written");
    let mut puppet = Puppet::new(WORKLOAD, 1);
    let mut running = profiler()
        .pid(puppet.pid())
        .args(["--ipc-file"])
        .args([&file])
        .start();
    puppet.tell("burn 100");
    fs::write(&file, "INPROGRESS\n").expect("written");
    puppet.tell("burn 100");
    assert!(!running.has_ended(), "{}", running.said());
    fs::write(&file, "FINISHED\n").expect("written");
    let finished = running.finish();
    let data = finished.dataset();
    data.assert_complete();
    // A last reading, though the process lives.
    let totals: u64 = data.value("SELECT count(oncpu_ns) FROM process WHERE end_ts IS NULL");
    assert_eq!(totals, 1);
    let refused = profiler()
        .pid(puppet.pid())
        .args(["--ipc-file"])
        .args([&file])
        .finish();
    refused.assert_refused(TARGET, "reads FINISHED, not INPROGRESS");
}

/// Ctrl-C while nobody has come yet.
#[test]
fn waiting_can_be_interrupted() {
    let running = profiler()
        .args(["--job", "4000016", "--scheduler", "slurm"])
        .spawn();
    let catches = || {
        let status =
            fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.is_some_and(|mask| {
            u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 2 != 0)
        })
    };
    wait_until("it has its signals", catches);
    let finished = running.interrupt();
    assert_eq!(finished.code(), 130, "{}", finished.stderr);
    finished.assert_nothing_left();
}
