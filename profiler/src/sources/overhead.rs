//! `overhead`: what the profiler itself costs and loses, per component.

use std::collections::HashMap;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    schema::{Batch, Label, Table, TableBuilder, TickKey},
    support::self_metrics::{Component, ComponentMetrics},
};

columns! {
    /// One component of the profiler.
    pub struct OverheadRow {
        part: Label = Label("", "Kind of component: source, program (BPF), map (BPF), marks (what became of those that were not stored as they were meant), sink, controller"),
        component: Label = Label("", "Name of the component"),
        runs: Option<u64> = Counter("1", "Times it ran; for the controller, ticks; of BPF programs only with kernel.bpf_stats_enabled=1"),
        run_ns: Option<u64> = Counter("ns", "Wall time it took; for the controller, the work of its ticks"),
        rows: Option<u64> = Counter("1", "Rows it made or wrote"),
        dropped: Option<u64> = Counter("1", "What it lost: rows (sink), entries or events (map), marks, ticks (controller), names of processes (source tasks)"),
        errors: Option<u64> = Counter("1", "Failures"),
        late_ns: Option<u64> = Gauge("ns", "How late the tick began (controller)"),
        rss: Option<u64> = Gauge("bytes", "Resident memory (controller)"),
        cpu_ns: Option<u64> = Counter("ns", "CPU time of all threads (controller)"),
    }
}

static TABLE: Table = Table::new::<TickKey, OverheadRow>(
    "overhead",
    "One row per tick and component of the profiler itself: what it cost, what it lost",
);

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "overhead",
    help: "what the profiler itself costs and loses",
    tables: &[&TABLE],
    probe: |_| Support::Works,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |_: &Context<'_>| {
        Ok(Box::new(Overhead {
            rows: TableBuilder::new(&TABLE),
            before: HashMap::new(),
            read_at: None,
            cpu_ns: 0,
        }))
    },
};

struct Overhead {
    rows: TableBuilder<TickKey, OverheadRow>,
    before: HashMap<(Component, &'static str), ComponentMetrics>,
    read_at: Option<u64>,
    cpu_ns: u64,
}

impl Source for Overhead {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let now = at.tick.monotonic_ns;
        let interval = self.read_at.map(|before| now - before);
        self.read_at = Some(now);
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_now = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
        let cpu_ns = cpu_now.saturating_sub(std::mem::replace(&mut self.cpu_ns, cpu_now));
        for (part, name, account) in at.self_metrics.iter() {
            let before = self
                .before
                .insert((part, name), account)
                .unwrap_or_default();
            let Some(interval_ns) = interval else {
                continue;
            };
            let more = |now: Option<u64>, before: Option<u64>| {
                now.map(|now| now.saturating_sub(before.unwrap_or(0)))
            };
            let controller = part == Component::Controller;
            self.rows.push(
                TickKey {
                    ts: at.tick.ts,
                    interval_ns,
                },
                OverheadRow {
                    part: part.as_str().into(),
                    component: name.into(),
                    runs: more(account.runs, before.runs),
                    run_ns: more(account.run_ns, before.run_ns),
                    rows: more(account.rows, before.rows),
                    dropped: more(account.dropped, before.dropped),
                    errors: more(account.errors, before.errors),
                    late_ns: controller.then_some(at.self_metrics.late_ns),
                    rss: if controller { resident() } else { None },
                    cpu_ns: controller.then_some(cpu_ns),
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}

/// Our own resident memory, from the second field of /proc/self/statm.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
