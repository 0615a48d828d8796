//! A profiler that runs beside the benchmark.

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

use crate::shell;

/// The word with which the profiler says that it is attached.
const READY: &str = "profiling";

pub struct Attached {
    child: Child,
    out: PathBuf,
    /// From the start of the program until it was attached.
    pub start: Duration,
}

impl Attached {
    /// Starts `profiler run ARGS` and waits until it is attached.
    pub fn start(profiler: &Path, args: &[String], scratch: &Path) -> Result<Self> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let out = scratch.join("profiles");
        fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
        let mut command = Command::new(profiler);
        command
            .arg("run")
            .args(args)
            .args(["--interval=1s", "--out"])
            .arg(&out);
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
            child,
            out,
            start: Duration::ZERO,
        };
        let mut said = Vec::new();
        loop {
            match lines.recv_timeout(PATIENCE.saturating_sub(started.elapsed())) {
                Ok(line) if line.contains(READY) => break,
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => bail!("`{name}` did not attach: {said:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = this.child.wait()?;
                    bail!("`{name}` failed ({status})\n{}", said.join("\n"));
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
            bail!("the profiler ended with {status}");
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
        let _ = fs::remove_dir_all(&self.out);
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
