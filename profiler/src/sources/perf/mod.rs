//! `perf`: hardware counters, and the metrics computed from them.

mod report;

use std::io;

use anyhow::{Context as _, Error, Result, anyhow};

use super::{Input, OpenContext, Source, SourceSpec, Support, TickContext, energy};
use crate::{
    columns,
    host::Host,
    perf::{
        Count, Machine, NodeCounters, Plan, Selection, TargetCounters, UnitCounters,
        constants::Constants, evaluate, explain, remedy,
    },
    privileges,
    schema::{
        Batch, Label, OwnerKey, TableBuilder, TypedTable,
        read::{self, sum_of_known},
    },
    support::clock::monotonic_ns,
};

use self::report::Report;

columns! {
    /// One event of one process, CPU or socket.
    pub struct EventRow {
        scope: Label = Label("", "Counter scope: process (with the descendants created since its counters were opened), cpu (with --node), socket (units that count for the whole socket)"),
        id: u32 = Label("", "Number of the process, CPU or socket"),
        pmu: Label = Label("", "PMU, as in /sys/bus/event_source/devices; the sum of all its instances"),
        group: Option<Label> = Label("", "Group of the event; null for events selected with --events"),
        event: Label = Label("", "Name of the event in the table of the CPU"),
        count: Option<f64> = Counter("1", "Count, scaled from the time it was counted to the whole time; in the unit of the kernel for the event if there is one (J, MiB). Null if it was never counted, or if the kernel does not report the unit"),
        count_raw: u64 = Counter("1", "Count without scaling"),
        enabled_ns: u64 = Counter("ns", "Time for which the event was enabled: time on CPU of a process; summed over threads, CPUs or instances"),
        running_ns: u64 = Counter("ns", "Time for which the event was on a counter; less than enabled_ns if events share counters"),
    }
}

columns! {
    /// One metric of one scope.
    pub struct MetricRow {
        scope: Label = Label("", "Counter scope: process, cpu, socket, target (all its processes) or node (all CPUs and sockets)"),
        id: Option<u32> = Label("", "Number of the process, CPU or socket"),
        pmu: Label = Label("", "PMU of the events"),
        group: Label = Label("", "Group of the events"),
        metric: Label = Label("", "Name of the metric; `profiler events` lists formulas and meanings"),
        value: Option<f64> = Gauge("", "Value over the interval, in `unit`; null if an event has no value, and on division by 0"),
        unit: Label = Label("", "Unit of the value"),
        running_ratio: Option<f64> = Gauge("1", "Smallest share of time on a counter (running / enabled) of its events; null if nothing ran"),
    }
}

/// Table `perf_event`.
pub static EVENTS: TypedTable<OwnerKey, EventRow> = TypedTable::new(
    "perf_event",
    "One row per sample, event and process, CPU or socket: hardware counters",
);

/// Table `perf_metric`.
pub static METRICS: TypedTable<OwnerKey, MetricRow> = TypedTable::new(
    "perf_metric",
    "One row per sample, metric and process, CPU, socket, target or node: values computed from the counters",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "perf",
    help: "hardware counters: cycles, FLOPS, cache and memory bandwidth",
    tables: &[EVENTS.untyped(), METRICS.untyped()],
    probe: Some(probe),
    input: Input::Tasks { procfs: true },
    capabilities: |host| privileges::for_events(host.perf_event_paranoid),
    validate: |host, selection| {
        let catalog = selection.catalog(host)?;
        Plan::new(&Machine::read(host, &catalog), selection)?;
        Ok(())
    },
    strict: Selection::is_explicit,
    open: |context| Ok(Box::new(Perf::open(context)?)),
    ..SourceSpec::DEFAULT
};

/// How far the default groups work on this machine.
fn probe(host: &Host) -> Support {
    let selection = Selection::default();
    let catalog = match selection.catalog(host) {
        Ok(catalog) => catalog,
        Err(error) => return no(&error.to_string(), ""),
    };
    let machine = Machine::read(host, &catalog);
    let mut plan = match Plan::new(&machine, &selection) {
        Ok(plan) => plan,
        Err(error) => return no(&error.to_string(), ""),
    };
    plan.probe(&machine);
    NodeCounters::open(&mut plan, &machine, false);
    support(&plan)
}

