//! Table `latency`: durations of operations. Every source that measures durations fills it.

use super::TickContext;
use crate::{
    columns,
    schema::{
        Batch, Buckets, Columns as _, Label, ProcessKey, TableBuilder, Timestamp, TypedTable, View,
    },
    tasks::counters::Latency,
};

columns! {
    /// Durations of one kind of operation over an interval.
    pub struct LatencyRow {
        kind: Label = Label("", "Operation: runqueue (runnable until on a CPU, as the scheduler accounts it), wakeup (with `--source sched=wakeup`: from the wakeup or the preemption until on a CPU, including the time until an idle CPU has woken up), tcp_connect (first SYN until established), tcp_rtt (smoothed round-trip time of a connection, sampled at its first use in each interval and at its end), file_read, file_write, fsync (successful operations of file_io), block_read, block_write, block_discard, block_flush (requests of block_io, from the issue to the driver to the completion), block_queue (requests of block_io, until the issue)"),
        count: u64 = Counter("1", "Number of operations; the sum of the buckets"),
        sum_ns: u64 = Counter("ns", "Sum of the durations"),
        max_ns: u64 = Maximum("ns", "Longest duration in the interval"),
        buckets: Buckets = Counter("1", "Histogram: element 0 counts durations below 64 ns; then each octave has four buckets of equal width, from 64, 80, 96, 112, 128, 160 ns and so on; trailing zeros are omitted; see hist_quantile() in views.sql"),
    }
}

columns! {
    /// A row of the view `latency_quantiles`.
    pub struct LatencyQuantiles {
        host: String = Label("", "Name of the node"),
        pid: u32 = Label("", "Process id"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        comm: Option<Label> = Label("", "Command name"),
        kind: Label = Label("", "Operation, as in `latency`"),
        count: u64 = Counter("1", "Number of operations"),
        mean_ns: f64 = Gauge("ns", "Mean duration"),
        p50_ns: f64 = Gauge("ns", "Median, within 12.5 %"),
        p90_ns: f64 = Gauge("ns", "90th percentile, within 12.5 %"),
        p99_ns: f64 = Gauge("ns", "99th percentile, within 12.5 %"),
        max_ns: u64 = Maximum("ns", "Longest duration"),
    }
}

/// Quantiles over the whole run.
pub static QUANTILES: View = View {
    name: "latency_quantiles",
    help: "One row per process and kind of operation: quantiles of its durations over the whole run",
    query: include_str!("latency_quantiles.sql"),
    columns: || LatencyQuantiles::COLUMNS.iter().collect(),
};

pub static TABLE: TypedTable<ProcessKey, LatencyRow> = TypedTable::new(
    "latency",
    "One row per sample, process and kind of operation, if there was any: a histogram",
);

impl LatencyRow {
    /// A row of this kind.
    pub fn new(kind: &'static str, latency: &Latency) -> Self {
        Self {
            kind: kind.into(),
            count: latency.count,
            sum_ns: latency.sum,
            max_ns: latency.max,
            buckets: latency.buckets.clone(),
        }
    }
}

/// Builds the rows of some kinds from the histograms of the BPF programs.
pub struct Latencies {
    rows: TableBuilder<ProcessKey, LatencyRow>,
    kinds: &'static [(u64, &'static str)],
}

impl Latencies {
    /// A builder for these kinds: number in the BPF programs, and name.
    pub fn new(kinds: &'static [(u64, &'static str)]) -> Self {
        Self {
            rows: TableBuilder::new(&TABLE),
            kinds,
        }
    }

    /// Adds the rows of this sample.
    pub fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) {
        let Some(table) = &ctx.tasks.per_key.latency else {
            return;
        };
        for row in &table.rows {
            let kind = self.kinds.iter().find(|(kind, _)| *kind == row.dimension);
            if let (Some((_, name)), Some(id)) = (kind, row.id) {
                self.rows.push(
                    ctx.key_of_process(id, row.tid, row.interval_ns),
                    LatencyRow::new(name, &row.increase),
                );
            }
        }
        self.rows.finish(out);
    }
}
