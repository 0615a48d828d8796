//! A profiler or another tool that traces a benchmark.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell;

/// The profiler prints this word when it is attached.
const READY: &str = "profiling";

const SIGINT: i32 = 2;

/// The measured profiler.
#[derive(Clone, Copy)]
pub struct Profiler<'a> {
    pub program: &'a Path,
    pub scratch: &'a Path,
}

impl Profiler<'_> {
    /// Runs `profiler run ARGS` and waits until it is attached.
    pub fn attach(&self, args: &[String]) -> Result<Tracer> {
        let out = self.scratch.join("profiles");
        fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
        let mut command = Command::new(self.program);
        command
            .arg("run")
            .args(args)
            .args(["--interval=1s", "--out"])
            .arg(&out);
        Tracer::start(command, Some(out), |line| line.contains(READY))
    }

    /// Profiles a process and its descendants.
    pub fn follow(&self, pid: u32) -> Result<Tracer> {
        self.attach(&["--pid".to_owned(), pid.to_string()])
    }

    /// Profiles the node.
    pub fn follow_all(&self) -> Result<Tracer> {
        self.attach(&["--node".to_owned()])
    }

    /// Whether the profiler has a source.
    pub fn has_source(&self, name: &str) -> Result<bool> {
        let mut check = Command::new(self.program);
        let report = shell::stdout(check.args(["check", "--json"]))?;
        let report: Value = serde_json::from_str(&report)?;
        let sources = report["sources"].as_array();
        Ok(sources.is_some_and(|all| all.iter().any(|source| source["source"] == name)))
    }
}

/// A running tool.
pub struct Tracer {
    name: String,
    child: Child,
    out: Option<PathBuf>,
    /// Time from its start until it was attached.
    pub start: Duration,
}

impl Tracer {
    /// Starts a tool and waits until it prints a line on stderr that `is_ready` accepts.
    pub fn start(
        mut command: Command,
        out: Option<PathBuf>,
        is_ready: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        const TIMEOUT: Duration = Duration::from_secs(60);
        let started = Instant::now();
        let mut this = Self::spawn(command.stderr(Stdio::piped()), out)?;
        let lines = lines_of(&mut this.child);
        let mut printed = Vec::new();
        loop {
            match lines.recv_timeout(TIMEOUT.saturating_sub(started.elapsed())) {
                Ok(line) if is_ready(&line) => break,
                Ok(line) => printed.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("`{}` did not attach: {printed:?}", this.name)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = this.child.wait()?;
                    bail!("`{}` failed ({status})\n{}", this.name, printed.join("\n"));
                }
            }
        }
        this.start = started.elapsed();
        Ok(this)
    }

    /// Starts a tool.
    pub fn spawn(command: &mut Command, out: Option<PathBuf>) -> Result<Self> {
        let name = shell::display(command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting `{name}`"))?;
        Ok(Self {
            name,
            child,
            out,
            start: Duration::ZERO,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGINT and waits until it has ended.
    pub fn stop(mut self) -> Result<()> {
        let status = self.interrupt()?;
        // Other tools end by the signal; the profiler, which has output, ends in order.
        let is_killed = self.out.is_none() && status.signal() == Some(SIGINT);
        if !status.success() && !is_killed {
            bail!("`{}` ended with {status}", self.name);
        }
        Ok(())
    }

    fn interrupt(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        shell::run(Command::new("kill").args(["-INT", &self.child.id().to_string()]))?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.interrupt();
        if let Some(out) = &self.out {
            let _ = fs::remove_dir_all(out);
        }
    }
}

/// Reads the lines of stderr until the program ends, because a full pipe would block it.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(pipe) = child.stderr.take() {
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // The receiver is dropped when the tool is attached.
                let _ = sender.send(line);
            }
        });
    }
    receiver
}
