//! A tree of nearly idle processes, the load for measurements of the profiler.
//!
//! `xtask sleepers` is the root of the tree. It ends when its stdin is closed, so that no processes
//! remain after the benchmark.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

#[derive(clap::Args)]
pub struct Args {
    /// Number of processes to start; 0 makes this process a leaf
    #[arg(long, default_value_t = 0)]
    processes: u32,
    /// Wakeups per second of a leaf; 0 for none
    #[arg(long, default_value_t = 0)]
    hertz: u32,
}

/// Runs `xtask sleepers`.
pub fn serve(args: &Args) -> Result<()> {
    if args.processes == 0 {
        nap(args.hertz);
    }
    let mut children = Vec::new();
    for index in 0..args.processes {
        let spawned = leaf(index, args.hertz).and_then(|mut command| Ok(command.spawn()?));
        match spawned.with_context(|| format!("starting process {index}")) {
            Ok(child) => children.push(child),
            Err(error) => {
                stop(children);
                return Err(error);
            }
        }
    }
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    stop(children);
    Ok(())
}

/// One of ten leaves wakes up ten times as often and computes for a moment.
fn leaf(index: u32, hertz: u32) -> Result<Command> {
    if hertz == 0 {
        let mut command = Command::new("sleep");
        command.arg("infinity").stdin(Stdio::null());
        return Ok(command);
    }
    let hertz = if index % 10 == 9 { hertz * 10 } else { hertz };
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["sleepers", "--hertz", &hertz.to_string()])
        .stdin(Stdio::null());
    Ok(command)
}

fn nap(hertz: u32) -> ! {
    let pause = Duration::from_secs(1) / hertz.max(1);
    let work = if hertz >= 100 {
        Duration::from_micros(50)
    } else {
        Duration::ZERO
    };
    loop {
        thread::sleep(pause);
        let woken = Instant::now();
        while woken.elapsed() < work {}
    }
}

fn stop(children: Vec<Child>) {
    for mut child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A running tree, ended when it is dropped.
pub struct Sleepers(Child);

impl Sleepers {
    pub fn start(processes: u32, hertz: u32) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["sleepers", "--processes", &processes.to_string()])
            .args(["--hertz", &hertz.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the sleeping processes")?;
        let stdout = child
            .stdout
            .take()
            .context("no pipe from the sleeping processes")?;
        let this = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        anyhow::ensure!(
            line.trim() == "ready",
            "the sleeping processes did not all start"
        );
        Ok(this)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
