//! A profiler, or another tool, that runs beside the benchmark.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell;

/// The word with which the profiler says that it is attached.
const READY: &str = "profiling";

/// The program that is measured.
#[derive(Clone, Copy)]
pub struct Profiler<'a> {
    pub program: &'a Path,
    pub scratch: &'a Path,
}

impl Profiler<'_> {
    /// Starts `profiler run ARGS` and waits until it is attached.
    pub fn attach(&self, args: &[String]) -> Result<Attached> {
        let out = self.scratch.join("profiles");
        fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
        let mut command = Command::new(self.program);
        command
            .arg("run")
            .args(args)
            .args(["--interval=1s", "--out"])
            .arg(&out);
        Attached::start(command, Some(out), |line| line.contains(READY))
    }

    /// The same for a process and its descendants.
    pub fn follow(&self, pid: u32) -> Result<Attached> {
        self.attach(&["--pid".to_owned(), pid.to_string()])
    }

    /// Whether it has a source of that name.
    pub fn has_source(&self, name: &str) -> Result<bool> {
        let mut check = Command::new(self.program);
        let report = shell::stdout(check.args(["check", "--json"]))?;
        let report: Value = serde_json::from_str(&report)?;
        let sources = report["sources"].as_array();
        Ok(sources.is_some_and(|all| all.iter().any(|source| source["source"] == name)))
    }
}

/// A tool that watches what the benchmark runs.
pub struct Attached {
    name: String,
    child: Child,
    out: Option<PathBuf>,
    /// From the start of the program until it was attached.
    pub start: Duration,
}

impl Attached {
    /// Starts the tool and waits for the line on stderr with which it says that it is attached.
    pub fn start(
        mut command: Command,
        out: Option<PathBuf>,
        is_ready: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let name = shell::display(&command);
        let started = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `{name}`"))?;
        let lines = lines_of(&mut child);
        let mut this = Self {
            name,
            child,
            out,
            start: Duration::ZERO,
        };
        let mut said = Vec::new();
        loop {
            match lines.recv_timeout(PATIENCE.saturating_sub(started.elapsed())) {
                Ok(line) if is_ready(&line) => break,
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => bail!("`{}` did not attach: {said:?}", this.name),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = this.child.wait()?;
                    bail!("`{}` failed ({status})\n{}", this.name, said.join("\n"));
                }
            }
        }
        this.start = started.elapsed();
        Ok(this)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Interrupts it, as a user would, and waits for its end.
    pub fn stop(mut self) -> Result<()> {
        let status = self.interrupt()?;
        if !status.success() {
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

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.interrupt();
        if let Some(out) = &self.out {
            let _ = fs::remove_dir_all(out);
        }
    }
}

/// Reads on for as long as the program lives: a full pipe would stop it.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(pipe) = child.stderr.take() {
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // Nobody listens any more once it is attached.
                let _ = sender.send(line);
            }
        });
    }
    receiver
}
