//! Whether other work on the node would change a measurement.

use std::{path::Path, thread, time::Duration};

use crate::procfs::{
    pressure::Pressure,
    stat::{ProcStat, Times, file, tick_ns},
};

/// Time over which the use of CPUs is measured.
const WINDOW: Duration = Duration::from_secs(1);
/// Share of all CPUs that other work may use.
const SHARE: f64 = 0.05;
/// Use by the services of any node, in CPUs.
const LEAST: f64 = 0.2;
/// Share of the last 10 s in which tasks may have waited, %.
const PRESSURE: f64 = 5.0;
/// Positions of the idle states in `/proc/stat`.
const IDLE: [usize; 2] = [3, 4];

/// Reasons why the node is busy; empty if it is idle. Takes a second.
pub fn reasons(procfs: &Path) -> Vec<String> {
    let before = read(procfs);
    thread::sleep(WINDOW);
    let after = read(procfs);
    let mut reasons = Vec::new();
    let used = used(&before.total, &after.total, WINDOW);
    let cpus = after.cpus.len() as f64;
    if let Some(used) = used.filter(|used| *used > (SHARE * cpus).max(LEAST)) {
        reasons.push(format!("{used:.1} of {cpus} CPUs are in use"));
    }
    for (resource, what) in [("cpu", "a CPU"), ("memory", "memory")] {
        let share = Pressure::new(procfs, resource).sample(None).some_avg10;
        if let Some(share) = share.filter(|share| *share > PRESSURE) {
            reasons.push(format!(
                "tasks waited for {what} in {share:.0} % of the last 10 s"
            ));
        }
    }
    reasons
}

fn read(procfs: &Path) -> ProcStat {
    let mut stat = ProcStat::default();
    // Without the file, the use is unknown.
    stat.parse(&std::fs::read(file(procfs)).unwrap_or_default());
    stat
}

/// CPUs in use between two readings.
fn used(before: &Times, after: &Times, window: Duration) -> Option<f64> {
    // The last two states are parts of the first two.
    let busy = (0..8).filter(|state| !IDLE.contains(state));
    let increase = busy.map(|state| Some(after[state]?.saturating_sub(before[state]?)));
    let ticks: u64 = increase.sum::<Option<u64>>()?;
    Some((ticks * tick_ns()) as f64 / window.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn node(pressure: &str) -> tempfile::TempDir {
        let directory = tempfile::TempDir::new().expect("a directory");
        fs::create_dir(directory.path().join("pressure")).expect("created");
        let stat = "cpu  10 0 10 900 5 0 0 0 0 0\ncpu0 10 0 10 900 5 0 0 0 0 0\n";
        fs::write(directory.path().join("stat"), stat).expect("written");
        fs::write(directory.path().join("pressure/cpu"), pressure).expect("written");
        directory
    }

    #[test]
    fn waiting_tasks_make_a_node_busy() {
        let of = |avg10| {
            let line = format!("some avg10={avg10} avg60=0.00 avg300=0.00 total=1\n");
            reasons(node(&line).path())
        };
        assert!(of("0.50").is_empty());
        assert_eq!(
            of("61.20"),
            ["tasks waited for a CPU in 61 % of the last 10 s"]
        );
    }

    #[test]
    fn idle_states_are_not_use() {
        let at = |times: [u64; 10]| times.map(Some);
        let second = Duration::from_secs(1);
        let zero = at([0; 10]);
        let per_second = 1_000_000_000 / tick_ns();
        let half = per_second / 2;
        let idle = at([0, 0, 0, per_second, half, 0, 0, 0, 0, 0]);
        assert_eq!(used(&zero, &idle, second), Some(0.0));
        // A guest's time is part of the user's.
        let busy = at([half, 0, half, 0, 0, 0, 0, half, half, 0]);
        assert_eq!(used(&zero, &busy, second), Some(1.5));
        assert_eq!(used(&[None; 10], &busy, second), None);
    }
}
