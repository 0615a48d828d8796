//! Profiling by an ordinary user, without capabilities.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
};

use e2e::{
    dataset::Dataset,
    procfs::{self, thread_ids},
    runs::{Finished, ProcessGroup, Profiler, wait_until},
    setting,
};
use serde_json::Value;

use crate::errors::denying;

/// 526 processes, of which 500 live for about a millisecond.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/demo.sh");

/// CPU time of the target by `timeline`, s.
const TARGET_CPU: &str = "SELECT sum(target_cpu_percent * interval_ns) / 100e9 FROM timeline";

/// A copy of the demo that all users may read, and a shell that runs it, prints its CPU time as
/// times(2) reports it, and exits with 7.
fn demo() -> (tempfile::NamedTempFile, String) {
    let copy = readable_by_all(&fs::read_to_string(DEMO).expect("the demo"));
    let script = format!(
        "sh {} >/dev/null 2>&1; times; exit 7",
        copy.path().display()
    );
    (copy, script)
}

fn readable_by_all(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), text).expect("written");
    let all = fs::Permissions::from_mode(0o644);
    fs::set_permissions(file.path(), all).expect("our file");
    file
}

/// CPU time that `times` of the shell has printed last, s: user and system time of the children.
fn printed_times(stdout: &str) -> f64 {
    let line = stdout.lines().last().expect("a line");
    let seconds = |word: &str| -> f64 {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m').expect("XmYs");
        let number = |text: &str| text.parse::<f64>().expect("a number");
        number(minutes) * 60.0 + number(seconds)
    };
    line.split_whitespace().map(seconds).sum()
}

/// Asserts that a CPU time is that of `times`, in s, which is in steps of 10 ms.
#[track_caller]
fn assert_cpu(counted: f64, waited: f64, data: &Dataset, apart: f64) {
    // perf's task clock runs on meanwhile.
    let away = (data.stolen_ns() + data.interrupt_ns()) as f64 / 1e9;
    let apart = apart * waited + 0.02;
    assert!(
        (waited - apart..=waited + away + apart).contains(&counted),
        "{counted} s, not {waited} s, {away} s stolen or in interrupts"
    );
}

/// `times` is without the outer shell.
#[track_caller]
fn assert_cpu_matches_wait(finished: &Finished, data: &Dataset) {
    let waited = printed_times(&finished.stdout);
    assert!(waited > 0.5, "{waited} s");
    assert_cpu(data.value(TARGET_CPU), waited, data, 0.05);
}

