//! The machine on which figures were measured, and the version.

use std::{fs, process::Command, thread, time::Duration};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    bpf,
    shell::{self, progress},
    workspace::Workspace,
};

pub fn report(workspace: &Workspace) -> Result<Value> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let commit = shell::stdout(
        Command::new("git")
            .args(["-c", "safe.directory=*", "-C"])
            .arg(&workspace.root)
            .args(["describe", "--always", "--dirty"]),
    )?;
    let date = shell::stdout(Command::new("date").args(["-u", "+%F"]))?;
    Ok(json!({
        "kernel": kernel.trim(),
        "cpu": model.map(|(_, name)| name),
        "cpus": thread::available_parallelism().map_or(0, usize::from),
        "date": date.trim(),
        "commit": commit.trim(),
        "programs": bpf::source_hash(workspace)?,
    }))
}

/// Warns if other processes use the CPUs during one second.
pub fn warn_if_busy() {
    const IDLE_PERCENT: u64 = 5;
    let Some(before) = times() else { return };
    thread::sleep(Duration::from_secs(1));
    let Some(after) = times() else { return };
    let idle = after.idle.saturating_sub(before.idle);
    let all = after.all.saturating_sub(before.all).max(1);
    let busy_percent = 100 - (100 * idle / all).min(100);
    if busy_percent > IDLE_PERCENT {
        progress(&format!(
            "other processes use {busy_percent} % of this machine: expect noise"
        ));
    }
}

/// CPU time since boot.
#[derive(Debug, PartialEq)]
struct Times {
    idle: u64,
    all: u64,
}

fn times() -> Option<Times> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parses the first line: user nice system idle iowait irq softirq steal; guest times are part of
/// user.
fn parse(stat: &str) -> Option<Times> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .filter_map(|time| time.parse().ok())
        .collect();
    Some(Times {
        idle: times.get(3)? + times.get(4)?,
        all: times.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Times, parse};

    #[test]
    fn totals_of_all_cpus_are_parsed() {
        let stat = "cpu  1 2 3 40 5 6 7 8 100 100\ncpu0 1 1 1 1\n";
        assert_eq!(parse(stat), Some(Times { idle: 45, all: 72 }));
        assert_eq!(parse("intr 1"), None);
    }
}
