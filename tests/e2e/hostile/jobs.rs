//! Processes that claim to belong to jobs of other users, or to jobs that do not exist.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use e2e::{
    attacker::{UID, VICTIM, command_as, directory_of},
    dataset::Dataset,
    rows::Row,
    runs::{ProcessGroup, Profiler, Running, wait_until},
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    cgroup::{Group, put},
    many_nodes::Slurm,
};

const TARGET: i32 = 3;
/// Limits of docs/many-nodes.md: concurrent runs of one user that only environments name, and the
/// minimum time without processes, in s, before such a run ends.
const CLAIMED_AT_A_TIME: u64 = 32;
const PAUSE: u64 = 3;

/// A process named `comm` whose environment names a Slurm job.
fn claims(uid: u32, job: &str, comm: &str, directory: &Path) -> ProcessGroup {
    let program = directory.join(comm);
    if !program.exists() {
        fs::copy("/bin/sleep", &program).expect("a copy");
    }
    let mut command = command_as(uid, program);
    command
        .arg("600")
        .env("SLURM_JOB_ID", job)
        .env("SLURM_PROCID", "0")
        .stdin(Stdio::null());
    ProcessGroup::start(&mut command)
}

/// A directory for programs that all users can execute.
fn programs() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    directory
}

fn node(out: &Path) -> Profiler {
    Profiler::writing_to(out).args(NODE)
}

const NODE: [&str; 9] = [
    "--node",
    "--split-by",
    "job",
    "--run-id",
    "node",
    "-i",
    "100ms",
    "--source",
    "process,sched",
];

/// A profiler without mounted cgroups, as on a node whose scheduler does not use them.
fn without_cgroups(out: &Path) -> Running {
    let script = "umount --lazy --all --types cgroup,cgroup2; exec \"$@\"";
    let binary = e2e::setting("PROFILER_BIN");
    let mut command = vec!["--mount", "sh", "-c", script, "sh", &binary, "run", "--out"];
    let path = out.to_str().expect("UTF-8");
    command.push(path);
    command.extend(NODE);
    let mut unshare = Command::new("unshare");
    unshare.args(command);
    let mut running = Profiler::from_command(unshare, out).spawn();
    running.wait_for("profiling ");
    running
}