/// Asserts that the summary has the CPU time that wait(2) has, not that of the known processes, and
/// marks what it does not know.
#[track_caller]
fn assert_summary_has_all_cpu_time(finished: &Finished, data: &Dataset) {
    let summary = |options: &[&str]| {
        let mut command = Command::new(setting("PROFILER_BIN"));
        command.arg("summary").args(options).arg(data.path());
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let document: Value = serde_json::from_str(&summary(&["--json"])).expect("JSON");
    let total = &document["runs"][0]["total"];
    let figure = |name: &str| total[name].as_f64().expect("known");
    assert_cpu(figure("cpu_s"), printed_times(&finished.stdout), data, 0.05);
    assert!(figure("user_s") + figure("system_s") < figure("cpu_s"));
    assert!(total["blocked_s"].is_null(), "{total}");
    for text in [&summary(&[]), &finished.stderr] {
        assert!(
            text.contains("user ≥ ") && !text.contains("blocked"),
            "{text}"
        );
    }
}

/// Losses of readings of `/proc`, by kind.
fn procfs_losses(data: &Dataset) -> Vec<(String, u64)> {
    data.rows(
        "SELECT component, sum(dropped)::UBIGINT FROM overhead WHERE component_kind = 'procfs' \
         GROUP BY 1 HAVING sum(dropped) != 0 ORDER BY 1",
    )
}

#[test]
fn all_processes_of_a_command_have_births_and_ends() {
    let (_copy, script) = demo();
    let finished = Profiler::unprivileged()
        .args(["-i", "200ms"])
        .command(&["sh", "-c", &script])
        .finish();
    assert_eq!(finished.code(), 7, "{}", finished.stderr);
    let data = finished.any_dataset();
    data.assert_complete();
    // The demo has 526, and a shell runs it.
    let (all, ended, started, uids): (u64, u64, u64, u64) = data.row(
        "SELECT count(*), count(end_ts), count(started_by), count(*) FILTER (uid = 65534) FROM process",
    );
    assert_eq!((all, ended, started, uids), (527, 527, 526, 527));
    let (short, orphans, lifetimes): (u64, u64, u64) = data.row(
        "SELECT count(*), count(*) FILTER (p.pid IS NULL), \
         count(*) FILTER (c.end_ts > c.start_ts AND c.start_ts >= p.start_ts AND c.end_ts <= p.end_ts) \
         FROM process c LEFT JOIN process p ON p.pid = c.ppid AND p.comm = 'sh' \
         WHERE c.comm = 'true'",
    );
    assert_eq!((short, orphans, lifetimes), (500, 0, 500));
    let ends: Vec<(Option<i32>, Option<i32>)> =
        data.rows("SELECT exit_code, exit_signal FROM process WHERE started_by IS NULL");
    assert_eq!(ends, [(Some(7), None)]);
    assert_cpu_matches_wait(&finished, &data);
    for table in ["usage", "sched", "system"] {
        let rows: u64 = data.value(&format!("SELECT count(*) FROM {table}"));
        assert!(rows > 0, "{table}");
    }
    // Processes without counters are counted.
    let unknown: u64 = data.value("SELECT count(*) FROM process WHERE oncpu_ns IS NULL");
    assert!(unknown > 0);
    assert_eq!(procfs_losses(&data), [("counters".to_owned(), unknown)]);
    let line = format!("{unknown} process counters lost");
    assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    assert_summary_has_all_cpu_time(&finished, &data);
    let remedies = finished
        .stderr
        .lines()
        .filter(|line| line.contains("setcap"));
    assert_eq!(remedies.count(), 1, "{}", finished.stderr);
}

/// Neither the end of a thread nor an exec by a thread other than the main one ends the records of
/// a process.
#[test]
fn processes_whose_threads_end_are_recorded() {
    let program = readable_by_all(
        "import os, threading, time
threading.Thread(target=time.time).start()
time.sleep(0.5)
sum(range(60_000_000))
if os.fork() == 0:
    work = 'i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; /bin/true; /bin/true; exit'
    threading.Thread(target=lambda: os.execv('/bin/sh', ['sh', '-c', work])).start()
    time.sleep(60)
os.wait()
",
    );
    let shell = format!("python3 {}; times", program.path().display());
    let finished = Profiler::unprivileged()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", &shell])
        .finish();
    let data = finished.any_dataset();
    assert_cpu_matches_wait(&finished, &data);
    let losses = procfs_losses(&data);
    assert!(
        losses.iter().all(|(kind, _)| kind == "counters"),
        "{losses:?}"
    );
    let short: u64 = data.value("SELECT count(*) FROM process WHERE comm = 'true'");
    assert_eq!(short, 2);
}

#[test]
fn cpu_time_of_short_lived_processes_is_exact() {
    let script = "sh -c 'i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done'; times";
    let finished = Profiler::unprivileged()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", script])
        .finish();
    assert_cpu_matches_wait(&finished, &finished.dataset());
}

/// At a higher `kernel.perf_event_paranoid`, or in a container whose seccomp filter denies it.
#[test]
fn without_perf_events_the_shortfall_is_counted() {
    let (_copy, script) = demo();
    let wrapper = denying("perf_event_open");
    let finished = Profiler::unprivileged_in(&wrapper.each_ref().map(String::as_str))
        .args(["-i", "200ms"])
        .command(&["sh", "-c", &script])
        .finish();
    assert_eq!(finished.code(), 7, "{}", finished.stderr);
    let data = finished.any_dataset();
    assert_cpu_matches_wait(&finished, &data);
    let (seen, long): (u64, u64) =
        data.row("SELECT count(*), count(*) FILTER (comm = 'sha256sum') FROM process");
    assert_eq!(long, 4, "they live for seconds");
    let missed: u64 = data.value(
        "SELECT sum(dropped)::UBIGINT FROM overhead WHERE component_kind = 'procfs' AND component = 'processes'",
    );
    // Other processes of the node count too.
    assert!(seen + missed >= 527, "{seen} seen, {missed} missed");
    assert!(
        finished.stderr.contains("perf_event_open"),
        "{}",
        finished.stderr
    );
    let line = format!("{missed} processes and threads at most lost");
    assert!(finished.stderr.contains(&line), "{}", finished.stderr);
}

#[test]
fn strict_requires_the_records_of_all_processes() {
    let wrapper = denying("perf_event_open");
    let strict = |profiler: Profiler| {
        profiler
            .args(["--strict", "--source", "process,usage,sched,region"])
            .command(&["true"])
            .finish()
    };
    let denied = strict(Profiler::unprivileged_in(
        &wrapper.each_ref().map(String::as_str),
    ));
    denied.assert_refused(6, "perf_event_open");
    strict(Profiler::unprivileged()).dataset().assert_complete();
}

/// The parent of a process that is orphaned may not know its exit code; the profiler does.
#[test]
fn orphans_have_an_exit_code() {
    // `cat` reads until the orphan has closed the pipe, shortly before its end.
    let script = "(sleep 0.5; exit 3) & sh -c '(sleep 0.3; exit 4) & exit 5' | cat; \
                  sh -c '(sleep 0.4; kill -KILL $(exec sh -c \"echo \\$PPID\")) & exit 6' | cat; \
                  sleep 0.5; exit 2";
    let finished = Profiler::unprivileged()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", script])
        .finish();
    assert_eq!(finished.code(), 2, "{}", finished.stderr);
    let data = finished.any_dataset();
    let mut known: Vec<(Option<i32>, Option<i32>)> = data.rows(
        "SELECT exit_code, exit_signal FROM process WHERE coalesce(exit_code, exit_signal) > 1",
    );
    known.sort_unstable();
    for expected in [(Some(2), None), (Some(4), None), (None, Some(9))] {
        assert!(known.contains(&expected), "{known:?}");
    }
}

#[test]
fn regions_are_measured() {
    // The binary is in the directory of the output.
    let script = r"p=$(dirname $(readlink /proc/$PPID/exe))/profiler
        $p mark start work; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; times; $p mark end work; sleep 0.2";
    let finished = Profiler::unprivileged()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", script])
        .finish();
    let data = finished.dataset();
    let (cpu, late, later): (f64, f64, f64) = data.row(
        "SELECT (u.user_ns + u.system_ns) / 1e9, greatest(u.start_offset_ns, 0) / 1e9, \
         greatest(u.end_offset_ns, 0) / 1e9 FROM region_usage u",
    );
    let own = printed_times(finished.stdout.lines().next().expect("times"));
    // `times` has steps of 10 ms; the two marks are part of the region or just outside. What happens
    // until the first reading is not.
    let (least, most) = (0.8 * own - 0.04 - late, 1.2 * own + 0.1 + later);
    assert!(
        (least..most).contains(&cpu) && cpu > 0.0,
        "{cpu} s, not {least} to {most} s"
    );
}

#[test]
fn own_processes_of_the_node_are_profiled() {
    let finished = Profiler::unprivileged()
        .args(["--node", "-i", "100ms", "-d", "500ms"])
        .finish();
    let data = finished.dataset();
    let users: Vec<u32> = data
        .rows::<(u32,)>("SELECT DISTINCT uid FROM process")
        .into_iter()
        .map(|(uid,)| uid)
        .collect();
    assert_eq!(users, [65534]);
    for table in ["system", "cpu", "timeline", "disk"] {
        let rows: u64 = data.value(&format!("SELECT count(*) FROM {table}"));
        assert!(rows > 0, "{table}");
    }
}

/// The lock is not in `$TMPDIR`, which can differ between the steps of a job.
#[test]
fn second_profiler_with_another_tmpdir_is_refused() {
    let options = ["--run-id", "one", "--source", "process", "-i", "100ms"];
    let target = ProcessGroup::start(Command::new("sleep").arg("60").uid(65534));
    let first = Profiler::unprivileged()
        .args(options)
        .pid(target.pid())
        .start();
    let run = first.run_dir();
    let out = run.parent().expect("the output directory");
    let directory = out.parent().expect("that of the program");
    let own = directory.join("tmp");
    fs::create_dir(&own).expect("made");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).expect("our directory");
    let mut command = Command::new(directory.join("profiler"));
    command.args(["run", "--out"]).arg(out);
    command.uid(65534).gid(65534).env("TMPDIR", own);
    let second = Profiler::from_command(command, out)
        .args(options)
        .pid(target.pid())
        .finish();
    let message = format!("process {} already profiles", first.pid());
    assert!(second.stderr.contains(&message), "{}", second.stderr);
    first.interrupt();
}

