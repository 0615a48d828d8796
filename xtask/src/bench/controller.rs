//! CPU time and memory of the controller.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{sleepers::Sleepers, tracer::Profiler};
use crate::shell::{self, progress};

/// A load, and the goals for the controller under this load.
pub struct Scenario {
    name: &'static str,
    processes: u32,
    hertz: u32,
    node: bool,
    cpu_goal_percent: f64,
    rss_goal_bytes: Option<u64>,
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "100 processes, --pid",
        processes: 100,
        hertz: 10,
        node: false,
        cpu_goal_percent: 0.5,
        rss_goal_bytes: Some(60_000_000),
    },
    Scenario {
        name: "5000 processes, --node",
        processes: 5000,
        hertz: 0,
        node: true,
        cpu_goal_percent: 2.0,
        rss_goal_bytes: None,
    },
];

const START_GOAL: Duration = Duration::from_millis(500);

pub struct Cost {
    scenario: &'static Scenario,
    seconds: f64,
    cpu_seconds: f64,
    peak_rss_bytes: u64,
    start: Duration,
}

impl Cost {
    pub fn measure(
        scenario: &'static Scenario,
        duration: Duration,
        profiler: &Profiler,
    ) -> Result<Self> {
        // Excludes the cost of the start.
        const SETTLE: Duration = Duration::from_secs(3);
        progress(&format!("{}: {} s", scenario.name, duration.as_secs()));
        let sleepers = Sleepers::start(scenario.processes, scenario.hertz)?;
        let target = if scenario.node {
            vec!["--node".to_owned()]
        } else {
            vec!["--pid".to_owned(), sleepers.pid().to_string()]
        };
        let attached = profiler.attach(&target)?;
        thread::sleep(SETTLE);
        let (started, before) = (Instant::now(), cpu_seconds(attached.pid())?);
        thread::sleep(duration);
        let (seconds, after) = (
            started.elapsed().as_secs_f64(),
            cpu_seconds(attached.pid())?,
        );
        let peak_rss_bytes = peak_rss(attached.pid())?;
        let start = attached.start;
        attached.stop()?;
        Ok(Self {
            scenario,
            seconds,
            cpu_seconds: after - before,
            peak_rss_bytes,
            start,
        })
    }

    fn cpu_percent(&self) -> f64 {
        100.0 * self.cpu_seconds / self.seconds
    }

    pub fn print(&self) {
        let (cpu, cpu_goal) = (self.cpu_percent(), self.scenario.cpu_goal_percent);
        let missed = |is_missed| if is_missed { "  MISSED" } else { "" };
        println!("{}", self.scenario.name);
        println!(
            "  CPU      {cpu:>7.2} % of a core, goal {cpu_goal} %{}",
            missed(cpu > cpu_goal)
        );
        let rss = self.peak_rss_bytes;
        let goal = self
            .scenario
            .rss_goal_bytes
            .map_or_else(String::new, |goal| {
                format!(", goal {} MB{}", goal / 1_000_000, missed(rss > goal))
            });
        println!("  peak RSS {:>7.1} MB{goal}", rss as f64 / 1e6);
        println!(
            "  start    {:>7} ms until attached, goal {} ms{}",
            self.start.as_millis(),
            START_GOAL.as_millis(),
            missed(self.start > START_GOAL)
        );
    }

    pub fn json(&self) -> Value {
        json!({
            "name": self.scenario.name,
            "processes": self.scenario.processes,
            "seconds": self.seconds,
            "cpu_percent": self.cpu_percent(),
            "cpu_percent_goal": self.scenario.cpu_goal_percent,
            "peak_rss_bytes": self.peak_rss_bytes,
            "peak_rss_bytes_goal": self.scenario.rss_goal_bytes,
            "start_ms": self.start.as_secs_f64() * 1e3,
            "start_ms_goal": START_GOAL.as_secs_f64() * 1e3,
        })
    }
}

/// CPU time of a process: the maximum of the sum over its present threads in ns, and of the coarse
/// value in clock ticks, which includes ended threads.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("the times in {path}"))?;
    let hertz: f64 = shell::stdout(Command::new("getconf").arg("CLK_TCK"))?
        .trim()
        .parse()?;
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
    let nanoseconds: u64 = threads
        .filter_map(|thread| {
            let schedstat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            schedstat.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    Ok((ticks as f64 / hertz).max(nanoseconds as f64 / 1e9))
}

/// Fields 14 and 15. The name before them can contain blanks and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

fn peak_rss(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(kib.with_context(|| format!("{path} without VmHWM"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::cpu_ticks;

    #[test]
    fn times_of_a_process_with_an_odd_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 9 8 7 6 120 30 5 4 20 0 1 0 99";
        assert_eq!(cpu_ticks(stat), Some(150));
    }
}
