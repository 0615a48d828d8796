//! `region`: regions, events and gauges that applications mark, and the resources used during
//! regions.

mod open_regions;
mod roots;
mod rows;
mod senders;
mod tables;
mod usage;

use std::{sync::Arc, time::Duration};

use anyhow::{Result, anyhow};
use hashbrown::{HashMap, HashSet};

use self::{
    open_regions::{OpenRegion, OpenRegions},
    roots::{Roots, Snapshot},
    rows::Rows,
    senders::Senders,
    tables::{GAUGE, PERF, ProcessName, REGION, USAGE},
};
use super::{Input, Source, SourceSpec, Stage, TickContext, View};
use crate::{
    marks::{Loss, Mark, MarkReceiver, Op, Received},
    schema::{Batch, Column, Columns as _, HOST_COLUMN, RUN_COLUMN},
    tasks::{
        Process,
        process_tree::{ProcessKey, ProcessTree, process_key},
    },
};

static PROCESS_REGION: View = View {
    name: "process_region",
    help: "One row per region: its process, its times, and the resources it used",
    query: "SELECT p.comm, p.cmdline, r.*, u.* EXCLUDE (run, host, ts, interval_ns, pid, start_ts, region_id, name)\n\
        FROM region r LEFT JOIN region_usage u USING (host, region_id)\n  \
        LEFT JOIN process p ON p.host = r.host AND p.pid = r.pid AND p.start_ts = r.start_ts",
    columns: columns_of_view,
};

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "region",
    help: "regions, events and values that the application marks, and the resources used by regions",
    tables: &[
        REGION.untyped(),
        USAGE.untyped(),
        PERF.untyped(),
        GAUGE.untyped(),
    ],
    views: &[&PROCESS_REGION],
    input: Input::Tasks { procfs: true },
    stage: Stage::Derive,
    marks: true,
    open: |context| {
        let receiver = context.marks.map_err(|why| anyhow!("{why}"))?;
        Ok(Box::new(Marked::new(receiver.clone())))
    },
    ..SourceSpec::DEFAULT
};

/// Columns of the view `process_region`.
fn columns_of_view() -> Vec<&'static Column> {
    let own: Vec<_> = REGION
        .columns()
        .chain([&RUN_COLUMN, &HOST_COLUMN])
        .collect();
    let is_new = |column: &&Column| own.iter().all(|known| known.name != column.name);
    let usage = USAGE.columns().filter(is_new);
    let process = ProcessName::COLUMNS.iter();
    process.chain(own.iter().copied()).chain(usage).collect()
}

/// Wall clock of the reading, ns.
fn tick_ns(ctx: &TickContext<'_>) -> i64 {
    ctx.tasks.clock.wall_ns(ctx.tick.monotonic_ns)
}

/// A region that has ended, with the snapshot of the reading at its end.
struct Closing {
    process: ProcessKey,
    open: OpenRegion,
    /// Wall clock of the end, ns.
    end: i64,
    to: Arc<Snapshot>,
}

/// Number, parent and times of a row of a region; wall clock in ns.
struct Span {
    number: u64,
    parent: Option<u64>,
    start: Option<i64>,
    end: Option<i64>,
}

struct Marked {
    receiver: Arc<MarkReceiver>,
    regions: OpenRegions,
    roots: Roots,
    /// Regions that ended at the last reading, whose usage is not stored yet.
    closing: Vec<Closing>,
    /// Number of the last region.
    last: u64,
    rows: Rows,
}

impl Source for Marked {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.receiver.allow(ctx.tasks.users().iter().copied());
        self.roots.add(ctx, out);
        self.store_closed();
        self.roots.begin_reading();
        self.take_marks(ctx);
        self.end_with_their_processes(ctx);
        let is_incomplete = self.roots.end_reading(ctx);
        if !is_incomplete || ctx.last {
            self.store_closed();
        }
        let closing: HashSet<ProcessKey> =
            self.closing.iter().map(|closing| closing.process).collect();
        self.roots
            .retain(|process| self.regions.any_of(process) || closing.contains(&process));
        self.rows.finish(out);
        Ok(())
    }
}