/// Software events, which every machine has.
#[test]
fn events_are_counted_in_user_mode() {
    let touch = "head -c 20M /dev/zero | tail -c 20M >/dev/null; times";
    let finished = Profiler::unprivileged()
        .args([
            "-i",
            "100ms",
            "--events",
            "page-faults,context-switches,task-clock",
        ])
        .command(&["sh", "-c", touch])
        .finish();
    let data = finished.dataset();
    let events: Vec<(String, f64)> =
        data.rows("SELECT event, sum(\"count\") FROM perf_event GROUP BY 1 ORDER BY 1");
    // A switch happens in the kernel: null, not 0.
    let names: Vec<&str> = events.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["page-faults", "task-clock"]);
    let (counted, waited) = (events[1].1 / 1e9, printed_times(&finished.stdout));
    assert_cpu(counted, waited, &data, 0.1);
    let manifest = data.manifest();
    let sources = manifest["sources"].as_array().expect("a list");
    let perf = sources
        .iter()
        .find(|source| source["name"] == "perf")
        .expect("perf");
    assert_eq!(perf["status"], "limited");
    let why = perf["why"].as_str().expect("a reason");
    assert!(
        why.contains("user mode only") && why.contains("context-switches"),
        "{why}"
    );
}

/// Threads and processes that exist before the profiler starts, of a program that creates both.
const THREADS: &str = r"
import os, subprocess, threading, time
def work():
    while True:
        subprocess.run(['/bin/true'])
threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
for thread in threads: thread.start()
time.sleep(600)
";

#[test]
fn threads_of_a_running_process_are_followed() {
    let nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let python = ["/usr/bin/python3", "-c", THREADS];
    let target = ProcessGroup::spawn(&[&nobody[..], &python[..]].concat());
    wait_until("it has started its threads", || {
        thread_ids(target.pid()).len() == 5
    });
    let begin = procfs::wall_ns();
    let finished = Profiler::unprivileged()
        .args(["-i", "200ms", "-d", "1s"])
        .pid(target.pid())
        .finish();
    let data = finished.dataset();
    // All that were created during the run, and up to one for each thread from before it.
    let (children, unknown): (u64, u64) = data.row(
        "SELECT count(*), count(*) FILTER (started_by IS NULL) FROM process \
         WHERE comm IN ('true', 'python3') AND ppid IS NOT NULL",
    );
    let elapsed = procfs::wall_ns() - begin;
    assert!(children > 20, "{children} in {elapsed} ns");
    assert!(unknown <= 6, "{unknown} of {children} were not recorded");
    let lost: u64 = data.value(
        "SELECT coalesce(sum(dropped), 0)::UBIGINT FROM overhead \
         WHERE component_kind = 'procfs' AND component != 'counters'",
    );
    assert_eq!(lost, 0);
}

