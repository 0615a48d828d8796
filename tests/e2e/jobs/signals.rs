//! Signals that Slurm and Open MPI send to a job step, in which the profiler has a command.

use std::os::unix::process::CommandExt as _;

use e2e::{
    runs::{ProcessGroup, pid_of, wait_until},
    setting,
};
use rustix::process::{Signal, kill_process};

use super::{MPIRUN, cluster::Cluster};
use crate::signals::Record;

/// `profiler run -- …` with a command that records signals.
fn profiler(record: &Record) -> String {
    format!(
        "{} run --quiet --source process --out {} -- {}",
        setting("PROFILER_BIN"),
        record.path().with_extension("out").display(),
        record.command().join(" ")
    )
}

/// The command has got these signals, each once. A last one, to the profiler alone, is passed on after the
/// decisions about the others.
#[track_caller]
fn assert_got(record: &Record, signals: &[&str]) {
    for signal in signals {
        record.wait_for(signal);
    }
    kill_process(pid_of(record.profiler()), Signal::URG).expect("it is alive");
    record.wait_for("SIGURG");
    // Slurm lets a step continue before it warns it.
    let mut got = record.signals();
    got.retain(|signal| signal != "SIGCONT");
    assert_eq!(got, [signals, &["SIGURG"]].concat());
}

fn wait_for_end(cluster: &Cluster, job: &str, state: &str) {
    let running = ["PENDING", "RUNNING", "COMPLETING"];
    wait_until("the job ends", || {
        !running.contains(&cluster.state(job).as_str())
    });
    assert_eq!(cluster.state(job), state);
}

/// Slurm signals a step in different ways: its tasks alone, all its processes, or its process groups.
#[track_caller]
fn check_step(plugin: &str) {
    let cluster = Cluster::tracking(plugin);
    let record = Record::new();
    let script = format!("srun --ntasks=1 {}; [ $? = 9 ]", profiler(&record));
    let job = cluster.submit(1, &script);
    record.profiler();
    cluster.ask("scancel", &["--signal=USR1", &job]);
    record.wait_for("SIGUSR1");
    cluster.ask("scancel", &["--signal=USR2", &job]);
    assert_got(&record, &["SIGUSR1", "SIGUSR2"]);
    cluster.ask("scancel", &["--signal=TERM", &job]);
    wait_for_end(&cluster, &job, "COMPLETED");
    assert_eq!(record.signals().last().expect("signals"), "SIGTERM");
}

#[test]
fn step_with_cgroups() {
    check_step("proctrack/cgroup");
}

#[test]
fn step_by_parents() {
    check_step("proctrack/linuxproc");
}

#[test]
fn step_by_process_groups() {
    check_step("proctrack/pgid");
}

/// `sbatch --signal`, before the time limit.
#[test]
fn warning_before_the_time_limit() {
    let cluster = Cluster::start();
    let record = Record::new();
    let script = format!("srun --ntasks=1 {}; [ $? = 9 ]", profiler(&record));
    let job = cluster.submit_with(&["--time=2", "--signal=USR1@115"], &script);
    assert_got(&record, &["SIGUSR1"]);
    cluster.ask("scancel", &["--signal=TERM", &job]);
    wait_for_end(&cluster, &job, "COMPLETED");
}

/// The batch script and its descendants, which are one process group.
#[test]
fn whole_batch_script() {
    let cluster = Cluster::start();
    let record = Record::new();
    let script = format!("trap : USR1\n{}; [ $? = 9 ]", profiler(&record));
    let job = cluster.submit(1, &script);
    record.profiler();
    cluster.ask("scancel", &["--full", "--signal=USR1", &job]);
    assert_got(&record, &["SIGUSR1"]);
    kill_process(pid_of(record.profiler()), Signal::TERM).expect("it is alive");
    wait_for_end(&cluster, &job, "COMPLETED");
}

/// `mpirun` passes on what it gets.
#[test]
fn mpirun_passes_signals_on() {
    let record = Record::new();
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &format!("exec {MPIRUN} -np 1 {}", profiler(&record))]);
    let mut mpirun = ProcessGroup::start(command.process_group(0));
    record.profiler();
    kill_process(pid_of(mpirun.pid()), Signal::USR1).expect("it is alive");
    assert_got(&record, &["SIGUSR1"]);
    kill_process(pid_of(record.profiler()), Signal::TERM).expect("it is alive");
    let status = mpirun.0.wait().expect("our child");
    assert_eq!(status.code(), Some(9));
}
