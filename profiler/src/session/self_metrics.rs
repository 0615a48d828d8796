//! Costs and losses of the session itself.

use super::boundaries::Boundaries;
use crate::{
    bpf::Stats,
    marks::Losses,
    output::dataset::manifest::Loss,
    support::{
        self_metrics::{Component, SelfMetrics},
        units::format_ns,
    },
    tasks::TaskTable,
    warning,
};

/// Counts of ticks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ticks {
    /// Number of the present tick; the baselines are 0. Missed ticks leave gaps.
    pub number: u64,
    /// Samples taken after the baselines.
    pub taken: u64,
    /// Deadlines that passed without a sample.
    pub missed: u64,
    /// Those of them that were left out because samples for a client of the service cost too much.
    pub spared: u64,
    /// Deadlines for each sample, if that is the case.
    pub backoff: u64,
    /// The longest interval for that reason, ns.
    pub longest_ns: u64,
    /// Time of all readings, ns.
    pub busy_ns: u64,
}

impl Ticks {
    /// Stores the totals of the profiler itself.
    pub fn update_self_metrics(&self, self_metrics: &mut SelfMetrics) {
        let metrics = self_metrics.account(Component::Profiler, "profiler");
        metrics.runs = Some(self.taken);
        metrics.run_ns = Some(self.busy_ns);
        metrics.dropped = Some(self.missed);
    }
}

/// The source that follows operations of io_uring.
const FILE_IO: &str = "file_io";

/// Stores the totals of BPF programs and maps.
pub fn update_programs(self_metrics: &mut SelfMetrics, tasks: &mut TaskTable) {
    let Some(programs) = tasks.programs() else {
        return;
    };
    if let Ok(counters) = programs.tasks.counters() {
        for (map, dropped) in counters.dropped() {
            let metrics = self_metrics.account(Component::Map, map);
            if dropped != 0 && metrics.dropped == Some(0) {
                warning!(
                    "profiler: map {map} is full: entries are being dropped (counted in `overhead`)"
                );
            }
            metrics.dropped = Some(dropped);
        }
        if programs.confuses_operations() {
            let metrics = self_metrics.account(Component::Source, FILE_IO);
            metrics.dropped = Some(counters.indistinct);
        }
    }
    for (name, stats) in programs.program_stats() {
        if stats == Stats::default() {
            continue;
        }
        let metrics = self_metrics.account(Component::Program, name);
        metrics.runs = (stats.runs != 0).then_some(stats.runs);
        metrics.run_ns = (stats.runs != 0).then_some(stats.run_ns);
        metrics.dropped = Some(stats.missed);
    }
}

/// Components of [`Component::Procfs`].
const COUNTERS: &str = "counters";
const RECORDS: &str = "records";
const DESCENDANTS: &str = "descendants";
const PROCESSES: &str = "processes";

/// Stores the losses of processes that are read from `/proc`.
pub fn update_procfs(self_metrics: &mut SelfMetrics, tasks: &TaskTable) {
    if let Some(losses) = tasks.procfs_losses() {
        for (name, count) in [
            (COUNTERS, losses.uncounted),
            (RECORDS, losses.records),
            (DESCENDANTS, losses.unrecorded),
            (PROCESSES, losses.missed_at_most),
        ] {
            self_metrics.account(Component::Procfs, name).dropped = Some(count);
        }
    }
}

/// Losses since the start of the session.
pub fn losses(
    ticks: &Ticks,
    self_metrics: &SelfMetrics,
    boundaries: Option<&Boundaries>,
    tasks: &TaskTable,
) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut add = |what: &str, count, why: String, uid| {
        if count != 0 {
            losses.push(Loss {
                what: what.to_owned(),
                count,
                why,
                uid,
            });
        }
    };
    let busy = "the machine or the profiler was too busy";
    add(
        "samples",
        ticks.missed - ticks.spared,
        busy.to_owned(),
        None,
    );
    let lengthened = format!(
        "interval lengthened to {}: samples of these processes took more than a tenth of a core, the \
         budget of a profile by the service",
        format_ns(ticks.longest_ns)
    );
    add("samples", ticks.spared, lengthened, None);
    for (part, name, metrics) in self_metrics.iter() {
        let (what, why) = match part {
            Component::Map => ("operations", format!("map {name} was full")),
            Component::Program => (
                "events",
                format!("program {name} was running on that CPU already"),
            ),
            Component::Procfs => match name {
                COUNTERS => (
                    Loss::PROCESS_COUNTERS,
                    "the processes ended between two readings of /proc; their CPU time is in \
                     timeline.target_cpu_percent"
                        .to_owned(),
                ),
                RECORDS => (
                    "task records",
                    "the ring buffer was full; processes can be missing".to_owned(),
                ),
                PROCESSES => (
                    "processes and threads at most",
                    "they lived less than an interval, in the target or elsewhere on the node; the \
                     CPU time of those of the target is in timeline.target_cpu_percent"
                        .to_owned(),
                ),
                _ => (
                    "streams of task records",
                    "the kernel refused them; descendants of these processes are known only from \
                     readings"
                        .to_owned(),
                ),
            },
            Component::Memory => (
                match name {
                    "threads" => "rows of threads",
                    _ => "rows of latency",
                },
                "the memory of the profiler's cgroup was short".to_owned(),
            ),
            Component::Source if name == FILE_IO => (
                "operations",
                "operations of io_uring in flight had the same user_data".to_owned(),
            ),
            Component::Source
            | Component::Marks
            | Component::Sink
            | Component::Profiler
            | Component::Start => continue,
        };
        add(what, metrics.dropped.unwrap_or(0), why, None);
    }
    for (what, why, lost) in [
        (
            Loss::MEMORY,
            "the processes, or another one of this user, block reading their memory, or the helper \
             process that reads it has ended",
            tasks.memory_lost(),
        ),
        (
            Loss::DESCRIPTORS,
            "the processes of this user have too many; open files are null",
            tasks.descriptors_lost(),
        ),
    ] {
        for (uid, count) in lost {
            add(what, count, why.to_owned(), uid);
        }
    }
    let marks = boundaries.map(|boundaries| boundaries.receiver.losses());
    for (uid, loss, count) in marks.iter().flat_map(Losses::of_users) {
        add(Loss::MARKS, count, loss.why().to_owned(), uid);
    }
    losses
}