/// A command with 50 short-lived processes, which exits with 9.
const FIFTY: &str = "i=0; while [ $i -lt 50 ]; do /bin/true; i=$((i+1)); done; exit 9";

#[track_caller]
fn assert_about_50_percent(profiler: Profiler) {
    let finished = profiler
        .args(["-i", "100ms"])
        .command(&["sh", "-c", FIFTY])
        .finish();
    assert_eq!(finished.code(), 9, "{}", finished.stderr);
    let data = finished.any_dataset();
    data.assert_complete();
    let (all, short, ended): (u64, u64, u64) = data.row(
        "SELECT count(*), count(*) FILTER (comm = 'true' AND started_by = 'sh'), count(end_ts) FROM process",
    );
    assert_eq!((all, short, ended), (51, 50, 51), "{}", finished.stderr);
    for table in ["timeline", "system", "cpu"] {
        let rows: u64 = data.value(&format!("SELECT count(*) FROM {table}"));
        assert!(rows > 0, "{table}");
    }
}

#[test]
fn pid_namespace_without_sys() {
    let script = "mount -t tmpfs none /sys && exec \"$@\"";
    let wrapper = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        script,
        "sh",
    ];
    assert_about_50_percent(Profiler::unprivileged_in(&wrapper));
}

#[test]
fn read_only_sys() {
    let script = "mount -o remount,bind,ro /sys && exec \"$@\"";
    let wrapper = ["unshare", "--mount", "sh", "-c", script, "sh"];
    assert_about_50_percent(Profiler::unprivileged_in(&wrapper));
}

/// Root of a user namespace, as in a rootless container, has all capabilities there, and none on
/// the node.
#[test]
fn user_namespace() {
    let nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let namespace = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let wrapper = [&nobody[..], &namespace].concat();
    assert_about_50_percent(Profiler::in_directory_for_all(&wrapper));
}

/// Processes of another user are known from /proc only.
#[test]
fn set_uid_program_has_nulls() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let program = directory.path().join("sleep");
    fs::copy("/bin/sleep", &program).expect("a copy");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(directory.path(), mode(0o755)).expect("our directory");
    fs::set_permissions(&program, mode(0o4755)).expect("our file");
    let script = format!("/bin/true; {} 0.7; /bin/true; exit 3", program.display());
    let finished = Profiler::unprivileged()
        .args(["-i", "100ms"])
        .command(&["sh", "-c", &script])
        .finish();
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    let data = finished.any_dataset();
    let processes: u64 = data.value("SELECT count(*) FROM process");
    assert_eq!(processes, 4);
    let (ms, read, cpu): (i64, Option<u64>, Option<u64>) = data.row(
        "SELECT (epoch_ns(end_ts) - epoch_ns(start_ts)) // 1000000, read_chars, oncpu_ns \
         FROM process WHERE comm = 'sleep'",
    );
    assert!(ms >= 600, "{ms} ms");
    // Its end is noticed by the next sample.
    let (after, longest): (i64, i64) = data.row(
        "SELECT (epoch_ns(max(s.end_ts)) - epoch_ns(max(t.start_ts))) // 1000000, \
         (SELECT max(interval_ns)::BIGINT // 1000000 FROM system) FROM process s, process t \
         WHERE s.comm = 'sleep' AND t.comm = 'true'",
    );
    assert!(
        after <= longest + 100,
        "it ended {after} ms after the start of the next process, samples are at most {longest} ms apart"
    );
    assert!(
        read.is_none() && cpu.is_some_and(|cpu| cpu > 0),
        "{read:?} {cpu:?}"
    );
    let unrecorded: u64 = data.value(
        "SELECT sum(dropped)::UBIGINT FROM overhead WHERE component_kind = 'procfs' AND component = 'descendants'",
    );
    assert_eq!(unrecorded, 1, "{}", finished.stderr);
}
