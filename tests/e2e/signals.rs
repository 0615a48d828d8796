//! Signals to the profiler: each reaches the command once, however it is sent.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
};

use e2e::{
    dataset::{self, Dataset},
    procfs::{children, has_ended},
    runs::{ProcessGroup, Profiler, Running, pid_of, wait_until},
    setting,
    stall_detector::be_realtime,
};
use rustix::process::{Signal, kill_process, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::service::{ALICE, Service};

/// Writes each signal that arrives into a file.
const RECORDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/record_signals.py");

/// What is passed on and does not end the run, in the order in which it is sent.
const SIGNALS: [(Signal, &str); 13] = [
    (Signal::USR1, "SIGUSR1"),
    (Signal::USR2, "SIGUSR2"),
    (Signal::ALARM, "SIGALRM"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::WINCH, "SIGWINCH"),
    (Signal::URG, "SIGURG"),
    (Signal::CONT, "SIGCONT"),
    (Signal::XCPU, "SIGXCPU"),
    (Signal::VTALARM, "SIGVTALRM"),
    (Signal::PROF, "SIGPROF"),
    (Signal::IO, "SIGIO"),
    (Signal::POWER, "SIGPWR"),
    (Signal::USR1, "SIGUSR1"),
];

/// A file with the signals that a command has got.
pub struct Record {
    directory: TempDir,
}

/// Ends a command that has outlived its profiler.
impl Drop for Record {
    fn drop(&mut self) {
        let lines = self.lines();
        let pid = lines.iter().find_map(|line| line.strip_prefix("process "));
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else {
            return;
        };
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let [_, recorder, _] = self.command();
        if command.split(|byte| *byte == 0).nth(1) == Some(recorder.as_bytes()) {
            let _ = kill_process(pid_of(pid), Signal::KILL);
        }
    }
}

impl Record {
    pub fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(directory.path(), all).expect("our directory");
        fs::copy(RECORDER, directory.path().join("recorder.py")).expect("a copy");
        Self { directory }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("signals")
    }

    /// The command that writes it.
    pub fn command(&self) -> [String; 3] {
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        let recorder = text(self.directory.path().join("recorder.py"));
        let python = setting("PROFILER_TEST_PYTHON");
        [python, recorder, text(self.path())]
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for a line that begins with this text.
    pub fn wait_for(&self, begin: &str) {
        wait_until(begin, || {
            self.lines().iter().any(|line| line.starts_with(begin))
        });
    }

    /// The rest of the line that begins with this word.
    fn inherited(&self, word: &str) -> String {
        let lines = self.lines();
        let rest = lines.iter().find_map(|line| line.strip_prefix(word));
        rest.expect("a line").trim().to_owned()
    }

    /// Waits until the command records. Returns its parent, the profiler.
    pub fn profiler(&self) -> u32 {
        self.wait_for("blocked");
        self.inherited("parent").parse().expect("a pid")
    }

    /// The signals so far.
    pub fn signals(&self) -> Vec<String> {
        self.lines().split_off(4)
    }

    /// Starts a profiler of the command, and waits until it records.
    fn start(&self, profiler: Profiler) -> Running {
        let command = self.command();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let running = profiler
            .args(["-i", "100ms", "--source", "process"])
            .command(&command)
            .start();
        self.wait_for("blocked");
        running
    }
}

/// Sends [`SIGNALS`] one after the other, and then SIGTERM to the profiler alone. Each arrives once.
#[track_caller]
fn assert_each_arrives_once(record: &Record, profiler: u32, mut send: impl FnMut(Signal)) {
    for (number, (signal, _)) in SIGNALS.iter().enumerate() {
        send(*signal);
        wait_until("the signal", || record.signals().len() > number);
    }
    // Passed on after the decisions about those before it.
    kill_process(pid_of(profiler), Signal::TERM).expect("it is alive");
    record.wait_for("SIGTERM");
    let expected: Vec<&str> = SIGNALS
        .iter()
        .map(|(_, name)| *name)
        .chain(["SIGTERM"])
        .collect();
    assert_eq!(record.signals(), expected);
}

#[test]
fn signals_to_the_profiler_are_passed_on() {
    let record = Record::new();
    let running = record.start(Profiler::new());
    let profiler = running.pid();
    assert_each_arrives_once(&record, profiler, |signal| running.signal(signal));
    let finished = running.finish();
    assert_eq!(finished.code(), 9, "{}", finished.stderr);
    finished.any_dataset().assert_complete();
}

/// As `kill %1`, `timeout` and `mpirun` do.
#[test]
fn signals_to_the_group_are_not_repeated() {
    let record = Record::new();
    let running = record.start(Profiler::new());
    let group = pid_of(running.pid());
    assert_each_arrives_once(&record, running.pid(), |signal| {
        kill_process_group(group, signal).expect("it is alive");
    });
    let finished = running.finish();
    assert_eq!(finished.code(), 9, "{}", finished.stderr);
}

/// As Slurm does without cgroups: one process of the group after the other.
#[test]
fn signals_to_each_process_are_not_repeated() {
    let record = Record::new();
    let running = record.start(Profiler::new());
    let profiler = running.pid();
    assert_each_arrives_once(&record, profiler, |signal| {
        let processes = [vec![profiler], children(profiler)].concat();
        // After 100 ms without the others, the signal is for the profiler alone.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                be_realtime();
                for pid in &processes {
                    kill_process(pid_of(*pid), signal).expect("it is alive");
                }
            });
        });
    });
    let finished = running.finish();
    assert_eq!(finished.code(), 9, "{}", finished.stderr);
}

