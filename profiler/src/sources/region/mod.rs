//! `region`: spans, events and values that the application marks, and what was used during each span.

mod counters;
mod open;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, anyhow};
use hashbrown::{HashMap, HashSet};

use self::{
    counters::{Counts, EventName, Increases, Sums, UsageRow},
    open::{Open, Regions},
};
use super::{Source, SourceSpec, TickContext, task_support};
use crate::{
    columns,
    marks::{Loss, Mark, MarkReceiver, Op, Received},
    schema::{Batch, Label, Table, TableBuilder, Timestamp},
    support::self_metrics::{Component, SelfMetrics},
    tasks::{
        Process, TaskTable,
        process_tree::{ProcessKey, ProcessTree, process_key},
    },
};

columns! {
    /// Whose region, and when the row was made.
    pub struct RegionKey {
        ts: Timestamp = Label("ns", "Wall clock of the reading at which this state of the row was known"),
        interval_ns: Option<u64> = Gauge("ns", "Length of the region; null while it is open, and where its start is not known"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("ns", "Start of the process; (pid, start_ts) identifies it"),
        region: u64 = Label("", "Number of the region among those of this host in this run"),
    }
}

columns! {
    /// A region, phase or event.
    pub struct RegionRow {
        name: Option<Label> = Label("", "Its name; null for an end without a start that names none"),
        op: Label = Label("", "How it was marked: region (start and end), phase (one mark at its end), event (no length)"),
        kind: Option<Label> = Label("", "Kind of thing, in the application's words"),
        id: Option<String> = Label("", "Identifier, as the application chose it"),
        parent: Option<String> = Label("", "Identifier of the region that it is part of, as the application told it"),
        parent_region: Option<u64> = Label("", "Number of that region, if it was open in this process or an ancestor"),
        group: Option<Label> = Label("", "Regions that belong together, as the application told it"),
        status: Option<Label> = Label("", "finished, error, or the application's word; unfinished: its process ended first; run_ended: the run did; unmatched: an end without a start; null for events, and while it is open"),
        region_start_ts: Option<Timestamp> = Label("ns", "When the mark of its start was sent; null for an end without a start"),
        region_end_ts: Option<Timestamp> = Label("ns", "When the mark of its end was sent, its process ended, or the run did; null while it is open"),
        attributes: Option<String> = Label("", "What else the application told, JSON"),
        used: Option<String> = Label("", "What was read, JSON"),
        generated: Option<String> = Label("", "What was made, JSON"),
        tags: Option<String> = Label("", "Words, JSON"),
    }
}

columns! {
    /// A value that the application told.
    pub struct GaugeRow {
        ts: Timestamp = Label("ns", "Wall clock when the mark was sent"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("ns", "Start of the process; (pid, start_ts) identifies it"),
    }
}

columns! {
    /// The value.
    pub struct ValueRow {
        name: Option<Label> = Label("", "Name of the gauge"),
        value: f64 = Gauge("", "Its value, in `unit`"),
        unit: Option<Label> = Label("", "Unit of the value, as the application told it"),
        kind: Option<Label> = Label("", "Kind of thing, in the application's words"),
        group: Option<Label> = Label("", "Gauges and regions that belong together"),
        parent: Option<String> = Label("", "Identifier of the region that it is told of"),
        parent_region: Option<u64> = Label("", "Number of that region, if it was open in this process or an ancestor"),
        attributes: Option<String> = Label("", "What else the application told, JSON"),
        tags: Option<String> = Label("", "Words, JSON"),
    }
}

columns! {
    /// Which region, and between which readings.
    pub struct UsageKey {
        ts: Timestamp = Label("ns", "Wall clock of the reading at the region's end"),
        interval_ns: Option<u64> = Gauge("ns", "Time between the readings at its start and at its end; null where one reading stands for both, and nothing is known"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("ns", "Start of the process; (pid, start_ts) identifies it"),
        region: u64 = Label("", "Number of the region among those of this host in this run"),
    }
}

columns! {
    /// A hardware event during a region.
    pub struct EventRow {
        name: Option<Label> = Label("", "Name of the region"),
        pmu: Label = Label("", "Which PMU counts it"),
        group: Option<Label> = Label("", "Group that it was counted for; null for events by hand (--events)"),
        event: Label = Label("", "Its name in the CPU's table"),
        value: Option<f64> = Counter("1", "The count, scaled to the whole time; null when it was not counted all along"),
        raw: u64 = Counter("1", "What the counters counted, not scaled"),
        enabled_ns: u64 = Counter("ns", "Time that the event was to be counted"),
        running_ns: u64 = Counter("ns", "Time that it was on a counter"),
    }
}

static REGION: Table = Table::of_lifetimes::<RegionKey, RegionRow>(
    "region",
    "One row per region, phase or event that the application marked",
);

static USAGE: Table = Table::new::<UsageKey, UsageRow>(
    "region_usage",
    "One row per region that has ended: what its process and that one's descendants used between the readings at its start and its end",
);

static PERF: Table = Table::new::<UsageKey, EventRow>(
    "region_perf",
    "One row per region that has ended and hardware event, where its process's events are counted",
);

static GAUGE: Table = Table::new::<GaugeRow, ValueRow>(
    "region_gauge",
    "One row per value that the application told",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "region",
    help: "regions, events and values that the application marks, and what regions used",
    tables: &[&REGION, &USAGE, &PERF, &GAUGE],
    probe: task_support,
    tasks: true,
    procfs: true,
    instrumentation: None,
    default: true,
    open: |context| {
        let receiver = context.marks.map_err(|why| anyhow!("{why}"))?;
        Ok(Box::new(Marked::new(receiver.clone())))
    },
};

/// What a process with regions, and its descendants, used up to a reading.
#[derive(Debug, Default)]
struct Snapshot {
    /// Of the reading.
    ts: i64,
    /// The next reading adds what processes did that were ending while they were to be read.
    sums: Mutex<Sums>,
    events: BTreeMap<EventKey, Counts>,
}

impl Snapshot {
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event's name in a form that has an order.
type EventKey = (String, Option<String>, String);

/// A process with regions that are open.
#[derive(Debug, Default)]
struct Root {
    sums: Sums,
    events: BTreeMap<EventKey, Counts>,
    /// Of the last reading, if a region began or ended there.
    snapshot: Option<Arc<Snapshot>>,
}

/// A region whose end has been read.
struct Closing {
    of: ProcessKey,
    open: Open,
    end: i64,
    to: Arc<Snapshot>,
}

impl Root {
    fn snapshot(&mut self, ts: i64) -> Arc<Snapshot> {
        let snapshot = self.snapshot.get_or_insert_with(|| {
            Arc::new(Snapshot {
                ts,
                sums: Mutex::new(self.sums.clone()),
                events: self.events.clone(),
            })
        });
        snapshot.clone()
    }

    fn add_event(&mut self, (pmu, group, event): &EventName, counts: &Counts) {
        let key = (
            pmu.as_str().to_owned(),
            group.as_ref().map(|group| group.as_str().to_owned()),
            event.as_str().to_owned(),
        );
        self.events.entry(key).or_default().add(counts);
    }
}

struct Marked {
    receiver: Arc<MarkReceiver>,
    regions: Regions,
    roots: HashMap<ProcessKey, Root>,
    /// Regions that ended at the last reading, and whom that one had missed.
    closing: Vec<Closing>,
    missed: HashSet<ProcessKey>,
    /// Number of the last region.
    last: u64,
    /// Runs without error of each source up to the reading before.
    runs: HashMap<&'static str, u64>,
    rows: TableBuilder<RegionKey, RegionRow>,
    usage: TableBuilder<UsageKey, UsageRow>,
    events: TableBuilder<UsageKey, EventRow>,
    gauges: TableBuilder<GaugeRow, ValueRow>,
}

impl Source for Marked {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let users: HashSet<u32> = at.tasks.iter().map(|process| process.uid).collect();
        self.receiver.allow(users);
        self.add_up(at, out);
        self.store_closed();
        for root in self.roots.values_mut() {
            root.snapshot = None;
        }
        self.take_marks(at);
        self.end_with_their_processes(at);
        let missed = at.tasks.missed();
        self.missed = missed
            .map(|process| process_key(&at.tasks.clock, process.id))
            .collect();
        if self.missed.is_empty() || at.last {
            self.store_closed();
        }
        let closing: HashSet<ProcessKey> = self.closing.iter().map(|closing| closing.of).collect();
        self.roots
            .retain(|who, _| self.regions.any_of(*who) || closing.contains(who));
        self.rows.finish(out);
        self.usage.finish(out);
        self.events.finish(out);
        self.gauges.finish(out);
        Ok(())
    }
}

impl Marked {
    fn new(receiver: Arc<MarkReceiver>) -> Self {
        Self {
            receiver,
            regions: Regions::default(),
            roots: HashMap::new(),
            closing: Vec::new(),
            missed: HashSet::new(),
            last: 0,
            runs: HashMap::new(),
            rows: TableBuilder::new(&REGION),
            usage: TableBuilder::new(&USAGE),
            events: TableBuilder::new(&PERF),
            gauges: TableBuilder::new(&GAUGE),
        }
    }

    /// Adds what every process did since the reading before to those that it descends from and that have regions.
    fn add_up(&mut self, at: &TickContext<'_>, batches: &[Batch]) {
        let have_read = self.have_read(at.self_metrics);
        if self.roots.is_empty() {
            return;
        }
        for root in self.roots.values_mut() {
            root.sums.miss_all_but(&have_read);
        }
        if !self.missed.is_empty() {
            // Of one that lives on, most of it is of after that reading.
            let ended = at.tasks.iter().filter(|process| process.end.is_some());
            let ended: HashSet<ProcessKey> = ended
                .map(|process| process_key(&at.tasks.clock, process.id))
                .collect();
            self.missed.retain(|of| ended.contains(of));
        }
        let increases = Increases::of(batches);
        for (who, sums) in &increases.sums {
            for ancestor in at.tasks.process_tree.ancestry(*who) {
                if let Some(root) = self.roots.get_mut(&ancestor) {
                    root.sums.add(sums);
                    if let Some(before) = &root.snapshot
                        && self.missed.contains(who)
                    {
                        before.sums().add(sums);
                    }
                }
            }
        }
        for (who, events) in &increases.events {
            for ancestor in at.tasks.process_tree.ancestry(*who) {
                if let Some(root) = self.roots.get_mut(&ancestor) {
                    for (name, counts) in events {
                        root.add_event(name, counts);
                    }
                }
            }
        }
    }

    /// The sources that have read at this reading without error: where they have no row, nothing happened.
    fn have_read(&mut self, self_metrics: &SelfMetrics) -> Vec<&'static str> {
        let mut have_read = Vec::new();
        for (part, name, account) in self_metrics.iter() {
            let runs = account.runs.unwrap_or(0);
            let runs = runs.saturating_sub(account.errors.unwrap_or(0));
            if part == Component::Source && self.runs.insert(name, runs) != Some(runs) {
                have_read.push(name);
            }
        }
        have_read
    }

    /// Takes the marks that this reading can tell about; the others wait for the next one.
    fn take_marks(&mut self, at: &TickContext<'_>) {
        let marks = self.receiver.take();
        if marks.is_empty() {
            return;
        }
        let processes = Processes::of(at.tasks);
        let mut later = Vec::new();
        for received in marks {
            let process = processes.meant_by(&received);
            let of = process.map(|process| process_key(&at.tasks.clock, process.id));
            // What was sent after the reading had begun belongs to the next one; so do marks of processes whose rows are held.
            let waits = received.at > at.tick.monotonic_ns
                || at
                    .boundary
                    .is_some_and(|marked| !marked.contains(&received.of()));
            if waits && !at.last {
                later.push(received);
            } else {
                self.take(at, of, &received);
            }
        }
        if !later.is_empty() {
            self.receiver.put_back(later);
        }
    }

    fn take(&mut self, at: &TickContext<'_>, of: Option<ProcessKey>, received: &Received) {
        let Some(of) = of else {
            self.receiver.lose(Loss::Refused, received.uid, || {
                let whose = match received.mark.pid {
                    Some(claimed) if claimed != received.pid => {
                        format!("process {} for process {claimed}", received.pid)
                    }
                    _ => format!("process {}", received.pid),
                };
                format!("from {whose} of user {}: not of the target", received.uid)
            });
            return;
        };
        let mark = &received.mark;
        match mark.op {
            Op::Start => self.start(at, of, received),
            Op::End => self.end(at, of, received),
            Op::Gauge => {
                let key = GaugeRow {
                    ts: at.tasks.clock.wall(received.at),
                    pid: of.0,
                    start_ts: Timestamp(of.1),
                };
                let parent = self.parent(&at.tasks.process_tree, of, mark);
                self.gauges.push(
                    key,
                    ValueRow {
                        name: label(mark.name.as_ref()),
                        value: mark.value.unwrap_or(f64::NAN),
                        unit: label(mark.unit.as_ref()),
                        kind: label(mark.kind.as_ref()),
                        group: label(mark.group.as_ref()),
                        parent: mark.parent.clone(),
                        parent_region: parent,
                        attributes: attributes(mark),
                        tags: json(mark.tags.as_ref()),
                    },
                );
            }
            Op::Event | Op::Phase => {
                self.last += 1;
                let mut mark = mark.clone();
                if mark.op == Op::Phase {
                    mark.status.get_or_insert_with(|| "finished".to_owned());
                }
                let length = Duration::try_from_secs_f64(mark.seconds.unwrap_or(0.0));
                // Longer than since 1970 is a mistake.
                let ns = length.map_or(i64::MAX, |length| {
                    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
                });
                let end = at.tasks.clock.wall(received.at).0;
                let region = Region {
                    number: self.last,
                    parent: self.parent(&at.tasks.process_tree, of, &mark),
                    start: Some(end.saturating_sub(ns).max(0)),
                    end: Some(end),
                };
                self.push(at, of, &mark, &region);
            }
        }
    }

    fn start(&mut self, at: &TickContext<'_>, of: ProcessKey, received: &Received) {
        if !self.regions.has_room(of, received.uid) {
            self.receiver.lose(Loss::TooManyOpen, received.uid, || {
                format!("from process {}: too many regions are open", of.0)
            });
            return;
        }
        if let Some(id) = &received.mark.id
            && self.regions.by_id(of, id).is_some()
        {
            self.receiver.lose(Loss::Duplicate, received.uid, || {
                format!("from process {}: region {id:?} is open already", of.0)
            });
        }
        self.last += 1;
        let parent = self.parent(&at.tasks.process_tree, of, &received.mark);
        let from = self.roots.entry(of).or_default().snapshot(at.tick.ts.0);
        let region = Region {
            number: self.last,
            parent,
            start: Some(at.tasks.clock.wall(received.at).0),
            end: None,
        };
        self.push(at, of, &received.mark, &region);
        let start = at.tasks.clock.wall(received.at).0;
        self.regions
            .open(of, self.last, received, start, parent, from);
    }

    fn end(&mut self, at: &TickContext<'_>, of: ProcessKey, received: &Received) {
        if let Some(mut open) = self.regions.end(of, &received.mark) {
            open.mark
                .status
                .get_or_insert_with(|| "finished".to_owned());
            self.close(at, of, open, at.tasks.clock.wall(received.at).0);
            return;
        }
        let mut mark = received.mark.clone();
        self.receiver.lose(Loss::Unmatched, received.uid, || {
            match mark.id.as_ref().or(mark.name.as_ref()) {
                Some(name) => format!("from process {}: no region {name:?} is open", of.0),
                None => format!("from process {}: no region is open", of.0),
            }
        });
        self.last += 1;
        mark.status = Some("unmatched".to_owned());
        let region = Region {
            number: self.last,
            parent: self.parent(&at.tasks.process_tree, of, &mark),
            start: None,
            end: Some(at.tasks.clock.wall(received.at).0),
        };
        self.push(at, of, &mark, &region);
    }

    /// Regions whose process has ended, or all at the end of the run.
    fn end_with_their_processes(&mut self, at: &TickContext<'_>) {
        let ends: HashMap<ProcessKey, u64> = at
            .tasks
            .iter()
            .filter_map(|process| Some((process_key(&at.tasks.clock, process.id), process.end?.at)))
            .collect();
        let processes: Vec<ProcessKey> = self.regions.processes().collect();
        for of in processes {
            let (end, status) = match ends.get(&of) {
                Some(end) => (at.tasks.clock.wall(*end).0, "unfinished"),
                None if at.last => (at.tick.ts.0, "run_ended"),
                None => continue,
            };
            for mut open in self.regions.end_all(of) {
                open.mark.status = Some(status.to_owned());
                self.close(at, of, open, end);
            }
        }
    }

    /// The region that a mark names as its parent: of the same process or of an ancestor.
    fn parent(&self, process_tree: &ProcessTree, of: ProcessKey, mark: &Mark) -> Option<u64> {
        let id = mark.parent.as_ref()?;
        let mut line = process_tree.ancestry(of);
        line.find_map(|ancestor| Some(self.regions.by_id(ancestor, id)?.number))
    }

    /// Stores the end of a region; what was used during it follows when it is complete.
    fn close(&mut self, at: &TickContext<'_>, of: ProcessKey, open: Open, end: i64) {
        let region = Region {
            number: open.number,
            parent: open.parent,
            start: Some(open.start),
            end: Some(end),
        };
        self.push(at, of, &open.mark, &region);
        let to = self.roots.entry(of).or_default().snapshot(at.tick.ts.0);
        self.closing.push(Closing { of, open, end, to });
    }

    /// Stores what was used during the regions that have ended.
    fn store_closed(&mut self) {
        for Closing { of, open, end, to } in std::mem::take(&mut self.closing) {
            let from = &open.from;
            let interval_ns = u64::try_from(to.ts - from.ts).ok().filter(|ns| *ns != 0);
            let key = UsageKey {
                ts: Timestamp(to.ts),
                interval_ns,
                pid: of.0,
                start_ts: Timestamp(of.1),
                region: open.number,
            };
            let name = label(open.mark.name.as_ref());
            let offsets = [from.ts - open.start, to.ts - end];
            let values = match interval_ns {
                Some(_) => to.sums().since(&from.sums()),
                None => [None; _],
            };
            self.usage
                .push(key.clone(), UsageRow::new(name.clone(), offsets, values));
            for (event, counts) in to.events.iter().filter(|_| interval_ns.is_some()) {
                let counts = counts.since(&from.events.get(event).copied().unwrap_or_default());
                let (pmu, group, event) = event.clone();
                self.events.push(
                    key.clone(),
                    EventRow {
                        name: name.clone(),
                        pmu: pmu.into(),
                        group: group.map(Into::into),
                        event: event.into(),
                        value: (counts.unknown == 0).then_some(counts.value),
                        raw: counts.raw,
                        enabled_ns: counts.enabled_ns,
                        running_ns: counts.running_ns,
                    },
                );
            }
        }
    }

    fn push(&mut self, at: &TickContext<'_>, of: ProcessKey, mark: &Mark, region: &Region) {
        let length = region.start.zip(region.end).map(|(start, end)| end - start);
        self.rows.push(
            RegionKey {
                ts: at.tick.ts,
                interval_ns: length.and_then(|ns| u64::try_from(ns).ok()),
                pid: of.0,
                start_ts: Timestamp(of.1),
                region: region.number,
            },
            RegionRow {
                name: label(mark.name.as_ref()),
                op: match mark.op {
                    Op::Phase => "phase",
                    Op::Event => "event",
                    Op::Start | Op::End | Op::Gauge => "region",
                }
                .into(),
                kind: label(mark.kind.as_ref()),
                id: mark.id.clone(),
                parent: mark.parent.clone(),
                parent_region: region.parent,
                group: label(mark.group.as_ref()),
                status: label(mark.status.as_ref()),
                region_start_ts: region.start.map(Timestamp),
                region_end_ts: region.end.map(Timestamp),
                attributes: attributes(mark),
                used: json(mark.used.as_ref()),
                generated: json(mark.generated.as_ref()),
                tags: json(mark.tags.as_ref()),
            },
        );
    }
}

/// What a row of a region has beyond its mark; times in ns of wall clock.
struct Region {
    number: u64,
    parent: Option<u64>,
    start: Option<i64>,
    end: Option<i64>,
}

fn label(text: Option<&String>) -> Option<Label> {
    text.map(|text| text.clone().into())
}

fn json(value: Option<&serde_json::Value>) -> Option<String> {
    value.map(ToString::to_string)
}

fn attributes(mark: &Mark) -> Option<String> {
    (!mark.attrs.is_empty()).then(|| serde_json::Value::Object(mark.attrs.clone()).to_string())
}

/// The processes of a reading by their pids.
struct Processes<'a> {
    of: HashMap<u32, Vec<&'a Process>>,
    tasks: &'a TaskTable,
}

impl<'a> Processes<'a> {
    /// Start times in /proc are in units of 10 ms.
    const TICK: u64 = 10_000_000;

    fn of(tasks: &'a TaskTable) -> Self {
        let mut of: HashMap<u32, Vec<&Process>> = HashMap::new();
        for process in tasks.iter() {
            of.entry(process.id.pid).or_default().push(process);
        }
        Self { of, tasks }
    }

    /// The process that a mark is of. That it is another than the sender is believed if both are of the same user, or the
    /// sender is root.
    fn meant_by(&self, received: &Received) -> Option<&'a Process> {
        match received.mark.pid {
            Some(claimed) if claimed != received.pid => {
                let process = self.at(claimed, received.at)?;
                (received.uid == 0 || received.uid == process.uid).then_some(process)
            }
            _ => self.at(received.pid, received.at),
        }
    }

    /// Who had this pid at that time: of several, the one that had started last.
    fn at(&self, pid: u32, at: u64) -> Option<&'a Process> {
        let started = |process: &&&Process| {
            let start = process.id.start_boottime;
            self.tasks.clock.monotonic_of_boottime(start) <= at + Self::TICK
        };
        let candidates = self.of.get(&pid)?.iter().filter(started);
        candidates
            .max_by_key(|process| process.id.start_boottime)
            .copied()
    }
}