fn no(why: &str, remedy: &str) -> Support {
    Support::Unavailable {
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn support(plan: &Plan) -> Support {
    let why = plan.reasons();
    if plan.is_empty() {
        return no(&why, &plan.remedy);
    }
    if plan.notes.is_empty() {
        return Support::Ok;
    }
    Support::Limited {
        why,
        remedy: plan.remedy.clone(),
    }
}

struct Perf {
    host: Host,
    plan: Plan,
    constants: Constants,
    /// `None` with `--node`, which counts CPUs instead of processes.
    processes: Option<TargetCounters>,
    node: NodeCounters,
    events: TableBuilder<OwnerKey, EventRow>,
    metrics: TableBuilder<OwnerKey, MetricRow>,
    report: Report,
    read_at: Option<u64>,
    /// Counts of the target from `read_at` to the last boundary.
    since_tick: Vec<Option<Count>>,
}

impl Perf {
    fn open(context: &OpenContext<'_>) -> Result<Self> {
        let catalog = context.perf.catalog(context.host)?;
        let machine = Machine::read(context.host, &catalog);
        let mut plan = Plan::new(&machine, context.perf)?;
        if context.for_user && context.interval < energy::USER_PERIOD {
            plan.omit_energy("an ordinary user gets energy only at intervals of 1 s or more");
        }
        plan.probe(&machine);
        // With --node, the cycles of the node are those of its CPUs.
        if !context.node && energy::has_packages(context.host) {
            plan.add_node_cycles(&machine);
        }
        let node = NodeCounters::open(&mut plan, &machine, context.node);
        if plan.is_empty() || context.node && node.is_empty() {
            let why = plan.reasons();
            let remedy = &plan.remedy;
            return Err(if remedy.is_empty() {
                anyhow!("{why}")
            } else {
                anyhow!("{why} (remedy: {remedy})")
            });
        }
        Ok(Self {
            host: context.host.clone(),
            report: Report::new(&plan),
            constants: machine.constants,
            processes: (!context.node).then(|| TargetCounters::new(context.joins_without_fork)),
            plan,
            node,
            events: TableBuilder::new(&EVENTS),
            metrics: TableBuilder::new(&METRICS),
            read_at: None,
            since_tick: Vec::new(),
        })
    }

    /// Reads the counters of processes.
    fn read_processes(&mut self, ctx: &TickContext<'_>) -> Result<()> {
        let Some(processes) = &mut self.processes else {
            return Ok(());
        };
        let mut result = Ok(());
        let mut sum = std::mem::take(&mut self.since_tick);
        sum.resize(self.plan.events.len(), None);
        let mut rows = Rows {
            ctx,
            plan: &self.plan,
            constants: &self.constants,
            events: &mut self.events,
            metrics: &mut self.metrics,
        };
        for process in &mut processes.processes {
            let now = monotonic_ns();
            let read = process.read();
            result = result.and(read.with_context(|| format!("process {}", process.id.pid)));
            let interval_ns = now - std::mem::replace(&mut process.read_at, now);
            add(&mut sum, &process.counts);
            let key = OwnerKey {
                ts: ctx.tick.ts,
                interval_ns,
                pid: Some(process.id.pid),
                start_ts: Some(ctx.tasks.clock.wall_of_boottime(process.id.start_boottime)),
                tid: None,
            };
            rows.push("process", Some(process.id.pid), &key, &process.counts);
        }
        if ctx.boundary.is_some() {
            self.since_tick = sum;
        } else {
            if let Some(before) = self.read_at {
                let key = place_key(ctx, monotonic_ns() - before);
                rows.push_metrics("target", None, &key, &sum);
            }
            self.report.add(&sum);
        }
        // Open before closing: a child is known by its parent, which may have ended since.
        let opened = processes.open_new(ctx.tasks, &self.host, &self.plan);
        processes.close_ended(ctx.tasks);
        result.and(opened.map_err(|(pid, error)| not_counted("process", pid, &error, &self.host)))
    }

    /// Reads CPUs and sockets.
    fn read_places(&mut self, ctx: &TickContext<'_>) -> Result<()> {
        let mut sum = vec![None; self.plan.events.len()];
        let mut rows = Rows {
            ctx,
            plan: &self.plan,
            constants: &self.constants,
            events: &mut self.events,
            metrics: &mut self.metrics,
        };
        let cpus = self.node.cpus.iter_mut().map(|unit| ("cpu", unit));
        let sockets = self.node.sockets.iter_mut().map(|unit| ("socket", unit));
        for (scope, unit) in cpus.chain(sockets) {
            read_place(scope, unit, &mut rows, &mut sum);
        }
        if let Some(before) = self.read_at {
            let key = place_key(ctx, monotonic_ns() - before);
            rows.push_metrics("node", None, &key, &sum);
        }
        self.report.add(&sum);
        let opened = self.node.open_online(&self.host);
        opened.map_err(|(cpu, error)| not_counted("CPU", cpu, &error, &self.host))
    }
}

fn not_counted(what: &str, number: u32, error: &io::Error, host: &Host) -> Error {
    let why = explain(error, host);
    match &*remedy(error, host) {
        "" => anyhow!("{what} {number} is not counted: {why}"),
        remedy => anyhow!("{what} {number} is not counted: {why} (remedy: {remedy})"),
    }
}

fn read_place(
    scope: &'static str,
    unit: &mut UnitCounters,
    rows: &mut Rows<'_>,
    sum: &mut [Option<Count>],
) {
    let now = monotonic_ns();
    unit.read();
    if let Some(before) = unit.read_at.replace(now) {
        add(sum, &unit.counts);
        let key = place_key(rows.ctx, now - before);
        rows.push(scope, Some(unit.id), &key, &unit.counts);
    }
}

fn place_key(ctx: &TickContext<'_>, interval_ns: u64) -> OwnerKey {
    OwnerKey {
        ts: ctx.tick.ts,
        interval_ns,
        pid: None,
        start_ts: None,
        tid: None,
    }
}

/// Count of an event of a group, summed over processes, CPUs, sockets and kinds of cores; from the
/// batches of a sample.
pub fn count(batches: &[Batch], [group, event]: [&str; 2]) -> Option<f64> {
    let events = read::Rows::of(batches, &EVENTS)
        .with(EventRow::group, &[group])
        .with(EventRow::event, &[event]);
    sum_of_known(events.values(EventRow::count))
}

fn add(sum: &mut [Option<Count>], counts: &[Option<Count>]) {
    for (sum, count) in sum.iter_mut().zip(counts) {
        if let Some(count) = count {
            sum.get_or_insert_default().add_count(count);
        }
    }
}

impl Source for Perf {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let processes = self.read_processes(ctx);
        let mut targets = Ok(());
        if ctx.boundary.is_none() {
            targets = self.read_places(ctx);
            self.read_at = Some(monotonic_ns());
        }
        self.events.finish(out);
        self.metrics.finish(out);
        processes.and(targets)
    }

    fn support(&self) -> Support {
        support(&self.plan)
    }

    fn summary(&self, elapsed_ns: u64) -> Option<String> {
        self.report.text(&self.plan, &self.constants, elapsed_ns)
    }
}

/// Builders of the rows, and what they are computed with.
struct Rows<'a> {
    ctx: &'a TickContext<'a>,
    plan: &'a Plan,
    constants: &'a Constants,
    events: &'a mut TableBuilder<OwnerKey, EventRow>,
    metrics: &'a mut TableBuilder<OwnerKey, MetricRow>,
}