impl Marked {
    fn new(receiver: Arc<MarkReceiver>) -> Self {
        Self {
            receiver,
            regions: OpenRegions::default(),
            roots: Roots::default(),
            closing: Vec::new(),
            last: 0,
            rows: Rows::new(),
        }
    }

    /// Handles the marks that belong to this reading; the others wait for the next one.
    fn take_marks(&mut self, ctx: &TickContext<'_>) {
        let marks = self.receiver.take();
        if marks.is_empty() {
            return;
        }
        let senders = Senders::of(ctx.tasks);
        let mut later = Vec::new();
        for received in marks {
            let key = |process: &Process| process_key(&ctx.tasks.clock, process.id);
            // A shell with open regions may have become its last command, which marks for its parent.
            let sender = senders.sender_of(&received);
            let shell = sender.filter(|sender| received.mark.pid == Some(sender.ppid));
            let process = shell
                .map(key)
                .filter(|shell| self.regions.any_of(*shell))
                .or_else(|| senders.process_of(&received).map(key));
            // Marks sent after the reading had begun belong to the next one; so do marks of
            // processes that this reading does not include.
            let is_later = received.at > ctx.tick.monotonic_ns
                || ctx
                    .boundary
                    .is_some_and(|marked| !marked.contains(&received.of()));
            if is_later && !ctx.last {
                later.push(received);
            } else {
                self.handle(ctx, process, &received);
            }
        }
        if !later.is_empty() {
            self.receiver.put_back(later);
        }
    }

    fn handle(&mut self, ctx: &TickContext<'_>, process: Option<ProcessKey>, received: &Received) {
        let Some(process) = process else {
            self.receiver.lose(Loss::Refused, received.uid, || {
                let sender = match received.mark.pid {
                    Some(claimed) if claimed != received.pid => {
                        format!("process {} for process {claimed}", received.pid)
                    }
                    _ => format!("process {}", received.pid),
                };
                format!("from {sender} of user {}: not of the target", received.uid)
            });
            return;
        };
        let mark = &received.mark;
        match mark.op {
            Op::Start => self.start(ctx, process, received),
            Op::End => self.end(ctx, process, received),
            Op::Gauge => {
                let parent = self.parent(&ctx.tasks.process_tree, process, mark);
                let ts = ctx.tasks.clock.wall(received.at);
                self.rows.push_gauge(ts, process, mark, parent);
            }
            Op::Event | Op::Phase => self.store_event(ctx, process, received),
        }
    }

    /// Stores an event, or a phase, which is a region whose length is known at its end.
    fn store_event(&mut self, ctx: &TickContext<'_>, process: ProcessKey, received: &Received) {
        self.last += 1;
        let mut mark = received.mark.clone();
        if mark.op == Op::Phase {
            mark.status.get_or_insert_with(|| "finished".to_owned());
        }
        let length = Duration::try_from_secs_f64(mark.seconds.unwrap_or(0.0));
        // A length that begins before 1970 is a mistake.
        let ns = length.map_or(i64::MAX, |length| {
            i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
        });
        let end = ctx.tasks.clock.wall_ns(received.at);
        let span = Span {
            number: self.last,
            parent: self.parent(&ctx.tasks.process_tree, process, &mark),
            start: Some(end.saturating_sub(ns).max(0)),
            end: Some(end),
        };
        self.rows.push_region(ctx.tick.ts, process, &mark, &span);
    }

