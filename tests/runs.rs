//! Running the profiler.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::{dataset::Dataset, patience, setting};

/// A profiler that is to be started; its output goes to a directory of its own.
pub struct Profiler {
    command: Command,
    out: Out,
}

/// Where the runs are, for as long as somebody looks at them.
struct Out {
    path: PathBuf,
    _directory: Option<TempDir>,
}

impl Profiler {
    /// `profiler run --out DIR`.
    pub fn new() -> Self {
        Self::within(&[])
    }

    /// The same, executed by a program that prepares its surroundings: `wrapper… profiler run --out DIR`.
    pub fn within(wrapper: &[&str]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("out");
        Self::prepared(
            wrapper,
            Out {
                path,
                _directory: Some(directory),
            },
        )
    }

    /// A profiler that goes before all others on the CPUs, so that what else runs here cannot make it late.
    pub fn undelayed() -> Self {
        Self::within(&["chrt", "--fifo", "1"])
    }

    /// `profiler run --out PATH`, for output that fails.
    pub fn writing_to(path: &Path) -> Self {
        Self::prepared(
            &[],
            Out {
                path: path.to_owned(),
                _directory: None,
            },
        )
    }

    /// A command that becomes a profiler, which writes to PATH.
    pub fn instead(command: Command, path: &Path) -> Self {
        Self {
            command,
            out: Out {
                path: path.to_owned(),
                _directory: None,
            },
        }
    }

    fn prepared(wrapper: &[&str], out: Out) -> Self {
        let binary = setting("PROFILER_BIN");
        let words = [wrapper, &[&binary, "run", "--out"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&out.path);
        Self { command, out }
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// `--pid PID`.
    #[must_use]
    pub fn pid(self, pid: u32) -> Self {
        self.args(["--pid", &pid.to_string()])
    }

    /// `-- COMMAND ARGS…`.
    #[must_use]
    pub fn command(self, command: &[&str]) -> Self {
        self.args(["--"]).args(command)
    }

    /// Runs it to its end.
    pub fn finish(self) -> Finished {
        self.spawn().finish()
    }

    /// Starts it, and returns once it is attached and has taken its baseline.
    pub fn start(self) -> Running {
        let mut running = self.spawn();
        running.wait_for("profiling ");
        running
    }

    /// Starts it.
    pub fn spawn(mut self) -> Running {
        let mut child = Kept::start(
            self.command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        let stderr = BufReader::new(child.0.stderr.take().expect("a pipe"));
        Running {
            child,
            stderr,
            said: String::new(),
            out: self.out,
        }
    }
}

impl Default for Profiler {
    fn default() -> Self {
        Self::new()
    }
}

/// A profiler at work.
pub struct Running {
    child: Kept,
    stderr: BufReader<std::process::ChildStderr>,
    said: String,
    out: Out,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// What it has said on stderr so far.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Waits until it says something on stderr.
    pub fn wait_for(&mut self, text: &str) {
        loop {
            let begin = self.said.len();
            let read = self.stderr.read_line(&mut self.said);
            let length = read.expect("stderr is readable");
            assert!(length != 0, "it ended without {text:?}:\n{}", self.said);
            if self.said[begin..].contains(text) {
                return;
            }
        }
    }

    /// The directory of its run, which appears before it says that it is profiling.
    pub fn run_dir(&self) -> PathBuf {
        sole_run(&self.out)
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid_of(self.pid()), signal).expect("it is alive");
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().expect("our child").is_some()
    }

    /// Ctrl-C, then [`Self::finish`].
    pub fn interrupt(self) -> Finished {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Waits for its end; after half a minute, kills it.
    pub fn finish(mut self) -> Finished {
        let group = pid_of(self.pid());
        let (done, ended) = channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(30) * patience())
                == Err(RecvTimeoutError::Timeout)
            {
                let _ = kill_process_group(group, Signal::KILL);
            }
        });
        let mut rest = Vec::new();
        self.stderr
            .read_to_end(&mut rest)
            .expect("stderr is readable");
        self.said += &String::from_utf8_lossy(&rest);
        let mut stdout = String::new();
        let mut pipe = self.child.0.stdout.take().expect("a pipe");
        pipe.read_to_string(&mut stdout).expect("text");
        let status = self.child.0.wait().expect("our child");
        drop(done);
        Finished {
            status,
            stdout,
            stderr: self.said,
            out: self.out,
        }
    }
}

/// A profiler that has ended.
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it (or the command) said on stdout.
    pub stdout: String,
    /// What it (or the command) said on stderr.
    pub stderr: String,
    out: Out,
}

impl Finished {
    /// Exit code as a shell shows it.
    pub fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).expect("a code or a signal")
    }

    /// The dataset, when it ended well.
    pub fn dataset(&self) -> Dataset {
        assert_eq!(self.code(), 0, "{}", self.stderr);
        self.any_dataset()
    }

    /// The dataset, however it ended.
    pub fn any_dataset(&self) -> Dataset {
        Dataset::new(sole_run(&self.out))
    }

    /// Checks that it failed as documented: exit code, one line on stderr that says `what`, nothing left behind.
    pub fn assert_refused(&self, code: i32, what: &str) {
        assert_eq!(self.code(), code, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        let named = self.stderr.starts_with("profiler: ") && self.stderr.contains(what);
        assert!(named, "says {:?}, not {what:?}", self.stderr);
        self.assert_nothing_left();
    }

    /// Whether there is a run directory.
    pub fn has_run(&self) -> bool {
        !runs(&self.out).is_empty()
    }

    /// Checks that there is no run directory.
    pub fn assert_nothing_left(&self) {
        let left: Vec<_> = runs(&self.out);
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

fn runs(out: &Out) -> Vec<PathBuf> {
    std::fs::read_dir(&out.path)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

fn sole_run(out: &Out) -> PathBuf {
    let mut runs = runs(out);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(
            begin.elapsed() < Duration::from_secs(20) * patience(),
            "waited for: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A child process that, with all that it has started, does not outlive the test.
pub struct Kept(pub Child);

impl Kept {
    /// Starts it in a process group of its own.
    pub fn spawn(command: &[&str]) -> Self {
        Self::start(
            Command::new(command[0])
                .args(&command[1..])
                .stdin(Stdio::null()),
        )
    }

    /// The same, of a command with more settings.
    pub fn start(command: &mut Command) -> Self {
        let child = command.process_group(0).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = kill_process_group(pid_of(self.pid()), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A pid as system calls take it.
pub fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("a pid")
}
