//! `sched`: states of each process over time, as the scheduler accounts them, and run-queue
//! latency.

use anyhow::Result;

use super::{
    Input, Source, SourceSpec, TickContext, View,
    latency::{self, LatencyRow},
};
use crate::{
    bpf::{Hook, Instrumentation, Method, WAKEUP},
    columns,
    schema::{Batch, Columns as _, Label, ProcessKey, Sparse, TableBuilder, Timestamp, TypedTable},
};

columns! {
    /// Times of a process in each state; they add up to `interval_ns` × threads.
    pub struct SchedRow {
        oncpu_ns: u64 = Counter("ns", "Time on a CPU (se.sum_exec_runtime), including the current state"),
        runqueue_ns: Option<u64> = Counter("ns", "Time runnable and waiting for a CPU (sched_info.run_delay without sleep), including the current state"),
        runqueue_count: Option<u64> = Counter("1", "Times a thread was put on a CPU (sched_info.pcount)"),
        sleep_ns: Option<u64> = Counter("ns", "Interruptible sleep, including the current state; null if processes are read from /proc"),
        blocked_ns: Option<u64> = Counter("ns", "Uninterruptible wait (disk, locks, NFS), including the current state; null if processes are read from /proc"),
        voluntary_switches: u64 = Counter("1", "Context switches because the thread waited (nvcsw)"),
        involuntary_switches: u64 = Counter("1", "Context switches because the CPU was given to another thread (nivcsw)"),
        wakeups: Option<u64> = Counter("1", "Wakeups from sleep by another thread, a timer or an interrupt; with `--source sched=wakeup` also those of threads that have not left the CPU yet; null if processes are read from /proc"),
        migrations: Option<u64> = Counter("1", "Moves to another CPU (se.nr_migrations); null if processes are read from /proc"),
    }
}

columns! {
    /// A row of the view `process_cpu`.
    pub struct ProcessCpu {
        host: String = Label("", "Name of the node"),
        pid: u32 = Label("", "Process id"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        comm: Option<Label> = Label("", "Command name"),
        cmdline: Option<String> = Label("", "Arguments joined by spaces"),
        oncpu_s: f64 = Counter("s", "Exact time on CPU"),
        runqueue_s: Option<f64> = Counter("s", "Time in the run queue"),
        sleep_s: Option<f64> = Counter("s", "Interruptible sleep"),
        blocked_s: Option<f64> = Counter("s", "Uninterruptible wait (disk, locks, NFS)"),
    }
}

pub static TABLE: TypedTable<ProcessKey, SchedRow> = TypedTable::sparse(
    "sched",
    "One row per sample and process of the target: time on CPU, in the run queue and asleep; switches and wakeups",
    &Sparse {
        asleep: Some(SchedRow::sleep_ns.name()),
        occasional: &[],
    },
);

static PROCESS_CPU: View = View {
    name: "process_cpu",
    help: "One row per process: time in each state over the whole run",
    query: "SELECT s.host, s.pid, s.start_ts, any_value(p.comm) AS comm,\n  \
    any_value(p.cmdline) AS cmdline,\n  \
    sum(s.oncpu_ns) / 1e9 AS oncpu_s, sum(s.runqueue_ns) / 1e9 AS runqueue_s,\n  \
    sum(s.sleep_ns) / 1e9 AS sleep_s, sum(s.blocked_ns) / 1e9 AS blocked_s\n\
    FROM sched s LEFT JOIN process p USING (host, pid, start_ts)\n\
    WHERE s.tid IS NULL\n\
    GROUP BY s.host, s.pid, s.start_ts\n\
    ORDER BY oncpu_s DESC",
    columns: || ProcessCpu::COLUMNS.iter().collect(),
};

static INSTRUMENTATION: Instrumentation = Instrumentation {
    source: "sched",
    maps: &[],
    methods: &[RUNQUEUE, BY_WAKEUP],
    optional: &[],
};

/// The times that the scheduler notes in each task, without a program at wakeups.
const RUNQUEUE: Method = Method::new("runqueue", &[]);

/// A program at each wakeup. Its histogram includes the time until an idle CPU has woken up, which
/// the scheduler counts as time on CPU.
const BY_WAKEUP: Method =
    Method::new(WAKEUP, &[Hook::tracepoint("sched_wakeup", "sched_wakeup")]).on_request();

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "sched",
    help: "time on CPU, in the run queue and asleep; switches, wakeups, run-queue latency",
    tables: &[TABLE.untyped(), latency::TABLE.untyped()],
    views: &[&PROCESS_CPU, &latency::QUANTILES],
    input: Input::Tasks { procfs: true },
    instrumentation: Some(&INSTRUMENTATION),
    waits: true,
    open: |_| {
        Ok(Box::new(Sched {
            rows: TableBuilder::new(&TABLE),
            latency: TableBuilder::new(&latency::TABLE),
        }))
    },
    ..SourceSpec::DEFAULT
};

struct Sched {
    rows: TableBuilder<ProcessKey, SchedRow>,
    latency: TableBuilder<ProcessKey, LatencyRow>,
}

impl Source for Sched {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let support = ctx.tasks.kernel_support;
        let delay = |value: u64| support.run_delay.then_some(value);
        for row in &ctx.tasks.rows {
            let has_states = support.sched && !row.is_public;
            let by_bpf = |value: u64| has_states.then_some(value);
            let increase = &row.increase;
            self.rows.push(
                ctx.key_of_task(row),
                SchedRow {
                    oncpu_ns: increase.oncpu,
                    runqueue_ns: delay(increase.run_delay),
                    runqueue_count: delay(increase.run_count),
                    sleep_ns: by_bpf(increase.sleep),
                    blocked_ns: by_bpf(increase.blocked),
                    voluntary_switches: increase.nvcsw,
                    involuntary_switches: increase.nivcsw,
                    wakeups: by_bpf(increase.wakeups),
                    migrations: by_bpf(increase.migrations),
                },
            );
            if let Some(waits) = &row.runqueue {
                let kind = if support.wakeups { WAKEUP } else { "runqueue" };
                let row_of_waits = LatencyRow::new(kind, waits);
                self.latency.push(ctx.key_of_task(row), row_of_waits);
            }
        }
        self.rows.finish(out);
        self.latency.finish(out);
        Ok(())
    }
}