    fn start(&mut self, ctx: &TickContext<'_>, process: ProcessKey, received: &Received) {
        let mark = &received.mark;
        if !self.regions.has_room(process, received.uid) {
            self.receiver.lose(Loss::TooManyOpen, received.uid, || {
                format!("from process {}: too many regions are open", process.0)
            });
            return;
        }
        if let Some(id) = &mark.id
            && self.regions.by_id(process, id).is_some()
        {
            self.receiver.lose(Loss::Duplicate, received.uid, || {
                format!("from process {}: region {id:?} is open already", process.0)
            });
        }
        self.last += 1;
        let start = ctx.tasks.clock.wall_ns(received.at);
        let span = Span {
            number: self.last,
            parent: self.parent(&ctx.tasks.process_tree, process, mark),
            start: Some(start),
            end: None,
        };
        self.rows.push_region(ctx.tick.ts, process, mark, &span);
        let from = self.roots.snapshot(process, tick_ns(ctx));
        self.regions
            .open(process, self.last, received, start, span.parent, from);
    }

    fn end(&mut self, ctx: &TickContext<'_>, process: ProcessKey, received: &Received) {
        let end = ctx.tasks.clock.wall_ns(received.at);
        if let Some(mut open) = self.regions.end(process, &received.mark) {
            let status = &mut open.mark.status;
            status.get_or_insert_with(|| "finished".to_owned());
            self.close(ctx, process, open, end);
            return;
        }
        let mut mark = received.mark.clone();
        self.receiver.lose(Loss::Unmatched, received.uid, || {
            match mark.id.as_ref().or(mark.name.as_ref()) {
                Some(name) => format!("from process {}: no region {name:?} is open", process.0),
                None => format!("from process {}: no region is open", process.0),
            }
        });
        self.last += 1;
        mark.status = Some("unmatched".to_owned());
        let span = Span {
            number: self.last,
            parent: self.parent(&ctx.tasks.process_tree, process, &mark),
            start: None,
            end: Some(end),
        };
        self.rows.push_region(ctx.tick.ts, process, &mark, &span);
    }

    /// Ends the regions of ended processes and, at the end of the run, all regions.
    fn end_with_their_processes(&mut self, ctx: &TickContext<'_>) {
        let ends: HashMap<ProcessKey, u64> = ctx
            .tasks
            .ended()
            .filter_map(|process| {
                Some((process_key(&ctx.tasks.clock, process.id), process.end?.at))
            })
            .collect();
        let processes: Vec<ProcessKey> = self.regions.processes().collect();
        for process in processes {
            let (end, status) = match ends.get(&process) {
                Some(end) => (ctx.tasks.clock.wall_ns(*end), "unfinished"),
                None if ctx.last => (tick_ns(ctx), "run_ended"),
                None => continue,
            };
            for mut open in self.regions.end_all(process) {
                open.mark.status = Some(status.to_owned());
                self.close(ctx, process, open, end);
            }
        }
    }

    /// Number of the region that a mark names as its parent, in the same process or an ancestor.
    fn parent(&self, process_tree: &ProcessTree, process: ProcessKey, mark: &Mark) -> Option<u64> {
        let id = mark.parent.as_ref()?;
        let mut line = process_tree.ancestry(process);
        line.find_map(|ancestor| Some(self.regions.by_id(ancestor, id)?.number))
    }

    /// Stores the end of a region; the resources that it used follow when they are complete.
    fn close(&mut self, ctx: &TickContext<'_>, process: ProcessKey, open: OpenRegion, end: i64) {
        let span = Span {
            number: open.number,
            parent: open.parent,
            start: Some(open.start),
            end: Some(end),
        };
        let ts = ctx.tick.ts;
        self.rows.push_region(ts, process, &open.mark, &span);
        self.closing.push(Closing {
            process,
            open,
            end,
            to: self.roots.snapshot(process, tick_ns(ctx)),
        });
    }

    /// Stores the resources used by the ended regions.
    fn store_closed(&mut self) {
        for closing in std::mem::take(&mut self.closing) {
            self.rows.push_usage(&closing);
        }
    }
}
