//! Table `latency`: durations of operations. Every source that measures durations fills it.

use super::TickContext;
use crate::{
    columns,
    schema::{Batch, Buckets, Label, ProcessKey, TableBuilder, TypedTable},
    tasks::counters::Latency,
};

columns! {
    /// Durations of one kind of operation over an interval.
    pub struct LatencyRow {
        kind: Label = Label("", "Operation: runqueue (runnable until on a CPU), tcp_connect (first SYN until established), tcp_rtt (smoothed round-trip time of a connection, sampled at its first use in each interval and at its end), file_read, file_write, fsync (successful operations of file_io), block_read, block_write, block_discard, block_flush (requests of block_io, from the issue to the driver to the completion), block_queue (requests of block_io, until the issue)"),
        count: u64 = Counter("1", "Number of operations; the sum of the buckets"),
        sum_ns: u64 = Counter("ns", "Sum of the durations"),
        max_ns: u64 = Gauge("ns", "Longest duration in the interval"),
        buckets: Buckets = Counter("1", "Log2 histogram: bucket i counts durations in [2^i, 2^(i+1)) ns; bucket 39 is open-ended; trailing zeros are omitted"),
    }
}

pub static TABLE: TypedTable<ProcessKey, LatencyRow> = TypedTable::new(
    "latency",
    "One row per sample, process and kind of operation, if there was any: a log2 histogram",
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
