//! Batch jobs under a real Slurm and ranks under a real Open MPI: `cargo xtask test jobs`.

pub mod cluster;
mod deploy;
mod ending;
mod hostile;
mod mpi;
mod service;
mod signals;

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use e2e::{
    attacker::command_as,
    dataset::Dataset,
    runs::{ProcessGroup, Profiler, wait_until},
};

use self::cluster::Cluster;

const TARGET: i32 = 3;

/// `mpirun` of Debian's Open MPI, on one machine and as root.
const MPIRUN: &str = "mpirun --allow-run-as-root --oversubscribe --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo";

fn profiler(cluster: &Cluster) -> Profiler {
    Profiler::new()
        .env("SLURM_CONF", cluster.conf())
        .args(["-i", "200ms"])
}

#[track_caller]
fn found_by(data: &Dataset, method: &str, job: &str) {
    let target = data.manifest()["target"]["job"].clone();
    assert_eq!(target["found_by"], method, "{target}");
    assert_eq!(target["id"], job, "{target}");
    assert_eq!(target["scheduler"], "slurm");
}

/// A task's own report: step, rank, pid, time on CPU (`/proc`) and user plus system time
/// (getrusage(2)), in ns.
type Report = (String, u32, u32, u64, u64);

fn parse_report(text: &str) -> Report {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("names").split(' ').collect();
    let time = |text: &str| {
        let (minutes, seconds) = text
            .trim_end_matches('s')
            .split_once('m')
            .expect("0m0.000s");
        let minutes = Duration::from_secs(60) * minutes.parse().expect("minutes");
        minutes + Duration::from_secs_f64(seconds.parse().expect("seconds"))
    };
    let times = lines.next().expect("times").split(' ');
    let number = |at: usize| -> u64 { names[at].parse().expect("a number") };
    let small = |at: usize| u32::try_from(number(at)).expect("a small number");
    (
        names[0].to_owned(),
        small(1),
        small(2),
        number(3),
        u64::try_from(times.map(time).sum::<Duration>().as_nanos()).expect("some time"),
    )
}

/// Burns CPU time, reports the amount and ends.
const TASK: &str = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; read oncpu rest < /proc/$$/schedstat; \
                    { echo $SLURM_STEP_ID $SLURM_PROCID $$ $oncpu; times; } > report.$SLURM_STEP_ID.$SLURM_PROCID";

#[test]
fn job_with_two_steps() {
    let cluster = Cluster::start();
    let job = cluster.submit(
        2,
        &format!(
            "until [ -e go ]; do sleep 0.1; done\n\
             srun --ntasks=2 bash -c '{TASK}'\n\
             srun --ntasks=1 bash -c '{TASK}'\n\
             srun --ntasks=1 true\n"
        ),
    );
    let running = profiler(&cluster).args(["--job", &job]).start();
    fs::write(cluster.directory().join("go"), "").expect("written");
    let finished = running.finish();
    assert_eq!(finished.stdout, "");
    let data = finished.dataset();
    data.assert_complete();
    found_by(&data, "cgroup", &job);

    let others: u64 = data.value(&format!(
        "SELECT count(*) FROM process WHERE job_id IS DISTINCT FROM '{job}'"
    ));
    assert_eq!(others, 0, "processes of no job");
    for (step, rank) in [("0", 0), ("0", 1), ("1", 0)] {
        let path = cluster.directory().join(format!("report.{step}.{rank}"));
        let report = parse_report(&fs::read_to_string(path).expect("the task has written it"));
        assert_eq!((&report.0[..], report.1), (step, rank));
        let (step_id, task_rank, oncpu, sum): (String, u32, u64, u64) = data.row(&format!(
            "SELECT step_id, task_rank, oncpu_ns, user_ns + system_ns FROM process WHERE pid = {} AND comm = 'bash'",
            report.2
        ));
        assert_eq!((&step_id[..], task_rank), (step, rank));
        // The exit also takes CPU time, which the task cannot report. User and system time of
        // getrusage(2) are rounded to milliseconds.
        for (counted, truth) in [(oncpu, report.3), (sum + 1_000_000, report.4)] {
            let more = counted.checked_sub(truth);
            let more = more.unwrap_or_else(|| panic!("{counted}, less than {truth}"));
            assert!(
                more < 20_000_000,
                "step {step}, rank {rank}: {counted}, not {truth}"
            );
        }
    }
    let steps: Vec<(String, Option<u32>)> =
        data.rows("SELECT step_id, task_rank FROM process WHERE comm = 'true'");
    assert_eq!(steps, [("2".to_owned(), Some(0))]);
    let script: (String, u32) =
        data.row("SELECT step_id, task_rank FROM process WHERE comm = 'slurm_script'");
    assert_eq!(script, ("batch".to_owned(), 0));
}