/// A command in a group of its own does not get what is sent to that of the profiler.
#[test]
fn command_in_another_group_gets_signals() {
    let record = Record::new();
    let [python, recorder, file] = record.command();
    let running = Profiler::new()
        .args(["--source", "process"])
        .command(&["setsid", &python, &recorder, &file])
        .start();
    record.wait_for("blocked");
    let group = pid_of(running.pid());
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::TERM, "SIGTERM")] {
        kill_process_group(group, signal).expect("it is alive");
        record.wait_for(name);
    }
    assert_eq!(running.finish().code(), 9);
    assert_eq!(record.signals(), ["SIGUSR1", "SIGTERM"]);
}

#[test]
fn realtime_signals_are_counted() {
    let record = Record::new();
    let running = record.start(Profiler::new());
    let number = libc::SIGRTMIN() + 3;
    for _ in 0..3 {
        // SAFETY: a system call.
        let sent = unsafe { libc::kill(running.pid().cast_signed(), number) };
        assert_eq!(sent, 0);
    }
    // SIGTERM comes before those that are pending.
    wait_until("all have arrived", || record.signals().len() == 3);
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 9);
    let name = format!("RT{number}");
    assert_eq!(record.signals(), [&name, &name, &name, "SIGTERM"]);
}

/// timeout(1) signals its child and then the group.
#[test]
fn timeout_ends_the_command_in_order() {
    let record = Record::new();
    let [python, recorder, file] = record.command();
    let finished = Profiler::wrapped_in(&["timeout", "--verbose", "3"])
        .args(["--source", "process"])
        .command(&[&python, &recorder, &file])
        .finish();
    assert_eq!(finished.code(), 124, "{}", finished.stderr);
    // timeout lets the group continue after the signal.
    let mut signals = record.signals();
    signals.retain(|signal| signal != "SIGCONT");
    assert_eq!(signals, ["SIGTERM"]);
    let data = finished.any_dataset();
    data.assert_complete();
    let code: i32 =
        data.value("SELECT exit_code FROM process WHERE pid = (SELECT min(pid) FROM process)");
    assert_eq!(code, 9);
}

