//! Table `latency`: how long operations took. Filled by every source that measures some.

use super::{TickContext, process_key_of};
use crate::{
    columns,
    schema::{Batch, Buckets, Label, ProcessKey, Table, TableBuilder},
    tasks::counters::Latency,
};

columns! {
    /// How long something took, over an interval.
    pub struct LatencyRow {
        kind: Label = Label("", "What took the time: runqueue (ready until on a CPU), tcp_connect (first SYN until established), tcp_rtt (smoothed round-trip time of a connection, sampled at its first use in each interval and at its end), file_read, file_write, fsync (operations of file_io that succeeded), block_read, block_write, block_discard, block_flush (requests of block_io, from the issue to the driver to the completion), block_queue (all of them, until the issue)"),
        count: u64 = Counter("1", "How often; sum of the buckets"),
        sum_ns: u64 = Counter("ns", "Sum"),
        max_ns: u64 = Gauge("ns", "Longest in the interval"),
        buckets: Buckets = Counter("1", "Log2 histogram: element i counts [2^i, 2^(i+1)) ns, the last of 40 all above too; trailing zeros cut off"),
    }
}

/// The table.
pub static TABLE: Table = Table::new::<ProcessKey, LatencyRow>(
    "latency",
    "One row per tick, process and kind of latency, where there was any: a log2 histogram",
);

impl LatencyRow {
    /// A row of `kind`.
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

/// The rows of some kinds that the programs measured.
pub struct Latencies {
    rows: TableBuilder<ProcessKey, LatencyRow>,
    kinds: &'static [(u64, &'static str)],
}

impl Latencies {
    /// Takes the rows of these kinds, which have these names.
    pub fn new(kinds: &'static [(u64, &'static str)]) -> Self {
        Self {
            rows: TableBuilder::new(&TABLE),
            kinds,
        }
    }

    /// Adds the rows of this tick.
    pub fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) {
        let Some(table) = &at.tasks.per_key.latency else {
            return;
        };
        for row in &table.rows {
            let kind = self.kinds.iter().find(|(kind, _)| *kind == row.dimension);
            if let (Some((_, name)), Some(id)) = (kind, row.id) {
                self.rows.push(
                    process_key_of(at, id, row.tid, row.interval_ns),
                    LatencyRow::new(name, &row.increase),
                );
            }
        }
        self.rows.finish(out);
    }
}
