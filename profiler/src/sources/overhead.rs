//! `overhead`: cost and losses of the profiler itself, by component.

use std::collections::HashMap;

use anyhow::Result;

use super::{Input, Source, SourceSpec, Stage, TickContext};
use crate::{
    columns,
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::{
        delta::Interval,
        own_cost,
        self_metrics::{Component, ComponentMetrics},
    },
};

columns! {
    /// One component of the profiler.
    pub struct OverheadRow {
        component_kind: Label = Label("", "Kind of component: source, program (BPF), map (BPF), procfs (processes that are read from /proc, by kind of loss), marks (marks that were not stored as sent, by reason), memory (rows that were omitted because the cgroup was short of memory), sink (output), profiler (the profiler since its start), start (the profiler up to the baselines, once; mostly loading BPF programs)"),
        component: Label = Label("", "Name of the component"),
        runs: Option<u64> = Counter("1", "Number of runs; for the profiler, of samples; null for BPF programs unless kernel.bpf_stats_enabled=1"),
        run_ns: Option<u64> = Counter("ns", "Wall time of the runs; for the profiler, time spent on samples"),
        rows: Option<u64> = Counter("1", "Rows produced or written"),
        dropped: Option<u64> = Counter("1", "Losses: rows (sink, memory), entries or events (map), counters of processes that ended between two readings, lost task records, processes whose descendants are not recorded, upper bound of missed processes (procfs), marks, samples (profiler), names of processes (source tasks), operations of io_uring (source file_io)"),
        errors: Option<u64> = Counter("1", "Failed runs or writes"),
        late_ns: Option<u64> = Gauge("ns", "Delay of the sample after its deadline (profiler)"),
        rss: Option<u64> = Gauge("bytes", "Resident memory (profiler)"),
        peak_rss: Option<u64> = Gauge("bytes", "Largest resident memory so far, without helper processes (profiler)"),
        cpu_ns: Option<u64> = Counter("ns", "CPU time of all threads, of helper processes and of programs that were run (profiler, start). The final files are written after the last row"),
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
            cpu_ns: None,
        }))
    },
    ..SourceSpec::DEFAULT
};

struct Overhead {
    rows: TableBuilder<TickKey, OverheadRow>,
    before: HashMap<(Component, &'static str), ComponentMetrics>,
    interval: Interval,
    /// CPU time of the profiler at the last row, ns.
    cpu_ns: Option<u64>,
}

impl Source for Overhead {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let interval_ns = self.interval.end(ctx.tick.monotonic_ns);
        // The time of a helper that has ended is missing until it has been waited for.
        let start_ns = ctx.self_metrics.start_cpu_ns;
        let before = self.cpu_ns.unwrap_or(start_ns);
        let cpu_now = own_cost::cpu_ns().max(before);
        let cpu_ns = cpu_now - before;
        let [rss, peak_rss] = own_cost::resident();
        if let Some(interval_ns) = interval_ns {
            let is_first = self.cpu_ns.replace(cpu_now).is_none();
            if is_first {
                let row = OverheadRow {
                    component_kind: Component::Start.as_str().into(),
                    component: "profiler".into(),
                    runs: None,
                    run_ns: None,
                    rows: None,
                    dropped: None,
                    errors: None,
                    late_ns: None,
                    rss: None,
                    peak_rss: None,
                    cpu_ns: Some(start_ns),
                };
                self.rows.push(ctx.key(interval_ns), row);
            }
        }
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
            let is_profiler = part == Component::Profiler;
            self.rows.push(
                ctx.key(interval_ns),
                OverheadRow {
                    component_kind: part.as_str().into(),
                    component: name.into(),
                    runs: increase(account.runs, before.runs),
                    run_ns: increase(account.run_ns, before.run_ns),
                    rows: increase(account.rows, before.rows),
                    dropped: increase(account.dropped, before.dropped),
                    errors: increase(account.errors, before.errors),
                    late_ns: is_profiler.then_some(ctx.self_metrics.late_ns),
                    rss: rss.filter(|_| is_profiler),
                    peak_rss: peak_rss.filter(|_| is_profiler),
                    cpu_ns: is_profiler.then_some(cpu_ns),
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}
