//! `perf`: hardware counters and the metrics that follow from them.

mod report;

use anyhow::{Context as _, Result, anyhow};

use super::{Context, Source, SourceSpec, Support, TickContext, energy};
use crate::{
    columns,
    host::Host,
    perf::{
        Count, Machine, NodeCounters, Plan, Selection, TargetCounters, UnitCounters,
        constants::Constants, evaluate, explain, remedy,
    },
    schema::{Batch, Label, OwnerKey, Table, TableBuilder},
    support::{clock::monotonic_ns, file_limit},
};

use self::report::Report;

columns! {
    /// One event.
    pub struct EventRow {
        scope: Label = Label("", "Whose count it is: process (with all that descend from it since it was opened), cpu (with --node), socket (parts of the node that count for all)"),
        id: u32 = Label("", "Number of the process, CPU or socket"),
        pmu: Label = Label("", "Which PMU counts it, as in /sys/bus/event_source/devices; all instances together"),
        group: Option<Label> = Label("", "Group that it was counted for; null for events by hand (--events)"),
        event: Label = Label("", "Its name in the CPU's table"),
        value: Option<f64> = Counter("1", "The count, scaled to the whole time by the share of it that was counted; in the event's unit where the kernel gives one (J, MiB); null when it was never counted, or the kernel does not tell its unit"),
        raw: u64 = Counter("1", "What the counters counted, not scaled"),
        enabled_ns: u64 = Counter("ns", "Time that the event was to be counted: a process's time on CPU, summed over threads, CPUs or instances"),
        running_ns: u64 = Counter("ns", "Time that it was on a counter: less than enabled_ns when there were more events than counters"),
    }
}

columns! {
    /// One metric.
    pub struct MetricRow {
        scope: Label = Label("", "What it is of: process, cpu, socket, or target (all processes of it) and node (all that count for it)"),
        id: Option<u32> = Label("", "Number of the process, CPU or socket"),
        pmu: Label = Label("", "Which PMU counts its events"),
        group: Label = Label("", "Group of its events"),
        metric: Label = Label("", "Its name; `profiler events` has formulas and meanings"),
        value: Option<f64> = Gauge("", "Its value over the interval, in `unit`; null when an event has none, and when it would divide by 0"),
        unit: Label = Label("", "Unit of the value"),
        quality: Option<f64> = Gauge("1", "Share of the time that its events were on counters (running / enabled), that of the worst; null when nobody ran"),
    }
}

static EVENTS: Table = Table::new::<OwnerKey, EventRow>(
    "perf_event",
    "One row per tick, event and process, CPU or socket: hardware counters",
);

static METRICS: Table = Table::new::<OwnerKey, MetricRow>(
    "perf_metric",
    "One row per tick, metric and process, CPU, socket, target or node: what follows from the counters",
);

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "perf",
    help: "hardware counters: cycles, FLOPS, cache and memory bandwidth",
    tables: &[&EVENTS, &METRICS],
    probe,
    tasks: true,
    procfs: true,
    instrumentation: None,
    default: true,
    open: |context| Ok(Box::new(Perf::open(context)?)),
};

