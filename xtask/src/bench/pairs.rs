//! The slowdown of a workload: interleaved runs with and without the profiler attached.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    attached::Attached,
    figures::{median, range},
};
use crate::shell::progress;

/// A program that times itself, so that its start and its end do not count.
pub struct Workload {
    pub name: &'static str,
    pub command: String,
    /// The ratio that should not be exceeded.
    pub goal: f64,
}

pub fn workloads(loops: u32) -> [Workload; 3] {
    // The loops of the last are chosen so that it takes about as long.
    let messages = (loops / 500).max(1);
    [
        Workload {
            name: "perf bench sched pipe",
            command: format!("perf bench -f simple sched pipe -l {loops}"),
            goal: 1.15,
        },
        // Without the chance of where the scheduler puts the two: the steadier figure.
        Workload {
            name: "the same on one CPU",
            command: format!("taskset -c 0 perf bench -f simple sched pipe -l {loops}"),
            goal: 1.15,
        },
        Workload {
            name: "perf bench sched messaging",
            command: format!("perf bench -f simple sched messaging -l {messages}"),
            goal: 1.05,
        },
    ]
}

/// The shell whose children are profiled: the profiler follows it before the workload is born.
pub struct Parent {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Parent {
    pub fn start() -> Result<Self> {
        let mut child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting `sh`")?;
        let stdin = child.stdin.take().context("no pipe to sh")?;
        let stdout = BufReader::new(child.stdout.take().context("no pipe from sh")?);
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs the workload as a child and returns the seconds that it reports.
    pub fn time(&mut self, workload: &Workload) -> Result<f64> {
        writeln!(
            self.stdin,
            "{} </dev/null; echo \"end $?\"",
            workload.command
        )?;
        let mut seconds = None;
        for line in (&mut self.stdout).lines() {
            let line = line?;
            match line.strip_prefix("end ") {
                Some("0") => {
                    return seconds.with_context(|| format!("`{}` told no time", workload.command));
                }
                Some(code) => bail!("`{}` failed with {code}", workload.command),
                None => seconds = line.trim().parse().ok().or(seconds),
            }
        }
        bail!("the shell that runs the workloads has gone");
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The seconds of both halves of every pair.
pub struct Pairs {
    pub workload: Workload,
    without: Vec<f64>,
    with: Vec<f64>,
}

impl Pairs {
    pub fn measure(
        workload: Workload,
        pairs: u32,
        profiler: &Path,
        scratch: &Path,
    ) -> Result<Self> {
        let mut parent = Parent::start()?;
        // The first run finds cold caches and a slow clock.
        parent.time(&workload)?;
        let mut this = Self {
            workload,
            without: Vec::new(),
            with: Vec::new(),
        };
        for pair in 0..pairs {
            progress(&format!(
                "{}: pair {} of {pairs}",
                this.workload.name,
                pair + 1
            ));
            // Whatever drifts favours neither half.
            if pair % 2 == 0 {
                this.without.push(parent.time(&this.workload)?);
                this.with
                    .push(attached(&mut parent, &this.workload, profiler, scratch)?);
            } else {
                this.with
                    .push(attached(&mut parent, &this.workload, profiler, scratch)?);
                this.without.push(parent.time(&this.workload)?);
            }
        }
        Ok(this)
    }

    fn ratios(&self) -> Vec<f64> {
        self.with
            .iter()
            .zip(&self.without)
            .map(|(with, without)| with / without)
            .collect()
    }

    pub fn print(&self) {
        let (ratios, goal) = (self.ratios(), self.workload.goal);
        let (least, greatest) = range(&ratios);
        println!(
            "{:<27} {:>7.3} s {:>7.3} s   x{:.3} (x{least:.3} to x{greatest:.3}), goal x{goal:.2}{}",
            self.workload.name,
            median(&self.without),
            median(&self.with),
            median(&ratios),
            if median(&ratios) > goal {
                "  MISSED"
            } else {
                ""
            },
        );
    }

    pub fn json(&self) -> Value {
        let ratios = self.ratios();
        let (least, greatest) = range(&ratios);
        json!({
            "name": self.workload.name,
            "command": self.workload.command,
            "without_s": self.without,
            "with_s": self.with,
            "ratio": median(&ratios),
            "ratio_min": least,
            "ratio_max": greatest,
            "ratio_goal": self.workload.goal,
        })
    }
}

fn attached(
    parent: &mut Parent,
    workload: &Workload,
    profiler: &Path,
    scratch: &Path,
) -> Result<f64> {
    let target = ["--pid".to_owned(), parent.pid().to_string()];
    let attached = Attached::start(profiler, &target, scratch)?;
    let seconds = parent.time(workload)?;
    attached.stop()?;
    Ok(seconds)
}