/// The cgroup of the job is removed after each step; the next step creates one with the same name.
#[test]
fn job_continues_between_two_steps() {
    let cluster = Cluster::start();
    cluster.ask("salloc", &["--no-shell", "--ntasks=2"]);
    let job = cluster.ask("squeue", &["-h", "-o", "%i"]);
    let mut waiting = profiler(&cluster).args(["--job", &job]).spawn();
    let step = |seconds: &str| {
        let command = &mut cluster.command("srun", &["--jobid", &job, "sleep", seconds]);
        ProcessGroup::start(command)
    };
    let _first = step("2");
    waiting.wait_for("profiling ");
    let directory = cluster.cgroup(&job);
    wait_until("the directory is gone", || {
        !fs::exists(&directory).expect("a path")
    });
    let second = step("0.5");
    wait_until("it is there again", || {
        fs::exists(&directory).expect("a path")
    });
    wait_until("it is gone again", || {
        !fs::exists(&directory).expect("a path")
    });
    drop(second);
    assert!(!waiting.has_ended(), "{}", waiting.stderr());
    cluster.ask("scancel", &[&job]);
    let finished = waiting.finish();
    let data = finished.dataset();
    data.assert_complete();
    found_by(&data, "cgroup", &job);
    let naps: Vec<(String, u32, String)> = data.rows(
        "SELECT step_id, task_rank, cmdline FROM process WHERE comm = 'sleep' ORDER BY start_ts",
    );
    let nap = |step: &str, seconds: &str| (step.to_owned(), 0, format!("/usr/bin/sleep {seconds}"));
    assert_eq!(naps, [nap("0", "2"), nap("1", "0.5")]);
}

#[test]
fn slurm_lists_processes_without_cgroups() {
    let cluster = Cluster::tracking("proctrack/linuxproc");
    let job = cluster.submit(
        1,
        "until [ -e go ]; do sleep 0.1; done; srun --ntasks=1 bash -c 'sleep 3; exit 5'; sleep 0.1",
    );
    let running = profiler(&cluster).args(["--job", &job]).start();
    fs::write(cluster.directory().join("go"), "").expect("written");
    let finished = running.finish();
    let data = finished.dataset();
    data.assert_complete();
    found_by(&data, "scheduler", &job);
    let step: (String, String, u32, i32) =
        data.row("SELECT job_id, step_id, task_rank, exit_code FROM process WHERE comm = 'bash'");
    assert_eq!(step, (job.clone(), "0".to_owned(), 0, 5));
    let script: (String, i32) =
        data.row("SELECT step_id, exit_code FROM process WHERE comm = 'slurm_script'");
    assert_eq!(script, ("batch".to_owned(), 0));
}

/// The ranks are in no cgroup of the job; only their environments contain the job id.
#[test]
fn mpirun_in_an_allocation() {
    let cluster = Cluster::start();
    let script = format!(
        "until [ -e go ]; do sleep 0.1; done; {MPIRUN} -np 2 bash -c 'sleep 0.5; exit 0'; true"
    );
    let command = &mut cluster.command("salloc", &["--ntasks=2", "bash", "-c", &script]);
    let _salloc = ProcessGroup::start(command.stderr(Stdio::null()));
    let mut job = String::new();
    wait_until("the job is there", || {
        job = cluster.ask("squeue", &["-h", "-o", "%i"]);
        !job.is_empty()
    });
    let running = profiler(&cluster).args(["--job", &job]).start();
    assert!(
        running.stderr().contains("found by their environment"),
        "{}",
        running.stderr()
    );
    fs::write(cluster.directory().join("go"), "").expect("written");
    let finished = running.finish();
    let data = finished.dataset();
    data.assert_complete();
    found_by(&data, "environment", &job);
    let ranks: Vec<(String, u32, i32)> = data.rows(
        "SELECT job_id, task_rank, exit_code FROM process \
         WHERE comm = 'bash' AND task_rank IS NOT NULL ORDER BY task_rank",
    );
    assert_eq!(ranks, [(job.clone(), 0, 0), (job.clone(), 1, 0)]);
    let mpirun: (String, Option<u32>) =
        data.row("SELECT job_id, task_rank FROM process WHERE comm = 'mpirun'");
    assert_eq!(mpirun, (job, None));
}

