//! What bounds a run, with the numbers that say so. Without such numbers there is no verdict.

mod cpus;
mod ranks;
mod storage;

use std::fmt::Write as _;

use serde::Serialize;

use self::{
    cpus::{cpu_quota, other_processes, run_queue, steal, waits_for_cpus},
    ranks::{communication, imbalance},
    storage::{page_cache, storage},
};
use super::{Node, Summary};
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

    /// Whether threads mostly run.
    fn computes(&self) -> bool {
        self.cpu / self.active() >= 0.8 && self.cpu / self.seconds >= 0.5
    }
}

fn seconds(value: f64) -> String {
    Unit::Seconds.format(value)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A rule that may explain a run.
struct Rule {
    name: &'static str,
    /// Its condition, as in docs/summaries.md.
    condition: &'static str,
    hint: &'static str,
    /// The sentence with the numbers, and the part of the time that it explains; `None` if the
    /// evidence does not suffice.
    apply: fn(&Evidence<'_>) -> Option<(String, f64)>,
}

const RULES: [Rule; 18] = [
    Rule {
        name: "run queue",
        condition: "waits for CPUs that threads of the target used ≥ 20 % of run queue and CPU time, and ≥ 0.1 threads on average",
        hint: "More threads are runnable than CPUs are allowed: start fewer, or allocate more CPUs.",
        apply: run_queue,
    },
    Rule {
        name: "CPU quota",
        condition: "waits because a CPU quota was used up ≥ 20 % of run queue and CPU time, and ≥ 0.1 threads on average",
        hint: "Raise the limit of the container, job or cgroup (`cpu.max`), or start fewer threads.",
        apply: cpu_quota,
    },
    Rule {
        name: "other processes",
        condition: "waits for CPUs that other processes used ≥ 20 % of run queue and CPU time, and ≥ 0.1 threads on average",
        hint: "Others use the CPUs: allocate CPUs or nodes exclusively, or run on those that are idle.",
        apply: other_processes,
    },
    Rule {
        name: "waits for CPUs",
        condition: "run queue ≥ 20 % of run queue and CPU time, and ≥ 0.1 threads on average, if no cause is recorded",
        hint: "Record with the sources `cpu`, `sched`, `usage` and `timeline`: they show whether the target itself, a quota or others caused the waits.",
        apply: waits_for_cpus,
    },
    Rule {
        name: "steal",
        condition: "the hypervisor took ≥ 10 % of the busy time of the CPUs and ≥ 0.1 CPUs, and the target was active for ≥ 10 % of the run",
        hint: "The host of this virtual machine has too few CPUs for all of its machines: ask its operator, or use another one.",
        apply: steal,
    },
    // Before storage, which has the waits for swap too.
    Rule {
        name: "memory",
        condition: "≥ 20 major faults per second and ≥ 1 MiB swapped out",
        hint: "The working set does not fit into memory: allocate more, or use fewer processes per node.",
        apply: memory_pressure,
    },
    Rule {
        name: "storage",
        condition: "uninterruptible waits ≥ 25 % of the active time (CPU, run queue, blocked), and ≥ 0.1 threads; or asynchronous I/O: a process that sleeps ≥ 25 % of the time of its threads, with ≥ 0.5 read requests in flight (or writes, if they leave no dirty pages) while a disk of the target is busy ≥ 25 % of the run, or with ≥ 0.5 operations on files in flight beyond its active time",
        hint: "Larger requests, fewer fsyncs, read-ahead or a faster file system.",
        apply: storage,
    },
    Rule {
        name: "process creation",
        condition: "≥ 100 processes per second with ≤ 5 ms of CPU time each",
        hint: "Work in one process instead of many: builtins of the shell, or a library.",
        apply: forks,
    },
    Rule {
        name: "network",
        condition: "≥ 1 % of the TCP segments were retransmitted, and ≥ 10",
        hint: "Packets are lost: look for errors and drops of the interfaces in table netdev.",
        apply: network,
    },
    Rule {
        name: "lock contention",
        condition: "a process with ≥ 1.5 threads and ≥ 0.3 CPUs: ≥ 1,000 voluntary switches per second, of which reads, writes and messages explain at most half, mean sleep ≤ 10 ms, sleep ≥ 40 % of the time of its threads; if `syscalls` is recorded, futex calls ≥ half of the switches",
        hint: "Shorten critical sections, divide the lock, or use fewer threads. `--source +syscalls` counts futex calls.",
        apply: lock_contention,
    },
    Rule {
        name: "imbalance",
        condition: "CPU time of a rank ≥ 1.25 × mean; of ranks with marks of kind `mpi`, their time outside MPI",
        hint: "Divide the work more evenly: the other ranks wait for this one.",
        apply: imbalance,
    },
    Rule {
        name: "MPI",
        condition: "ranks with marks of kind `mpi` that spend ≥ 25 % of their time in MPI, if there is no `imbalance`",
        hint: "Communicate less often and in larger messages, or compute meanwhile; `region` has the calls of clients/mpi.",
        apply: communication,
    },
    Rule {
        name: "page cache",
        condition: "≥ 100 MB/s written, of which ≥ 0.05 s were dirty pages at a sample or ≥ 10 % were not written by disks, and ≥ 50 % system time",
        hint: "Write less, in larger pieces, or with O_DIRECT.",
        apply: page_cache,
    },
    Rule {
        name: "GPU",
        condition: "mean utilization of the GPUs ≥ 50 %",
        hint: "Optimize the kernels, or divide the work among more GPUs: tensor cores and memory bandwidth in use tell which.",
        apply: gpu_busy,
    },
    Rule {
        name: "GPU idle",
        condition: "mean utilization of the GPUs < 30 %",
        hint: "Prepare data in parallel, use larger batches, or run without GPUs.",
        apply: gpu_idle,
    },
    Rule {
        name: "memory access",
        condition: "CPU time ≥ 80 % of the active time, ≥ 0.5 CPUs, ≤ 0.7 instructions per cycle, and ≥ 2 GB/s from memory for each CPU in use",
        hint: "The CPUs wait for data: improve locality (blocking, layout, huge pages), or use fewer threads per socket.",
        apply: memory_access,
    },
    Rule {
        name: "compute",
        condition: "CPU time ≥ 80 % of the active time, and ≥ 0.5 CPUs",
        hint: "Find the hot code; whether the CPUs compute or wait for memory is told by hardware counters.",
        apply: compute,
    },
    Rule {
        name: "asleep",
        condition: "active for less than 10 % of the run, and a thread slept for half of it",
        hint: "The program waits for a timer, input, or another process; `top CPU` of its peers may tell.",
        apply: asleep,
    },
];

fn memory_pressure(of: &Evidence<'_>) -> Option<(String, f64)> {
    let faults = of.rate("major_faults");
    let swap = of.get("peak_swap_bytes");
    (faults >= 20.0 && swap >= 1_048_576.0).then(|| {
        let text = format!(
            "{faults:.0} page faults per second waited for I/O, and {} of the target were swapped out.",
            Unit::Bytes.format(swap)
        );
        (text, 1.0)
    })
}

fn forks(of: &Evidence<'_>) -> Option<(String, f64)> {
    let rate = of.rate("processes");
    let each = of.cpu / of.get("processes").max(1.0);
    (rate >= 100.0 && each <= 0.005).then(|| {
        let text = format!(
            "{rate:.0} processes started per second, and used {} of CPU time each.",
            seconds(each)
        );
        (text, 0.5)
    })
}

fn network(of: &Evidence<'_>) -> Option<(String, f64)> {
    let (segments, again) = (of.get("tcp_segments"), of.get("tcp_retransmits"));
    let share = again / segments.max(1.0);
    (share >= 0.01 && again >= 10.0).then(|| {
        let text = format!(
            "{again:.0} of {segments:.0} TCP segments were retransmitted ({:.1} %).",
            100.0 * share
        );
        (text, 0.8)
    })
}

/// Threads that wait for each other sleep and are woken all the time, while one of them works. A
/// thread that waits for a pipe, a socket or a file makes a call each time; one that waits for a lock
/// makes none that is counted by default.
fn lock_contention(of: &Evidence<'_>) -> Option<(String, f64)> {
    let records_calls = of.summary.target.get("syscalls").is_some();
    of.summary.processes.iter().find_map(|process| {
        let get = |name| process.figures.get(name);
        let known = |name| get(name).unwrap_or(0.0);
        let (cpu, sleep) = (get("cpu_s")?, get("sleep_s")?);
        let switches = get("voluntary_switches")?;
        let calls = get("read_write_calls")? + known("socket_calls");
        let all = cpu + sleep + known("runqueue_s") + known("blocked_s");
        let (threads, cpus) = (all / of.seconds, cpu / of.seconds);
        let share = sleep / all;
        let is_contended = threads >= 1.5
            && cpus >= 0.3
            && switches / of.seconds >= 1000.0
            && calls <= 0.5 * switches
            && sleep / switches <= 0.01
            && share >= 0.4
            && (!records_calls || known("futex_calls") >= 0.5 * switches);
        is_contended.then(|| {
            let text = format!(
                "The threads of {} ({threads:.1} on average) used {cpus:.2} CPUs, and went to sleep {:.0} \
                 times per second for {} each, mostly without reading, writing or sending.",
                process.process.comm,
                switches / of.seconds,
                seconds(sleep / switches)
            );
            (text, share)
        })
    })
}

/// Mean of a figure over the nodes that have it.
fn mean_of_nodes(of: &Evidence<'_>, figure: impl Fn(&Node) -> Option<f64>) -> Option<f64> {
    let values: Vec<_> = of.summary.nodes.iter().filter_map(figure).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn gpu_utilization(of: &Evidence<'_>) -> Option<f64> {
    mean_of_nodes(of, |node| node.all_gpus.get("gpu_utilization_mean_percent"))
}

fn gpu_busy(of: &Evidence<'_>) -> Option<(String, f64)> {
    let mean = gpu_utilization(of)?;
    (mean >= 50.0).then(|| {
        let figure = |name: &str| mean_of_nodes(of, |node| node.node.get(name));
        let mut text = format!("The GPUs computed {mean:.0} % of the time");
        let activity = figure("gpu_tensor_mean_percent").zip(figure("gpu_bandwidth_mean_percent"));
        if let Some((tensor, bandwidth)) = activity {
            let _ = write!(
                text,
                ", with {tensor:.0} % of their tensor cores and {bandwidth:.0} % of their memory bandwidth"
            );
        }
        text.push('.');
        let limited = figure("gpu_power_limited_percent");
        if let Some(limited) = limited.filter(|limited| *limited >= 1.0) {
            let _ = write!(text, " Power limits reduced their clocks for {limited:.0} % of the time.");
        }
        // While a kernel runs, the CPUs wait for it, often without sleeping.
        (text, 0.9 * mean / 100.0)
    })
}

fn gpu_idle(of: &Evidence<'_>) -> Option<(String, f64)> {
    let mean = gpu_utilization(of)?;
    (mean < 30.0).then(|| {
        let text = format!(
            "The GPUs computed {mean:.0} % of the time, while the CPUs used {:.2} cores.",
            of.cpu / of.seconds
        );
        (text, 1.0 - mean / 100.0)
    })
}

/// CPUs that execute few instructions while much is read from memory.
fn memory_access(of: &Evidence<'_>) -> Option<(String, f64)> {
    let get = |name| of.summary.target.get(name);
    let ipc = get("instructions")? / get("cycles").filter(|cycles| *cycles > 0.0)?;
    let rate = get("memory_traffic_bytes")? / of.cpu;
    (of.computes() && ipc <= 0.7 && rate >= 2e9).then(|| {
        let text = format!(
            "The CPUs executed {ipc:.2} instructions per cycle, while {}/s were moved from and to memory for \
             each CPU in use.",
            Unit::Bytes.format(rate)
        );
        // More specific than `compute`.
        (text, 0.4)
    })
}

fn compute(of: &Evidence<'_>) -> Option<(String, f64)> {
    let share = of.cpu / of.active();
    of.computes().then(|| {
        let allowed = of.summary.target.get("allowed_cpus");
        let allowed = allowed.map_or(String::new(), |cpus| format!(" of {cpus} allowed"));
        let text = format!(
            "Threads ran on {:.2}{allowed} CPUs on average, {} of their active time.",
            of.cpu / of.seconds,
            percent(share)
        );
        // Everything that is more specific comes first.
        (text, 0.2 * share)
    })
}

fn asleep(of: &Evidence<'_>) -> Option<(String, f64)> {
    let share = of.active() / of.seconds;
    (share < 0.1 && of.sleep >= 0.5 * of.seconds).then(|| {
        let text = format!(
            "Threads were active for {} of {} and slept otherwise.",
            seconds(of.active()),
            seconds(of.seconds)
        );
        (text, 0.1)
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
        cpu,
        runqueue: get("runqueue_s").unwrap_or(0.0),
        blocked: get("blocked_s").unwrap_or(0.0),
        sleep: get("sleep_s").unwrap_or(0.0),
    };
    let found = |rule: &Rule| {
        let (text, weight) = (rule.apply)(&evidence)?;
        Some(Finding {
            name: rule.name,
            text,
            rule: rule.condition,
            hint: rule.hint,
            weight,
        })
    };
    let mut findings: Vec<_> = RULES.iter().filter_map(found).collect();
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    findings
}

#[cfg(test)]
mod tests {
    use super::RULES;

    #[test]
    fn all_rules_are_documented() {
        let documentation = include_str!("../../../../../docs/summaries.md");
        let rows = RULES.map(|rule| format!("| {} | {} |\n", rule.name, rule.condition));
        for row in &rows {
            assert!(
                documentation.contains(row),
                "docs/summaries.md without {row}"
            );
        }
        let table = documentation.split("| name | rule |\n|---|---|\n").nth(1);
        let documented = table.expect("a table").lines();
        let count = documented.take_while(|line| line.starts_with('|')).count();
        assert_eq!(count, rows.len());
    }
}