impl Rows<'_> {
    fn push(
        &mut self,
        scope: &'static str,
        id: Option<u32>,
        key: &OwnerKey,
        counts: &[Option<Count>],
    ) {
        for (event, count) in self.plan.events.iter().zip(counts) {
            let (Some(id), Some(count)) = (id, count) else {
                continue;
            };
            self.events.push(
                key.clone(),
                EventRow {
                    scope: Label::Static(scope),
                    id,
                    pmu: event.pmu.clone(),
                    group: event.group.clone(),
                    event: event.event.clone(),
                    count: event.value(count),
                    count_raw: count.raw,
                    enabled_ns: count.enabled,
                    running_ns: count.running,
                },
            );
        }
        self.push_metrics(scope, id, key, counts);
    }

    fn push_metrics(
        &mut self,
        scope: &'static str,
        id: Option<u32>,
        key: &OwnerKey,
        counts: &[Option<Count>],
    ) {
        let seconds = key.interval_ns as f64 / 1e9;
        for found in evaluate(self.plan, self.constants, counts, seconds) {
            self.metrics.push(
                key.clone(),
                MetricRow {
                    scope: Label::Static(scope),
                    id,
                    pmu: found.group.pmu.clone(),
                    group: found.group.name.clone(),
                    metric: found.metric.name.clone(),
                    value: found.value,
                    unit: found.metric.unit.clone(),
                    running_ratio: found.quality,
                },
            );
        }
    }
}