/// Slurm knows the owner of the job: environments of other users are not read.
#[test]
fn processes_of_other_users_claiming_the_job_are_ignored() {
    const OTHER: u32 = 4242;
    let cluster = Cluster::start();
    let script = "until [ -e go ]; do sleep 0.1; done; true";
    let command = &mut cluster.command("salloc", &["--ntasks=1", "bash", "-c", script]);
    let _salloc = ProcessGroup::start(command.stderr(Stdio::null()));
    let mut job = String::new();
    wait_until("the job is there", || {
        job = cluster.ask("squeue", &["-h", "-o", "%i"]);
        !job.is_empty()
    });
    let claim_of = |user| {
        let mut command = command_as(user, "sleep");
        command
            .arg("600")
            .env("SLURM_JOB_ID", &job)
            .current_dir("/");
        ProcessGroup::start(&mut command)
    };
    let claim = || claim_of(OTHER);
    let _before = claim();
    let running = profiler(&cluster).args(["--job", &job]).start();
    let _later = claim();
    // A search that finds this process has seen that of the other user.
    let last = claim_of(0);
    let run = Dataset::new(running.run_dir());
    run.wait_for_row("process", "the last process is found", |row| {
        row.u64("pid") == Some(last.pid().into())
    });
    drop(last);
    fs::write(cluster.directory().join("go"), "").expect("written");
    let finished = running.finish();
    let data = finished.dataset();
    data.assert_complete();
    found_by(&data, "environment", &job);
    let users: Vec<(u32, String)> = data.rows("SELECT DISTINCT uid, job_source FROM process");
    assert_eq!(users, [(0, "environment".to_owned())]);
}

/// It answers, hangs, and answers again. Only the hang is played; Slurm is real.
#[test]
fn hanging_scheduler_command_is_retried() {
    let cluster = Cluster::tracking("proctrack/linuxproc");
    let directory = cluster.directory();
    let bin = directory.join("bin");
    fs::create_dir(&bin).expect("a directory");
    let stub = bin.join("scontrol");
    let script = format!(
        "#!/bin/sh\n[ -e {0}/hang ] && exec sleep 600\nexec /usr/bin/scontrol \"$@\"\n",
        directory.display()
    );
    fs::write(&stub, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&stub, mode).expect("our file");
    let others = std::env::var("PATH").expect("a path");
    let job = cluster.submit(1, "until [ -e go ]; do sleep 0.1; done");
    let mut running = profiler(&cluster)
        .args(["--job", &job])
        .env("PATH", format!("{}:{others}", bin.display()))
        .start();
    fs::write(directory.join("hang"), "").expect("written");
    let no_answer = format!("cannot query Slurm about job {job}: scontrol did not answer");
    running.wait_for(&no_answer);
    // Meanwhile the next method, the environment, finds processes.
    let claimed = ProcessGroup::start(
        cluster
            .command("sleep", &["600"])
            .env("SLURM_JOB_ID", &job)
            .env("SLURM_PROCID", "0"),
    );
    let pid = claimed.pid();
    let run = Dataset::new(running.run_dir());
    run.wait_for_row("process", "the process is found", |row| {
        row.u64("pid") == Some(pid.into())
    });
    fs::remove_file(directory.join("hang")).expect("removed");
    let begin = Instant::now();
    running.wait_for(&format!("Slurm answers queries about job {job} again"));
    assert!(begin.elapsed() < Duration::from_secs(60));
    drop(claimed);
    fs::write(directory.join("go"), "").expect("written");
    let finished = running.finish();
    assert_eq!(
        finished.stderr.matches(&no_answer).count(),
        1,
        "{}",
        finished.stderr
    );
    let data = finished.dataset();
    data.assert_complete();
    found_by(&data, "scheduler", &job);
    let found: u64 = data.value(&format!("SELECT count(*) FROM process WHERE pid = {pid}"));
    assert_eq!(found, 1, "{}", finished.stderr);
}

