//! `sched`: where the time of each process went, as the scheduler sees it; and run-queue latency.

use anyhow::Result;

use super::{
    Source, SourceSpec, TickContext, latency, latency::LatencyRow, process_key, program_support,
};
use crate::{
    columns,
    schema::{Batch, ProcessKey, Table, TableBuilder},
};

columns! {
    /// Where the time of a process went; the times add up to `interval_ns` × threads.
    pub struct SchedRow {
        oncpu_ns: u64 = Counter("ns", "Time on a CPU (se.sum_exec_runtime), the present span included"),
        runqueue_ns: Option<u64> = Counter("ns", "Time ready but waiting for a CPU (sched_info.run_delay), the present span included"),
        runqueue_count: Option<u64> = Counter("1", "Times put on a CPU (sched_info.pcount)"),
        sleep_ns: u64 = Counter("ns", "Interruptible sleep, the present span included"),
        blocked_ns: u64 = Counter("ns", "Uninterruptible wait (disk, locks, NFS), the present span included"),
        voluntary_switches: u64 = Counter("1", "Context switches because the thread waited (nvcsw)"),
        involuntary_switches: u64 = Counter("1", "Context switches because the CPU was given to another (nivcsw)"),
        wakeups: u64 = Counter("1", "Times made ready by another thread, a timer or an interrupt"),
        migrations: u64 = Counter("1", "Moves to another CPU (se.nr_migrations)"),
    }
}

static TABLE: Table = Table::new::<ProcessKey, SchedRow>(
    "sched",
    "One row per tick and process of the target: time on CPU, waiting for one, asleep; switches, wakeups",
);

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "sched",
    help: "time on CPU, in the run queue and asleep; switches, wakeups, run-queue latency",
    tables: &[&TABLE, &latency::TABLE],
    probe: program_support,
    tasks: true,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |_| {
        Ok(Box::new(Sched {
            rows: TableBuilder::new(&TABLE),
            latency: TableBuilder::new(&latency::TABLE),
        }))
    },
};

struct Sched {
    rows: TableBuilder<ProcessKey, SchedRow>,
    latency: TableBuilder<ProcessKey, LatencyRow>,
}

impl Source for Sched {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        if !at.tasks.kernel_support.sched {
            return Ok(());
        }
        let delay = |value: u64| at.tasks.kernel_support.run_delay.then_some(value);
        for row in &at.tasks.rows {
            let increase = &row.increase;
            self.rows.push(
                process_key(at, row),
                SchedRow {
                    oncpu_ns: increase.oncpu,
                    runqueue_ns: delay(increase.run_delay),
                    runqueue_count: delay(increase.run_count),
                    sleep_ns: increase.sleep,
                    blocked_ns: increase.blocked,
                    voluntary_switches: increase.nvcsw,
                    involuntary_switches: increase.nivcsw,
                    wakeups: increase.wakeups,
                    migrations: increase.migrations,
                },
            );
            if let Some(waits) = &row.runqueue {
                self.latency
                    .push(process_key(at, row), LatencyRow::new("runqueue", waits));
            }
        }
        self.rows.finish(out);
        self.latency.finish(out);
        Ok(())
    }
}
