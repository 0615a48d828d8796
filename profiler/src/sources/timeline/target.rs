//! Use of resources by the target between two readings.

use crate::{
    perf::TARGET_CYCLES,
    schema::{
        Batch, Cell, ColumnHandle, Columns, TypedTable,
        read::{Rows, sum_of_known},
    },
    sources::{
        TickContext,
        block_io::{self, BlockIoRow},
        file_io::{self, FileIoRow},
        net_io::{self, NetIoRow},
        perf,
        sched::{self, SchedRow},
        usage::{self, UsageRow},
    },
};
use arrow::{
    array::{DictionaryArray, UInt64Array},
    datatypes::Int32Type,
};

macro_rules! target {
    ($($(#[$meta:meta])* $name:ident: $type:ty,)*) => {
        /// Use of resources by the target; `None` if no source reports it.
        #[derive(Clone, Copy, Default)]
        pub(super) struct Target {
            $($(#[$meta])* pub(super) $name: Option<$type>,)*
        }

        impl Target {
            /// The sum of two intervals, as far as it is known.
            pub(super) fn and(&self, later: &Self) -> Self {
                Self {
                    $($name: sum_of_known([self.$name, later.$name]),)*
                }
            }
        }
    };
}

target! {
    cpu_ns: u64,
    runqueue_ns: u64,
    minor_faults: u64,
    major_faults: u64,
    file_read_bytes: u64,
    file_write_bytes: u64,
    block_read_bytes: u64,
    block_write_bytes: u64,
    net_tx_bytes: u64,
    net_rx_bytes: u64,
    cycles: f64,
    instructions: f64,
}

impl Target {
    /// Use since the previous reading, from the batches of this one.
    pub(super) fn read(ctx: &TickContext<'_>, batches: &[Batch]) -> Self {
        let usage = TargetFigures::of(ctx, batches, &usage::TABLE);
        let sched = TargetFigures::of(ctx, batches, &sched::TABLE);
        // Without BPF programs, file_io includes pipes and devices.
        let has_files = ctx.tasks.per_key.file_io.is_some();
        let files = has_files.then(|| TargetFigures::of(ctx, batches, &file_io::TABLE));
        let file = |column| files.as_ref()?.sum(column);
        let block = TargetFigures::of(ctx, batches, &block_io::TABLE);
        let block = |op| block.with(BlockIoRow::op, op).sum(BlockIoRow::bytes);
        let net = TargetFigures::of(ctx, batches, &net_io::TABLE);
        let tcp = net.with(NetIoRow::protocol, "tcp");
        let udp = net.with(NetIoRow::protocol, "udp");
        let net = |column| Some(tcp.sum(column)? + udp.sum(column)?);
        let cpu_ns = usage
            .sum(UsageRow::user_ns)
            .zip(usage.sum(UsageRow::system_ns));
        Self {
            cpu_ns: ctx
                .tasks
                .target_cpu_ns
                .or(cpu_ns.map(|(user, system)| user + system)),
            runqueue_ns: sched.sum(SchedRow::runqueue_ns),
            minor_faults: usage.sum(UsageRow::minor_faults),
            major_faults: usage.sum(UsageRow::major_faults),
            file_read_bytes: file(FileIoRow::read_bytes),
            file_write_bytes: file(FileIoRow::write_bytes),
            block_read_bytes: block("read"),
            block_write_bytes: block("write"),
            net_tx_bytes: net(NetIoRow::tx_bytes),
            net_rx_bytes: net(NetIoRow::rx_bytes),
            cycles: perf::count(batches, TARGET_CYCLES),
            instructions: perf::count(batches, [TARGET_CYCLES[0], "instructions"]),
        }
    }
}

/// Resident memory of all processes of the target, bytes.
pub(super) fn rss(ctx: &TickContext<'_>, batches: &[Batch]) -> Option<u64> {
    let usage = TargetFigures::of(ctx, batches, &usage::TABLE);
    let left_out = ctx.tasks.left_out_rss;
    let left_out = left_out.filter(|_| usage.has_read);
    sum_of_known([usage.sum(UsageRow::rss), left_out])
}

/// Rows of the target in one table.
struct TargetFigures<'a, K, R> {
    rows: Rows<'a, K, R>,
    has_read: bool,
}

impl<'a, K: Columns, R: Columns> TargetFigures<'a, K, R> {
    fn of(ctx: &TickContext<'_>, batches: &'a [Batch], table: &'static TypedTable<K, R>) -> Self {
        Self {
            rows: Rows::of(batches, table),
            has_read: ctx.has_read(table),
        }
    }

    fn with<C>(&self, label: ColumnHandle<R, C>, word: &str) -> Self
    where
        C: Cell<Array = DictionaryArray<Int32Type>>,
    {
        Self {
            rows: self.rows.with(label, &[word]),
            has_read: self.has_read,
        }
    }

    /// Sum over processes; 0 if the source was read and has no rows, because nothing happened.
    fn sum<C: Cell<Array = UInt64Array>>(&self, column: ColumnHandle<R, C>) -> Option<u64> {
        if self.rows.is_empty() && self.has_read {
            return Some(0);
        }
        sum_of_known(self.rows.values(column))
    }
}