#[test]
fn ranks_of_mpirun_without_a_job() {
    let words: Vec<&str> = MPIRUN.split(' ').chain(["-np", "2", "true"]).collect();
    let finished = Profiler::new().command(&words).finish();
    let ranks: Vec<(Option<String>, u32)> = finished
        .dataset()
        .rows("SELECT job_id, task_rank FROM process WHERE comm = 'true' ORDER BY task_rank");
    assert_eq!(ranks, [(None, 0), (None, 1)]);
}

/// As in the guide: the script starts the profiler, which finds the job itself, and ends it with a
/// signal.
#[test]
fn profiler_inside_the_job() {
    let cluster = Cluster::start();
    let job = cluster.submit(
        1,
        &format!(
            "ipc=.ipc-$SLURM_JOB_ID; echo INPROGRESS > $ipc\n\
             {} run --job --stop-file $ipc --interval 200ms --out profiles > out 2> err &\n\
             until grep -q '^profiling' err; do sleep 0.1; done\n\
             srun --ntasks=1 bash -c 'exit 3'\n\
             echo FINISHED > $ipc\n\
             wait $!; echo $? > code\n",
            e2e::setting("PROFILER_BIN")
        ),
    );
    wait_until("the job is over", || cluster.state(&job) == "COMPLETED");
    let read = |name: &str| fs::read_to_string(cluster.directory().join(name)).expect("written");
    assert_eq!(
        (&read("code")[..], &read("out")[..]),
        ("0\n", ""),
        "{}",
        read("err")
    );
    let runs = fs::read_dir(cluster.directory().join("profiles")).expect("a directory");
    let mut runs = runs.map(|entry| entry.expect("an entry").path());
    let data = Dataset::new(runs.find(|path| path.is_dir()).expect("a run"));
    data.assert_complete();
    found_by(&data, "cgroup", &job);
    let step: (String, u32, i32) =
        data.row("SELECT step_id, task_rank, exit_code FROM process WHERE comm = 'bash'");
    assert_eq!(step, ("0".to_owned(), 0, 3));
}

/// The node is what is profiled, and each process knows its job.
#[test]
fn jobs_of_a_node() {
    let cluster = Cluster::start();
    let running = profiler(&cluster).args(["--node"]).start();
    let step = "srun --ntasks=1 bash -c 'exit 7'; srun --ntasks=1 bash -c 'exit 8'; true";
    let jobs = [cluster.submit(1, step), cluster.submit(1, step)];
    wait_until("the jobs are over", || {
        jobs.iter().all(|job| cluster.state(job) == "COMPLETED")
    });
    let finished = running.interrupt();
    let data = finished.dataset();
    let mut steps: Vec<(String, String, u32, i32)> = data.rows(
        "SELECT job_id, step_id, task_rank, exit_code FROM process WHERE comm = 'bash' AND exit_code IN (7, 8)",
    );
    steps.sort();
    let expected: Vec<_> = jobs
        .iter()
        .flat_map(|job| {
            [("0", 7), ("1", 8)].map(|(step, code)| (job.clone(), step.to_owned(), 0, code))
        })
        .collect();
    assert_eq!(steps, expected);
}

#[test]
fn unknown_jobs() {
    let cluster = Cluster::start();
    let refused = profiler(&cluster).args(["--job", "4711"]).finish();
    refused.assert_refused(TARGET, "job 4711 is unknown to Slurm");
    let job = cluster.submit(1, "true");
    wait_until("the job is over", || cluster.state(&job) == "COMPLETED");
    // Slurm removes its cgroup later.
    wait_until("its cgroup is gone", || {
        !fs::exists(cluster.cgroup(&job)).expect("a path")
    });
    let refused = profiler(&cluster).args(["--job", &job]).finish();
    refused.assert_refused(TARGET, &format!("job {job} is over (Slurm: COMPLETED)"));
    // One that waits for the first.
    let running = cluster.submit(2, "sleep 60");
    wait_until("it runs", || cluster.state(&running) == "RUNNING");
    let held = cluster.ask("sbatch", &["--parsable", "--hold", "--wrap=true"]);
    let refused = profiler(&cluster)
        .args(["--wait", "1s", "--job", &held])
        .finish();
    refused.assert_refused(TARGET, "it has not started; waited 1 s (--wait)");
}