/// What the groups of a run that says nothing else can do here.
fn probe(host: &Host) -> Support {
    let selection = Selection::default();
    let catalog = match selection.catalog() {
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
    Support::No {
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
        return Support::Works;
    }
    Support::Partly {
        why,
        remedy: plan.remedy.clone(),
    }
}

struct Perf {
    host: Host,
    plan: Plan,
    constants: Constants,
    /// `None` with `--node`, where the CPUs are counted.
    processes: Option<TargetCounters>,
    node: NodeCounters,
    events: TableBuilder<OwnerKey, EventRow>,
    metrics: TableBuilder<OwnerKey, MetricRow>,
    report: Report,
    read_at: Option<u64>,
    /// Counts of the target since `read_at`, up to the last boundary.
    since_tick: Vec<Option<Count>>,
}

impl Perf {
    fn open(context: &Context<'_>) -> Result<Self> {
        let catalog = context.perf.catalog()?;
        let machine = Machine::read(context.host, &catalog);
        let mut plan = Plan::new(&machine, context.perf)?;
        // A descriptor for each event of each thread.
        file_limit::raise();
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
                anyhow!("{why}; remedy: {remedy}")
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

    /// Reads the counters of processes; the sum of all.
    fn read_processes(&mut self, at: &TickContext<'_>) -> Result<()> {
        let Some(processes) = &mut self.processes else {
            return Ok(());
        };
        let mut result = Ok(());
        let mut sum = std::mem::take(&mut self.since_tick);
        sum.resize(self.plan.events.len(), None);
        let mut rows = Rows {
            at,
            plan: &self.plan,
            constants: &self.constants,
            events: &mut self.events,
            metrics: &mut self.metrics,
        };
        for process in &mut processes.processes {
            let now = monotonic_ns();
            let read = process.read();
            let whom = || format!("process {}", process.id.pid);
            result = result.and(read.with_context(whom));
            let interval_ns = now - std::mem::replace(&mut process.read_at, now);
            add(&mut sum, &process.counts);
            let key = OwnerKey {
                ts: at.tick.ts,
                interval_ns,
                pid: Some(process.id.pid),
                start_ts: Some(at.tasks.clock.wall_of_boottime(process.id.start_boottime)),
                tid: None,
            };
            rows.push("process", Some(process.id.pid), &key, &process.counts);
        }
        if at.boundary.is_some() {
            self.since_tick = sum;
        } else {
            if let Some(before) = self.read_at {
                let key = place_key(at, monotonic_ns() - before);
                rows.push_metrics("target", None, &key, &sum);
            }
            self.report.add(&sum);
        }
        // First, so that a child is known by its parent, which may have ended since.
        let opened = processes.open_new(at.tasks, &self.host, &self.plan);
        processes.close_ended(at.tasks);
        result.and(opened.map_err(|(pid, error)| {
            let why = explain(&error, &self.host);
            match remedy(&error, &self.host) {
                "" => anyhow!("without process {pid}: {why}"),
                remedy => anyhow!("without process {pid}: {why}; remedy: {remedy}"),
            }
        }))
    }

    /// Reads CPUs and sockets.
    fn read_places(&mut self, at: &TickContext<'_>) -> Result<()> {
        let mut result = Ok(());
        let mut sum = vec![None; self.plan.events.len()];
        let mut rows = Rows {
            at,
            plan: &self.plan,
            constants: &self.constants,
            events: &mut self.events,
            metrics: &mut self.metrics,
        };
        let cpus = self.node.cpus.iter_mut().map(|unit| ("cpu", unit));
        let sockets = self.node.sockets.iter_mut().map(|unit| ("socket", unit));
        for (scope, unit) in cpus.chain(sockets) {
            result = result.and(read_place(scope, unit, &mut rows, &mut sum));
        }
        if let Some(before) = self.read_at {
            let key = place_key(at, monotonic_ns() - before);
            rows.push_metrics("node", None, &key, &sum);
        }
        self.report.add(&sum);
        result
    }
}

fn read_place(
    scope: &'static str,
    unit: &mut UnitCounters,
    rows: &mut Rows<'_>,
    sum: &mut [Option<Count>],
) -> Result<()> {
    let now = monotonic_ns();
    let read = unit.read();
    if let Some(before) = unit.read_at.replace(now) {
        add(sum, &unit.counts);
        let key = place_key(rows.at, now - before);
        rows.push(scope, Some(unit.id), &key, &unit.counts);
    }
    read.with_context(|| format!("{scope} {}", unit.id))
}

fn place_key(at: &TickContext<'_>, interval_ns: u64) -> OwnerKey {
    OwnerKey {
        ts: at.tick.ts,
        interval_ns,
        pid: None,
        start_ts: None,
        tid: None,
    }
}

fn add(sum: &mut [Option<Count>], counts: &[Option<Count>]) {
    for (sum, count) in sum.iter_mut().zip(counts) {
        if let Some(count) = count {
            sum.get_or_insert_default().add_count(count);
        }
    }
}

impl Source for Perf {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let processes = self.read_processes(at);
        let mut targets = Ok(());
        if at.boundary.is_none() {
            targets = self.read_places(at);
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

/// Where rows go.
struct Rows<'a> {
    at: &'a TickContext<'a>,
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
                    value: event.value(count),
                    raw: count.raw,
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
                    quality: found.quality,
                },
            );
        }
    }
}
