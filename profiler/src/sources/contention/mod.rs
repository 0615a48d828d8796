//! `contention`: what used the CPUs while threads of the target waited for them.
//!
//! Processes outside the target are read from `/proc` only after an interval in which the target
//! waited, and rarely enough to cost little. Quotas are those of the cgroups of the waiting processes.

mod neighbours;
mod throttling;

use anyhow::Result;

use self::{
    neighbours::Neighbours,
    throttling::{Throttled, Throttling},
};
use super::{Source, SourceSpec, TickContext};
use crate::{
    columns,
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::{
        clock::{monotonic_ns, thread_cpu_ns},
        delta::Interval,
    },
};

columns! {
    /// Processes outside the target with the same name.
    pub struct NeighbourRow {
        comm: Label = Label("", "Command name; that of the parent for processes that started and ended since the previous reading"),
        processes: u64 = Gauge("1", "Processes with this name that used CPU time"),
        cpu_ns: u64 = Counter("ns", "CPU time of these processes since the previous reading (`/proc/PID/stat`, in steps of 10 ms)"),
    }
}

columns! {
    /// A cgroup with a quota over one interval.
    pub struct ThrottleRow {
        cgroup: Label = Label("", "Path of the cgroup, below the mount point of its hierarchy"),
        quota_cpus: f64 = Gauge("1", "CPU quota of the cgroup, in CPUs"),
        periods: u64 = Counter("1", "Periods in which a thread was runnable (`cpu.stat nr_periods`)"),
        throttled_periods: u64 = Counter("1", "Periods in which the quota was used up (`cpu.stat nr_throttled`)"),
        throttled_ns: u64 = Counter("ns", "Time in which the quota stopped runnable threads, summed over CPUs (`cpu.stat throttled_usec`, `throttled_time`)"),
    }
}

static NEIGHBOURS: TypedTable<TickKey, NeighbourRow> = TypedTable::new(
    "neighbour",
    "One row per command name outside the target and sample, if the target had waited for CPUs: the eight with the most CPU time",
);

static THROTTLES: TypedTable<TickKey, ThrottleRow> = TypedTable::new(
    "throttle",
    "One row per sample and cgroup with a CPU quota in which processes of the target waited, if the quota was used up",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "contention",
    help: "other processes and quotas that kept the target waiting for CPUs",
    tables: &[NEIGHBOURS.untyped(), THROTTLES.untyped()],
    open: |context| {
        // An ordinary user learns no more about others than the kernel shows them.
        let shows_others = !context.for_user && !context.node;
        Ok(Box::new(Contention {
            neighbours: shows_others.then(|| Neighbours::new(&context.host.procfs)),
            throttling: Throttling::new(context.host),
            interval: Interval::default(),
            read_at: None,
            next: 0,
            neighbour_rows: TableBuilder::new(&NEIGHBOURS),
            throttle_rows: TableBuilder::new(&THROTTLES),
        }))
    },
    ..SourceSpec::DEFAULT
};

/// Rows of a reading.
const ROWS_MAX: usize = 8;
/// Share of the time in which threads could have run that they waited, from which it is asked why.
const WAITED: f64 = 0.1;
/// Threads that waited on average, from which it is asked why.
const THREADS: f64 = 0.05;
/// Pause after a reading of all processes, as a multiple of its CPU time: at most 0.5 % of a CPU.
const PAUSE_FACTOR: u64 = 200;
/// Age up to which a reading is a baseline: older ones would show CPU time from before the wait.
const AGE_MAX: u64 = 10_000_000_000;

struct Contention {
    /// `None` if the rows must not tell about others.
    neighbours: Option<Neighbours>,
    throttling: Throttling,
    interval: Interval,
    /// Time of the last reading of all processes, and until when it is a baseline, ns.
    read_at: Option<(u64, u64)>,
    /// Time of the next one, ns.
    next: u64,
    neighbour_rows: TableBuilder<TickKey, NeighbourRow>,
    throttle_rows: TableBuilder<TickKey, ThrottleRow>,
}

impl Contention {
    /// Reads all processes outside the target.
    fn read_neighbours(&mut self, ctx: &TickContext<'_>) {
        let Some(neighbours) = &mut self.neighbours else {
            return;
        };
        let (begin, cpu) = (monotonic_ns(), thread_cpu_ns());
        let used = neighbours.read(ctx.tasks);
        let pause = (thread_cpu_ns() - cpu) * PAUSE_FACTOR;
        self.next = begin + pause;
        let before = self
            .read_at
            .replace((begin, begin + AGE_MAX.max(2 * pause)));
        if let Some((before, until)) = before
            && begin <= until
        {
            for (comm, of) in used.into_iter().take(ROWS_MAX) {
                let row = NeighbourRow {
                    comm: comm.into(),
                    processes: of.processes,
                    cpu_ns: of.cpu_ns,
                };
                self.neighbour_rows.push(ctx.key(begin - before), row);
            }
        }
    }
}

impl Source for Contention {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let interval_ns = self.interval.end(ctx.tick.monotonic_ns);
        let is_first = interval_ns.is_none();
        let interval_ns = interval_ns.unwrap_or(0);
        let has_waited = has_waited(ctx, interval_ns);
        if is_first || has_waited {
            self.throttling.find(ctx.tasks, interval_ns);
        }
        for throttled in self.throttling.read() {
            self.throttle_rows
                .push(ctx.key(interval_ns), row(throttled));
        }
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.add_parents(ctx.tasks);
        }
        if is_first || has_waited && monotonic_ns() >= self.next {
            self.read_neighbours(ctx);
        }
        self.neighbour_rows.finish(out);
        self.throttle_rows.finish(out);
        Ok(())
    }
}

fn row(throttled: Throttled) -> ThrottleRow {
    ThrottleRow {
        cgroup: throttled.cgroup.into(),
        quota_cpus: throttled.quota,
        periods: throttled.increase.periods,
        throttled_periods: throttled.increase.throttled_periods,
        throttled_ns: throttled.increase.throttled_ns,
    }
}

/// Whether threads of the target waited for CPUs for a considerable time in this interval.
fn has_waited(ctx: &TickContext<'_>, interval_ns: u64) -> bool {
    let rows = ctx.tasks.rows.iter().filter(|row| row.tid.is_none());
    let (mut ran, mut waited) = (0, 0);
    for row in rows {
        ran += row.increase.oncpu;
        waited += row.increase.run_delay;
    }
    let (ran, waited) = (ran as f64, waited as f64);
    waited >= WAITED * (ran + waited) && waited >= THREADS * interval_ns as f64 && waited > 0.0
}
