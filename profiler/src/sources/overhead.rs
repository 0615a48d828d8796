//! `overhead`: cost and losses of the profiler itself, by component.

use std::collections::HashMap;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use super::{Input, Source, SourceSpec, Stage, TickContext};
use crate::{
    columns,
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::{
        delta::Interval,
        self_metrics::{Component, ComponentMetrics},
    },
};

columns! {
    /// One component of the profiler.
    pub struct OverheadRow {
        part: Label = Label("", "Kind of component: source, program (BPF), map (BPF), procfs (processes that are read from /proc, by kind of loss), marks (marks that were not stored as sent, by reason), memory (rows that were left out because the memory of the cgroup was short), sink (output), controller"),
        component: Label = Label("", "Name of the component"),
        runs: Option<u64> = Counter("1", "Number of runs; samples for the controller; null for BPF programs unless kernel.bpf_stats_enabled=1"),
        run_ns: Option<u64> = Counter("ns", "Wall time of the runs; the work of the samples for the controller"),
        rows: Option<u64> = Counter("1", "Rows produced or written"),
        dropped: Option<u64> = Counter("1", "Losses: rows (sink, memory), entries or events (map), counters of processes that ended between two readings, lost task records, processes whose descendants are not recorded, processes that were missed at most (procfs), marks, samples (controller), names of processes (source tasks)"),
        errors: Option<u64> = Counter("1", "Failed runs or writes"),
        late_ns: Option<u64> = Gauge("ns", "Delay of the sample after its deadline (controller)"),
        rss: Option<u64> = Gauge("bytes", "Resident memory (controller)"),
        cpu_ns: Option<u64> = Counter("ns", "CPU time of all threads (controller)"),
    }
}

pub static TABLE: TypedTable<TickKey, OverheadRow> = TypedTable::every_tick(
    "overhead",
    "One row per sample and component of the profiler itself: cost and losses",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "overhead",
    help: "cost and losses of the profiler itself",
    tables: &[TABLE.untyped()],
    input: Input::Sources,
    stage: Stage::Account,
    open: |_| {
        Ok(Box::new(Overhead {
            rows: TableBuilder::new(&TABLE),
            before: HashMap::new(),
            interval: Interval::default(),
            cpu_ns: 0,
        }))
    },
    ..SourceSpec::DEFAULT
};

struct Overhead {
    rows: TableBuilder<TickKey, OverheadRow>,
    before: HashMap<(Component, &'static str), ComponentMetrics>,
    interval: Interval,
    cpu_ns: u64,
}

impl Source for Overhead {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let interval_ns = self.interval.end(ctx.tick.monotonic_ns);
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_now = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
        let cpu_ns = cpu_now.saturating_sub(std::mem::replace(&mut self.cpu_ns, cpu_now));
        for (part, name, account) in ctx.self_metrics.iter() {
            let before = self
                .before
                .insert((part, name), account)
                .unwrap_or_default();
            let Some(interval_ns) = interval_ns else {
                continue;
            };
            let increase = |now: Option<u64>, before: Option<u64>| {
                now.map(|now| now.saturating_sub(before.unwrap_or(0)))
            };
            let controller = part == Component::Controller;
            self.rows.push(
                ctx.key(interval_ns),
                OverheadRow {
                    part: part.as_str().into(),
                    component: name.into(),
                    runs: increase(account.runs, before.runs),
                    run_ns: increase(account.run_ns, before.run_ns),
                    rows: increase(account.rows, before.rows),
                    dropped: increase(account.dropped, before.dropped),
                    errors: increase(account.errors, before.errors),
                    late_ns: controller.then_some(ctx.self_metrics.late_ns),
                    rss: if controller { resident() } else { None },
                    cpu_ns: controller.then_some(cpu_ns),
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}

/// Resident memory of the profiler, from the second field of /proc/self/statm.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
