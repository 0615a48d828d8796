//! What bounds a run, with the numbers that say so. Without such numbers there is no verdict.

use serde::Serialize;

use super::Summary;
use crate::analysis::figure::Unit;

/// Something that costs time, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Short name: `run queue`.
    pub name: &'static str,
    /// One sentence with the numbers.
    pub text: String,
    /// The rule, with its threshold.
    pub rule: &'static str,
    /// What to do, and where to read on.
    pub hint: &'static str,
    /// Part of the time that it explains, 0 to 1.
    pub weight: f64,
}

/// What rules look at.
struct Evidence<'a> {
    summary: &'a Summary,
    /// Length of the run, s.
    seconds: f64,
    /// CPUs of all nodes.
    cpus: f64,
    cpu: f64,
    runqueue: f64,
    blocked: f64,
    sleep: f64,
}

/// Rates below which nothing bounds a run: a hundredth of a CPU.
const QUIET: f64 = 0.01;

impl Evidence<'_> {
    fn get(&self, name: &str) -> f64 {
        self.summary.target.get(name).unwrap_or(0.0)
    }

    fn rate(&self, name: &str) -> f64 {
        self.get(name) / self.seconds
    }

    /// Time in which threads worked or waited for something other than an event.
    fn active(&self) -> f64 {
        self.cpu + self.runqueue + self.blocked
    }
}

