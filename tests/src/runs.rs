//! Runs of the profiler.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::{dataset::Dataset, setting};

/// End of every wait, for what hangs: load delays nothing that long. nextest ends a test later, and
/// without a message.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// A profiler to be started, with its own output directory.
pub struct Profiler {
    command: Command,
    out: Out,
}

/// The output directory, removed when the last user drops it.
struct Out {
    path: PathBuf,
    _directory: Option<TempDir>,
}

impl Profiler {
    /// `profiler run --out DIR`.
    pub fn new() -> Self {
        Self::wrapped_in(&[])
    }

    /// `WRAPPER… profiler run --out DIR`: another program prepares the environment first.
    pub fn wrapped_in(wrapper: &[&str]) -> Self {
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

    /// A profiler of user nobody, without capabilities.
    pub fn unprivileged() -> Self {
        Self::unprivileged_in(&[])
    }

    /// `WRAPPER… setpriv … profiler run --out DIR`: a profiler of user nobody, for which a program
    /// of root prepares the environment.
    pub fn unprivileged_in(wrapper: &[&str]) -> Self {
        let nobody = [
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ];
        Self::in_directory_for_all(&[wrapper, &nobody].concat())
    }

    /// `WRAPPER… profiler run --out DIR`, with a copy of the profiler and an output directory that
    /// all users can use.
    pub fn in_directory_for_all(wrapper: &[&str]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let binary = directory.path().join("profiler");
        fs::copy(setting("PROFILER_BIN"), &binary).expect("a copy");
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), all).expect("our directory");
        let path = directory.path().join("out");
        let mut command = Command::new(wrapper[0]);
        command
            .args(&wrapper[1..])
            .arg(binary)
            .args(["run", "--out"])
            .arg(&path);
        let out = Out {
            path,
            _directory: Some(directory),
        };
        Self { command, out }
    }

    /// A profiler with real-time priority, so that other processes do not delay it.
    pub fn realtime() -> Self {
        Self::wrapped_in(&["chrt", "--fifo", "1"])
    }

    /// `profiler run --out PATH`.
    pub fn writing_to(path: &Path) -> Self {
        Self::prepared(
            &[],
            Out {
                path: path.to_owned(),
                _directory: None,
            },
        )
    }

    /// A command that executes a profiler with the output directory `path`.
    pub fn from_command(command: Command, path: &Path) -> Self {
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

    /// Detaches it from the terminal of the tests, as a service.
    #[must_use]
    pub fn without_terminal(mut self) -> Self {
        without_terminal(&mut self.command);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    #[must_use]
    pub fn pid(self, pid: u32) -> Self {
        self.args(["--pid", &pid.to_string()])
    }

    /// `-- COMMAND ARGS…`.
    #[must_use]
    pub fn command(self, command: &[&str]) -> Self {
        self.args(["--"]).args(command)
    }

    /// Runs it until it ends.
    pub fn finish(self) -> Finished {
        self.spawn().finish()
    }

    /// Starts it; returns once it is attached and has read the baselines.
    pub fn start(self) -> Running {
        let mut running = self.spawn();
        running.wait_for("profiling ");
        running
    }

    /// Starts it without waiting.
    pub fn spawn(mut self) -> Running {
        let mut child = ProcessGroup::start(
            self.command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        let stderr_pipe = BufReader::new(child.0.stderr.take().expect("a pipe"));
        Running {
            child,
            stderr_pipe,
            stderr: String::new(),
            out: self.out,
        }
    }
}

impl Default for Profiler {
    fn default() -> Self {
        Self::new()
    }
}

/// A running profiler.
pub struct Running {
    child: ProcessGroup,
    stderr_pipe: BufReader<std::process::ChildStderr>,
    stderr: String,
    out: Out,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Its stderr up to the last line waited for.
    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    /// Waits until it prints a line with this text on stderr.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let watchdog = Watchdog::start(self.pid());
        loop {
            let begin = self.stderr.len();
            let read = self.stderr_pipe.read_line(&mut self.stderr);
            let length = read.expect("stderr is readable");
            assert!(
                length != 0,
                "stderr ended without {text:?}:\n{}",
                self.stderr
            );
            if self.stderr[begin..].contains(text) {
                break;
            }
        }
        watchdog.stop(&self.stderr);
    }

    /// Waits until it has reported `text`, before or after the last [`wait_for`](Self::wait_for).
    pub fn wait_until_reported(&mut self, text: &str) {
        if !self.stderr.contains(text) {
            self.wait_for(text);
        }
    }

    /// The directory of its run, which exists before the message `profiling`.
    pub fn run_dir(&self) -> PathBuf {
        sole_run(&self.out)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid_of(self.pid()), signal).expect("it is alive");
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().expect("our child").is_some()
    }

    /// Sends SIGINT, then [`Self::finish`].
    pub fn interrupt(self) -> Finished {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Kills it, and then its command, which would outlive it and keep its output open.
    pub fn kill(self) -> Finished {
        self.signal(Signal::KILL);
        let _ = kill_process_group(pid_of(self.pid()), Signal::KILL);
        self.finish()
    }

    /// Waits until it ends.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let watchdog = Watchdog::start(self.pid());
        let mut rest = Vec::new();
        self.stderr_pipe
            .read_to_end(&mut rest)
            .expect("stderr is readable");
        self.stderr += &String::from_utf8_lossy(&rest);
        let mut stdout = String::new();
        let mut pipe = self.child.0.stdout.take().expect("a pipe");
        pipe.read_to_string(&mut stdout).expect("text");
        let status = self.child.0.wait().expect("our child");
        watchdog.stop(&self.stderr);
        Finished {
            status,
            stdout,
            stderr: self.stderr,
            out: self.out,
        }
    }
}