/// A command that ignores SIGUSR1 and blocks SIGUSR2 in its parent still does so.
#[test]
fn command_inherits_ignored_and_blocked_signals() {
    let record = Record::new();
    let script = "import os, signal, sys
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGALRM])
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])";
    let python = setting("PROFILER_TEST_PYTHON");
    let running = record.start(Profiler::wrapped_in(&[&python, "-c", script]));
    assert_eq!(record.inherited("ignored"), "SIGHUP SIGUSR1");
    assert_eq!(record.inherited("blocked"), "SIGUSR2 SIGALRM");
    running.signal(Signal::HUP);
    running.signal(Signal::USR2);
    record.wait_for("SIGUSR2");
    // Ignored by the command: neither does it count as an interruption.
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 9);
    assert_eq!(record.signals(), ["SIGUSR2", "SIGTERM"]);
}

#[test]
fn hangup_under_nohup_is_ignored() {
    let record = Record::new();
    let running = record.start(Profiler::wrapped_in(&["nohup"]));
    running.signal(Signal::HUP);
    running.signal(Signal::USR1);
    record.wait_for("SIGUSR1");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 9);
    assert_eq!(record.signals(), ["SIGUSR1", "SIGTERM"]);

    // Also before the command exists.
    let record = Record::new();
    let script = "import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print('ignored', file=sys.stderr, flush=True)
os.execv(sys.argv[1], sys.argv[1:])";
    let [python, recorder, file] = record.command();
    let mut running = Profiler::wrapped_in(&[&python, "-c", script])
        .args(["--source", "process"])
        .command(&[&python, &recorder, &file])
        .spawn();
    running.wait_for("ignored");
    wait_until("it records", || {
        running.signal(Signal::HUP);
        record
            .lines()
            .iter()
            .any(|line| line.starts_with("blocked"))
    });
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 9);
    assert_eq!(record.signals(), ["SIGTERM"]);

    let workload = idle();
    let mut node = Profiler::wrapped_in(&["nohup"])
        .args(["--source", "system"])
        .pid(workload.pid())
        .start();
    node.signal(Signal::HUP);
    drop(workload);
    wait_until("the end of the target", || node.has_ended());
    node.finish().dataset().assert_complete();
}

/// A process that does nothing.
fn idle() -> ProcessGroup {
    ProcessGroup::spawn(&["sleep", "600"])
}

/// What a terminal shows while a profiler of a command, which writes to a file, is the job of its shell.
fn in_terminal(scenario: &str, file: &Path, out: &Path, command: &[String]) -> Value {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (file, out, profiler) = (text(file), text(out), setting("PROFILER_BIN"));
    let words = [
        scenario, &file, &profiler, "run", "-i", "50ms", "--source", "process", "--run-id", "run",
        "--out", &out, "--",
    ];
    let command = command.iter().map(String::as_str);
    let words: Vec<&str> = words.into_iter().chain(command).collect();
    dataset::python("terminal.py", &words)
}

/// Ctrl+Z gives the prompt back, `fg` continues both, and Ctrl+C reaches the command once.
#[test]
fn job_control_of_a_shell() {
    let record = Record::new();
    let out = TempDir::new().expect("a directory");
    let seen = in_terminal("control", &record.path(), out.path(), &record.command());
    assert_eq!(seen["stopped"]["profiler"], "T", "{seen}");
    assert_eq!(seen["stopped"]["python"], "T", "{seen}");
    assert_eq!(record.signals(), ["SIGCONT", "SIGINT", "SIGINT"]);
    let shown = seen["shown"].as_str().expect("text");
    assert!(shown.contains("samples missed: "), "{shown}");
}

/// The profiler's messages do not stop the command: in the background of a terminal with `stty tostop`, the
/// kernel would stop the whole group.
#[test]
fn messages_do_not_stop_a_command_in_the_background() {
    let record = Record::new();
    let out = TempDir::new().expect("a directory");
    let seen = in_terminal("background", &record.path(), out.path(), &record.command());
    assert_eq!(record.signals(), ["SIGTERM"], "{seen}");
    Dataset::new(out.path().join("run")).assert_complete();
}