fn seconds(value: f64) -> String {
    Unit::Seconds.format(value)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A rule: the finding, if the evidence suffices.
type Rule = fn(&Evidence<'_>) -> Option<Finding>;

const RULES: [Rule; 10] = [
    run_queue,
    storage,
    memory_pressure,
    forks,
    network,
    imbalance,
    page_cache,
    gpu_idle,
    compute,
    asleep,
];

fn run_queue(of: &Evidence<'_>) -> Option<Finding> {
    let share = of.runqueue / (of.cpu + of.runqueue);
    (share >= 0.2 && of.runqueue / of.seconds >= 0.1).then(|| Finding {
        name: "run queue",
        text: format!(
            "Threads ran for {} and waited {} for a CPU: {} of the time in which they could have run.",
            seconds(of.cpu),
            seconds(of.runqueue),
            percent(share)
        ),
        rule: "run queue ≥ 20 % of run queue and CPU time",
        hint: "More threads are runnable than CPUs are allowed: start fewer, or allocate more CPUs.",
        weight: of.runqueue / of.active(),
    })
}

fn storage(of: &Evidence<'_>) -> Option<Finding> {
    let share = of.blocked / of.active();
    let bytes = of.get("storage_read_bytes") + of.get("storage_write_bytes");
    (share >= 0.25 && of.blocked / of.seconds >= 0.1).then(|| {
        let fsyncs = of.rate("fsyncs");
        let synced = if fsyncs >= 10.0 {
            format!(" {fsyncs:.0} fsyncs per second force data to the device.")
        } else {
            String::new()
        };
        Finding {
            name: "storage",
            text: format!(
                "Threads were blocked for {}, {} of their active time, while {} were moved from and to \
                 storage.{synced}",
                seconds(of.blocked),
                percent(share),
                Unit::Bytes.format(bytes)
            ),
            rule: "uninterruptible waits ≥ 25 % of active time",
            hint: "Larger requests, fewer fsyncs, read-ahead or a faster file system.",
            weight: share,
        }
    })
}

fn memory_pressure(of: &Evidence<'_>) -> Option<Finding> {
    let faults = of.rate("major_faults");
    let swap = of.get("peak_swap_bytes");
    (faults >= 20.0 && swap >= 1_048_576.0).then(|| Finding {
        name: "memory",
        text: format!(
            "{faults:.0} page faults per second waited for I/O, and {} of the target were swapped out.",
            Unit::Bytes.format(swap)
        ),
        rule: "≥ 20 major faults/s and ≥ 1 MiB of swap",
        hint: "The working set does not fit into memory: allocate more, or use fewer processes per node.",
        weight: 0.9,
    })
}

fn forks(of: &Evidence<'_>) -> Option<Finding> {
    let rate = of.rate("processes");
    let each = of.cpu / of.get("processes").max(1.0);
    (rate >= 100.0 && each <= 0.005).then(|| Finding {
        name: "process creation",
        text: format!(
            "{rate:.0} processes started per second, and used {} of CPU time each.",
            seconds(each)
        ),
        rule: "≥ 100 processes/s with ≤ 5 ms of CPU time each",
        hint: "Work in one process instead of many: builtins of the shell, or a library.",
        weight: 0.5,
    })
}

fn network(of: &Evidence<'_>) -> Option<Finding> {
    let (segments, again) = (of.get("tcp_segments"), of.get("tcp_retransmits"));
    let share = again / segments.max(1.0);
    (share >= 0.01 && again >= 10.0).then(|| Finding {
        name: "network",
        text: format!(
            "{again:.0} of {segments:.0} TCP segments were sent again ({:.1} %).",
            100.0 * share
        ),
        rule: "retransmits ≥ 1 % of segments",
        hint: "Packets are lost: look for errors and drops of the interfaces in table netdev.",
        weight: 0.8,
    })
}

fn imbalance(of: &Evidence<'_>) -> Option<Finding> {
    let ranks = of.summary.ranks.iter();
    let times: Vec<_> = ranks
        .filter_map(|(rank, figures)| Some((*rank, figures.get("cpu_s")?)))
        .collect();
    let mean = times.iter().map(|(_, time)| time).sum::<f64>() / times.len().max(1) as f64;
    let (slowest, longest) = times.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let ratio = longest / mean;
    (times.len() >= 2 && ratio >= 1.25 && mean / of.seconds >= QUIET).then(|| Finding {
        name: "imbalance",
        text: format!(
            "Rank {slowest} used {} of CPU time, {ratio:.2} times the mean of {} ranks ({}).",
            seconds(longest),
            times.len(),
            seconds(mean)
        ),
        rule: "CPU time of a rank ≥ 1.25 × mean",
        hint: "Divide the work more evenly: the other ranks wait for this one.",
        weight: 1.0 - 1.0 / ratio,
    })
}

fn page_cache(of: &Evidence<'_>) -> Option<Finding> {
    let rate = of.rate("storage_write_bytes");
    let share = of.get("system_s") / of.cpu.max(f64::MIN_POSITIVE);
    (rate >= 100e6 && share >= 0.5).then(|| Finding {
        name: "page cache",
        text: format!(
            "{}/s were written to the page cache; {} of the CPU time was spent in the kernel.",
            Unit::Bytes.format(rate),
            percent(share)
        ),
        rule: "≥ 100 MB/s dirtied and ≥ 50 % system time",
        hint: "Write less, in larger pieces, or with O_DIRECT.",
        weight: of.get("system_s") / of.active(),
    })
}

fn gpu_idle(of: &Evidence<'_>) -> Option<Finding> {
    let nodes = of.summary.nodes.iter();
    let means: Vec<_> = nodes
        .filter_map(|node| node.resources.get("gpu_util_mean_pct"))
        .collect();
    let mean = means.iter().sum::<f64>() / means.len().max(1) as f64;
    (!means.is_empty() && mean < 30.0).then(|| Finding {
        name: "GPU idle",
        text: format!(
            "The GPUs computed {mean:.0} % of the time, while the CPUs used {:.2} cores.",
            of.cpu / of.seconds
        ),
        rule: "mean utilization of the GPUs < 30 %",
        hint: "Prepare data in parallel, use larger batches, or run without GPUs.",
        weight: 1.0 - mean / 100.0,
    })
}

fn compute(of: &Evidence<'_>) -> Option<Finding> {
    let share = of.cpu / of.active();
    let cores = of.cpu / of.seconds;
    (share >= 0.8 && cores >= 0.5).then(|| Finding {
        name: "compute",
        text: format!(
            "Threads ran on {cores:.2} of {:.0} CPUs on average, {} of their active time.",
            of.cpus,
            percent(share)
        ),
        rule: "CPU time ≥ 80 % of active time, and ≥ 0.5 CPUs",
        hint: "Find the hot code; whether the CPUs compute or wait for memory is told by hardware counters.",
        // Everything that is more specific comes first.
        weight: 0.2 * share,
    })
}

fn asleep(of: &Evidence<'_>) -> Option<Finding> {
    let share = of.active() / of.seconds;
    (share < 0.1 && of.sleep >= 0.5 * of.seconds).then(|| Finding {
        name: "asleep",
        text: format!(
            "Threads were active for {} of {} and slept otherwise.",
            seconds(of.active()),
            seconds(of.seconds)
        ),
        rule: "active < 10 % of the run",
        hint: "The program waits for a timer, input, or another process; `top CPU` of its peers may tell.",
        weight: 0.1,
    })
}

/// All findings, the one that explains most first. None if the data cannot tell.
pub fn findings(summary: &Summary) -> Vec<Finding> {
    let get = |name| summary.target.get(name);
    let (Some(seconds), Some(cpu)) = (summary.seconds(), get("cpu_s")) else {
        return Vec::new();
    };
    if seconds <= 0.0 || summary.process_count == 0 {
        return Vec::new();
    }
    let evidence = Evidence {
        summary,
        seconds,
        cpus: get("node_cpu_hours").unwrap_or(0.0) * 3600.0 / seconds,
        cpu,
        runqueue: get("runqueue_s").unwrap_or(0.0),
        blocked: get("blocked_s").unwrap_or(0.0),
        sleep: get("sleep_s").unwrap_or(0.0),
    };
    let mut findings: Vec<_> = RULES.iter().filter_map(|rule| rule(&evidence)).collect();
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    findings
}