/// Kills a process group that hangs, so that a wait for its output ends.
struct Watchdog {
    done: Sender<()>,
    /// Returns whether it has killed the group.
    thread: JoinHandle<bool>,
}

impl Watchdog {
    fn start(group: u32) -> Self {
        let (done, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let hangs = ended.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout);
            if hangs {
                let _ = kill_process_group(pid_of(group), Signal::KILL);
            }
            hangs
        });
        Self { done, thread }
    }

    #[track_caller]
    fn stop(self, stderr: &str) {
        drop(self.done);
        let killed = self.thread.join().expect("no panic");
        assert!(!killed, "it was killed after {TIMEOUT:?}:\n{stderr}");
    }
}

/// A profiler that has ended.
pub struct Finished {
    pub status: ExitStatus,
    /// Stdout of the profiler and its command.
    pub stdout: String,
    /// Stderr of the profiler and its command.
    pub stderr: String,
    out: Out,
}

impl Finished {
    /// Exit code as a shell reports it.
    pub fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).expect("a code or a signal")
    }

    /// The dataset; asserts that the profiler succeeded.
    pub fn dataset(&self) -> Dataset {
        assert_eq!(self.code(), 0, "{}", self.stderr);
        self.any_dataset()
    }

    /// The dataset, whatever the exit code.
    pub fn any_dataset(&self) -> Dataset {
        Dataset::new(sole_run(&self.out))
    }

    /// Asserts that it refused to start: exit code, one line on stderr that contains `text`, no
    /// run.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, text: &str) {
        assert_eq!(self.code(), code, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        let expected = self.stderr.starts_with("profiler: ") && self.stderr.contains(text);
        assert!(expected, "stderr is {:?}, without {text:?}", self.stderr);
        self.assert_nothing_left();
    }

    /// Whether there is a run directory.
    pub fn has_run(&self) -> bool {
        !runs(&self.out).is_empty()
    }

    /// Asserts that there is no run directory.
    pub fn assert_nothing_left(&self) {
        let left: Vec<_> = runs(&self.out);
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

fn runs(out: &Out) -> Vec<PathBuf> {
    fs::read_dir(&out.path)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("an entry").path())
        // schema.json and README.md are beside the runs.
        .filter(|path| path.is_dir())
        .collect()
}

fn sole_run(out: &Out) -> PathBuf {
    let mut runs = runs(out);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

/// Waits until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        let waited = begin.elapsed();
        assert!(waited < TIMEOUT, "{what}: not within {waited:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes the command give up the terminal of the tests, if they have one.
pub fn without_terminal(command: &mut Command) {
    let detach = || {
        // SAFETY: system calls only. Without a terminal, the first one fails.
        unsafe {
            let terminal = libc::open(c"/dev/tty".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if terminal >= 0 && libc::ioctl(terminal, libc::TIOCNOTTY) != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: `detach` only makes system calls.
    unsafe { command.pre_exec(detach) };
}

/// A child process in its own process group, which is killed when this is dropped.
pub struct ProcessGroup(pub Child);

impl ProcessGroup {
    /// Starts a command without stdin.
    pub fn spawn(command: &[&str]) -> Self {
        Self::start(
            Command::new(command[0])
                .args(&command[1..])
                .stdin(Stdio::null()),
        )
    }

    /// Starts a prepared command.
    pub fn start(command: &mut Command) -> Self {
        let child = command.process_group(0).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let _ = kill_process_group(pid_of(self.pid()), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Converts a pid for `rustix`.
pub fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("a pid")
}