/// The shell and the kernel send SIGHUP to the job: neither ends the profiling before the command.
#[test]
fn closing_the_terminal_ends_the_run_in_order() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    let script = "echo blocked > \"$0\"; exec sleep 600";
    let command = ["sh", "-c", script, file.to_str().expect("UTF-8")].map(str::to_owned);
    in_terminal("close", &file, directory.path(), &command);
    let run = directory.path().join("run");
    wait_until("the end of the run", || {
        let manifest = fs::read_to_string(run.join("run.json")).unwrap_or_default();
        let manifest: Value = serde_json::from_str(&manifest).unwrap_or_default();
        let profiler = manifest["process"]["pid"].as_u64();
        let profiler = profiler.and_then(|pid| u32::try_from(pid).ok());
        manifest["state"] != "running" && profiler.is_some_and(has_ended)
    });
    let data = Dataset::new(run);
    data.assert_complete();
    assert_eq!(data.manifest()["exit_code"], 128 + Signal::HUP.as_raw());
}

/// What users send to programs that they do not know well must not destroy a run.
#[test]
fn run_without_a_command_survives_or_ends_in_order() {
    let workload = idle();
    let running = Profiler::new()
        .args(["--source", "process"])
        .pid(workload.pid())
        .start();
    for signal in [
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::POWER,
        Signal::WINCH,
    ] {
        running.signal(signal);
    }
    running.signal(Signal::QUIT);
    let finished = running.finish();
    finished.dataset().assert_complete();
    let running = Profiler::new()
        .args(["--source", "process"])
        .pid(workload.pid());
    let running = running.start();
    running.signal(Signal::XCPU);
    let finished = running.finish();
    assert!(finished.stderr.contains("ulimit -t"), "{}", finished.stderr);
    finished.dataset().assert_complete();
}

/// The command outlives its profiling by `--duration`: signals still reach it.
#[test]
fn signals_after_the_duration_are_passed_on() {
    let record = Record::new();
    let mut running = record.start(Profiler::new().args(["-d", "50ms"]));
    running.wait_until_reported("waiting for the command");
    running.signal(Signal::USR1);
    record.wait_for("SIGUSR1");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 9);
    assert_eq!(record.signals(), ["SIGUSR1", "SIGTERM"]);
}

/// At each moment of the start: the profiler has not begun, or the command gets the signal.
#[test]
fn signal_before_the_command_leaves_nothing_behind() {
    for delay in 0..20 {
        let running = Profiler::new()
            .args(["--source", "process"])
            .command(&[
                "sh",
                "-c",
                "trap 'exit 9' USR1; kill -USR1 $PPID; while :; do sleep 0.02; done",
            ])
            .spawn();
        std::thread::sleep(std::time::Duration::from_millis(delay * 5));
        running.signal(Signal::USR1);
        let finished = running.finish();
        let code = finished.code();
        assert!([9, 128 + 10].contains(&code), "{code}: {}", finished.stderr);
        if finished.has_run() {
            finished.any_dataset().assert_complete();
        }
    }
}

/// Sessions that `profiler serve` profiles, and the service itself.
#[test]
fn client_of_the_service_passes_signals_on() {
    let service = Service::start(&[]);
    let record = Record::new();
    let mut command = service.profiler(ALICE, "signals");
    command.args(["--quiet", "--source", "process", "--"]);
    // Other users may not be able to read the Python of the tests.
    let script = format!(
        "trap 'echo USR1 >> {0}' USR1; trap 'echo TERM >> {0}; exit 9' TERM; echo ready > {0};
         while :; do sleep 0.02; done",
        record.path().display()
    );
    command.args(["sh", "-c", &script]).process_group(0);
    let mut client = ProcessGroup::start(&mut command);
    record.wait_for("ready");
    service.signal(Signal::USR1);
    let pid = pid_of(client.pid());
    kill_process(pid, Signal::USR1).expect("it is alive");
    record.wait_for("USR1");
    kill_process_group(pid, Signal::USR1).expect("it is alive");
    wait_until("the second", || record.lines().len() == 3);
    kill_process(pid, Signal::TERM).expect("it is alive");
    let status = client.0.wait().expect("our child");
    assert_eq!(status.code(), Some(9));
    assert_eq!(record.lines(), ["ready", "USR1", "USR1", "TERM"]);
    service.data("signals").assert_complete();
}