fn runs(out: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(out).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Pids with rows in any table of a run.
fn pids(run: &Path) -> BTreeSet<u32> {
    let data = Dataset::new(run.to_owned());
    let rows: Vec<(u32,)> =
        data.rows("SELECT pid FROM process UNION SELECT pid FROM sched WHERE pid IS NOT NULL");
    rows.into_iter().map(|(pid,)| pid).collect()
}

/// Waits until a run of this directory has a process with its details, its environment among them.
#[track_caller]
fn wait_until_read(out: &Path, pid: u32) {
    wait_until("the process is in a run", || {
        runs(out).iter().any(|run| {
            let rows = Dataset::new(out.join(run)).so_far("process");
            let known =
                |row: &Row| row.u64("pid") == Some(pid.into()) && row.text("cmdline").is_some();
            rows.iter().any(known)
        })
    });
}

/// Job id and source of a process in the node's run.
fn job_of(out: &Path, pid: u32) -> (Option<String>, Option<String>) {
    let data = Dataset::new(out.join("node"));
    data.row(&format!(
        "SELECT job_id, job_source FROM process WHERE pid = {pid}"
    ))
}

/// The attacker starts before the job and again during it; neither process is attributed to the
/// job.
#[test]
fn environment_cannot_join_a_job_with_a_cgroup() {
    const JOB: u32 = 900_101;
    let job = JOB.to_string();
    let (out, bin) = (TempDir::new().expect("a directory"), programs());
    let mut profiler = node(out.path()).start();
    let early = claims(UID, &job, "early", bin.path());
    wait_until_read(out.path(), early.pid());
    let slurm = Slurm::new();
    let victim = slurm.begin(JOB, 0, "exec sleep 600");
    profiler.wait_for(&format!("slurm-{job}\n"));
    let late = claims(UID, &job, "late", bin.path());
    wait_until_read(out.path(), late.pid());
    let (victim_pid, attackers) = (victim.pid(), [early.pid(), late.pid()]);
    let ended = profiler.interrupt();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    drop((victim, early, late));

    let of_job = pids(&out.path().join(format!("slurm-{job}")));
    assert_eq!(of_job, BTreeSet::from([victim_pid]));
    let claimed = format!("slurm-{job}-uid{UID}");
    for run in runs(out.path()).iter().filter(|run| *run != "node") {
        let of_run = pids(&out.path().join(run));
        let expected = format!("slurm-{job}");
        assert_eq!(of_run.contains(&victim_pid), *run == expected, "{run}");
        for pid in &attackers {
            assert!(!of_run.contains(pid) || *run == claimed, "{run}");
        }
    }
    // The job has a cgroup, so that environments are ignored.
    assert_eq!(job_of(out.path(), attackers[1]), (None, None));
    let data = Dataset::new(out.path().join(format!("slurm-{job}")));
    let (id, source): (String, String) = data.row("SELECT job_id, job_source FROM process");
    assert_eq!((id.as_str(), source.as_str()), (job.as_str(), "cgroup"));
}

/// Without cgroups, the claims of each user have a run of their own.
#[test]
fn job_claims_are_per_user() {
    let (out, bin) = (TempDir::new().expect("a directory"), programs());
    let profiler = without_cgroups(out.path());
    let attacker = claims(UID, "900102", "attacker", bin.path());
    wait_until_read(out.path(), attacker.pid());
    let victim = claims(VICTIM, "900102", "victim", bin.path());
    let of = |uid: u32| out.path().join(format!("slurm-900102-uid{uid}"));
    wait_until("both have a run", || {
        of(UID).exists() && of(VICTIM).exists()
    });
    wait_until_read(out.path(), victim.pid());
    let ended = profiler.interrupt();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert_eq!(pids(&of(UID)), BTreeSet::from([attacker.pid()]));
    assert_eq!(pids(&of(VICTIM)), BTreeSet::from([victim.pid()]));
    let source: String = Dataset::new(of(VICTIM)).value("SELECT job_source FROM process");
    assert_eq!(source, "environment");
    let target = Dataset::new(of(VICTIM)).manifest()["target"]["job"].clone();
    assert_eq!(target["claimed_by_uid"], VICTIM, "{target}");
}

/// Changing job ids create a bounded number of directories, and do not affect other users.
#[test]
fn changing_job_claims_have_a_quota() {
    const CLAIMS: u64 = 2000;
    let (out, bin) = (TempDir::new().expect("a directory"), programs());
    let profiler = without_cgroups(out.path());
    let begin = Instant::now();
    let script = format!(
        "i=0; while [ $i -lt {CLAIMS} ]; do i=$((i+1)); SLURM_JOB_ID=$((5000000+i)) /bin/true; done"
    );
    let status = command_as(UID, "sh").args(["-c", &script]).status();
    assert!(status.expect("a shell").success());
    // The attacker's runs are still open.
    let honest = claims(VICTIM, "900103", "honest", bin.path());
    let run = out.path().join(format!("slurm-900103-uid{VICTIM}"));
    wait_until("the honest job has its run", || run.exists());
    wait_until_read(out.path(), honest.pid());
    let ended = profiler.interrupt();
    let took = begin.elapsed().as_secs() + 1;
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert_eq!(pids(&run), BTreeSet::from([honest.pid()]));
    let of_attacker = format!("-uid{UID}");
    let made = runs(out.path());
    let made = made
        .iter()
        .filter(|run| run.ends_with(&of_attacker))
        .count() as u64;
    let most = CLAIMED_AT_A_TIME * (1 + took / PAUSE);
    assert!(
        (1..=most).contains(&made),
        "{made} in {took} s: {}",
        ended.stderr
    );
    // None has the name that a run of a job with a cgroup would have.
    let proven = |run: &String| run.starts_with("slurm-5") && !run.contains("-uid");
    assert!(!runs(out.path()).iter().any(proven));
    // Each claim has a run or is counted as refused.
    let refused = &Dataset::new(out.path().join("node")).manifest()["refused_claims"];
    let count = refused[UID.to_string()].as_u64().expect("counted");
    assert!(
        count <= CLAIMS && count + made >= CLAIMS,
        "{count} and {made}"
    );
    assert!(refused[VICTIM.to_string()].is_null(), "{refused}");
    let lines = ended
        .stderr
        .matches("rows of further jobs are in the run of the node");
    assert_eq!(lines.count(), 1, "{}", ended.stderr);
}

/// A user creates cgroups with arbitrary names below a delegated cgroup.
#[test]
fn delegated_cgroup_does_not_prove_a_job() {
    let (out, bin) = (TempDir::new().expect("a directory"), programs());
    let group = Group::new(&["-t", "cgroup", "-o", "freezer"]);
    let delegated = group.outer().join(format!("user@{UID}.service"));
    fs::create_dir(&delegated).expect("a group");
    chown(&delegated, Some(UID), Some(UID)).expect("root gives it away");
    let profiler = node(out.path()).start();
    let forged = delegated.join(format!("slurm_n1/uid_{VICTIM}/job_900104/step_0"));
    let script = format!(
        "mkdir -p {0} && echo $$ > {0}/cgroup.procs && exec sleep 600",
        forged.display()
    );
    let attacker = command_as(UID, "sh")
        .args(["-c", &script])
        .process_group(0)
        .spawn();
    let attacker = ProcessGroup(attacker.expect("a shell"));
    wait_until("the process is in its cgroup", || {
        fs::read_to_string(forged.join("cgroup.procs"))
            .is_ok_and(|procs| procs.trim() == attacker.pid().to_string())
    });
    let named = claims(UID, "900104", "named", bin.path());
    wait_until_read(out.path(), attacker.pid());
    wait_until_read(out.path(), named.pid());
    let refused = Profiler::new()
        .args(["--job", "900104", "--scheduler", "slurm", "--wait", "200ms"])
        .env("PATH", "/nowhere")
        .env("SLURM_JOB_ID", "900104")
        .env("SLURM_JOB_UID", VICTIM.to_string())
        .finish();
    let ended = profiler.interrupt();
    let (pid, named_pid) = (attacker.pid(), named.pid());
    drop((attacker, named));
    for path in forged.ancestors().take_while(|path| *path != group.outer()) {
        wait_until("the group is empty", || fs::remove_dir(path).is_ok());
    }
    refused.assert_refused(TARGET, "job 900104 (Slurm) has no process on this node");
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert!(
        !out.path().join("slurm-900104").exists(),
        "{:?}",
        runs(out.path())
    );
    let (job, source) = job_of(out.path(), pid);
    assert_eq!((job, source), (None, None));
    // The claims of its environment may only yield a run of its own.
    let claimed = out.path().join(format!("slurm-900104-uid{UID}"));
    let claimed = claimed.exists().then(|| pids(&claimed));
    assert!(
        claimed
            .unwrap_or_else(|| pids(&out.path().join("node")))
            .contains(&named_pid)
    );
}

/// The name of the job's cgroup does not contain the job id, and a process in it lies about the id
/// in its environment and its name.
#[test]
fn cgroup_name_cannot_take_over_a_job_id() {
    const SLUID: &str = "s5K1KKYAYG5D07";
    let (out, bin) = (TempDir::new().expect("a directory"), programs());
    let group = Group::new(&["-t", "cgroup2"]);
    let job = group.outer().join(format!("slurmstepd.scope/{SLUID}"));
    fs::create_dir_all(&job).expect("a group");
    let program = bin.path().join("slurmstepd");
    fs::copy("/bin/sleep", &program).expect("a copy");
    let impostor = command_as(UID, program)
        .arg0("slurmstepd: [900105.0]")
        .arg("600")
        .env("SLURM_JOB_ID", "900105")
        .process_group(0)
        .spawn();
    let impostor = ProcessGroup(impostor.expect("a program"));
    put(impostor.pid(), &job);
    let mut profiler = node(out.path()).start();
    profiler.wait_until_reported(SLUID);
    wait_until_read(out.path(), impostor.pid());
    let ended = profiler.interrupt();
    let pid = impostor.pid();
    drop(impostor);
    for path in job.ancestors().take_while(|path| *path != group.outer()) {
        wait_until("the group is empty", || fs::remove_dir(path).is_ok());
    }
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert!(!out.path().join("slurm-900105").exists());
    let data = Dataset::new(out.path().join(format!("slurm-{SLUID}")));
    let row: (u32, String, String) = data.row("SELECT pid, job_id, job_source FROM process");
    assert_eq!(row, (pid, SLUID.to_owned(), "cgroup".to_owned()));
}

/// `--job` if neither a cgroup nor the scheduler names the owner of the job.
#[test]
fn job_environment_is_trusted_for_one_user_only() {
    let bin = programs();
    let job = || {
        Profiler::new()
            .args(["--job", "900106", "--scheduler", "slurm", "-i", "100ms"])
            .env("PATH", "/nowhere")
    };
    let _attacker = claims(UID, "900106", "attacker", bin.path());
    let victim = claims(VICTIM, "900106", "victim", bin.path());
    let refused = job().args(["--wait", "200ms"]).finish();
    let why = format!("processes of several users (uid {UID}, uid {VICTIM}) name job 900106");
    refused.assert_refused(TARGET, &why);
    // With sudo, the invoking user is the owner; a prolog knows the user.
    for (name, value) in [("SUDO_UID", "SUDO_GID"), ("SLURM_JOB_UID", "SLURM_JOB_GID")] {
        let running = job()
            .env(name, VICTIM.to_string())
            .env(value, VICTIM.to_string())
            .env("SLURM_JOB_ID", "900106")
            .start();
        // Later processes are treated in the same way. A search that finds the second one has seen
        // the first.
        let late = claims(UID, "900106", "late", bin.path());
        let last = claims(VICTIM, "900106", "last", bin.path());
        let run = Dataset::new(running.run_dir());
        run.wait_for_row("process", "the last process is found", |row| {
            row.u64("pid") == Some(last.pid().into())
        });
        let finished = running.interrupt();
        let expected = BTreeSet::from([(victim.pid(), VICTIM), (last.pid(), VICTIM)]);
        drop((late, last));
        let rows: Vec<(u32, u32)> = finished.dataset().rows("SELECT pid, uid FROM process");
        let found: BTreeSet<_> = rows.into_iter().collect();
        assert_eq!(found, expected, "{}", finished.stderr);
    }
}

/// A pipe where a batch script would have its file: opening it would wait for a writer for good.
#[test]
fn pipe_in_place_of_the_stop_file_is_not_waited_for() {
    let (directory, bin) = (directory_of(UID), programs());
    let job = "900107";
    let pipe = directory.path().join(format!(".ipc-{job}"));
    let made = command_as(UID, "mkfifo").arg(&pipe).status();
    assert!(made.expect("coreutils").success());
    let of_job = claims(UID, job, "job", bin.path());
    let out = TempDir::new().expect("a directory");
    let mut command = Command::new(e2e::setting("PROFILER_BIN"));
    command.current_dir(directory.path()).args(["run", "--out"]);
    let mut running = Profiler::from_command(command, out.path())
        .args([out.path()])
        .args(["--job", job, "--scheduler", "slurm", "-i", "100ms"])
        .env("PATH", "/nowhere")
        .env("SUDO_UID", UID.to_string())
        .env("SUDO_GID", UID.to_string())
        .spawn();
    running.wait_for(&format!(".ipc-{job} is ignored: not a regular file"));
    running.wait_for("profiling ");
    running.signal(Signal::TERM);
    let ended = running.finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    drop(of_job);
    let refused = Profiler::new()
        .args(["--stop-file", pipe.to_str().expect("UTF-8"), "--", "true"])
        .finish();
    refused.assert_refused(TARGET, "not a regular file");
}
