//! Resources used during a region: columns of per-process tables that are added up.

use arrow::array::{Array as _, DictionaryArray, RecordBatch, UInt64Array};
use arrow::datatypes::Int32Type;
use hashbrown::HashMap;

use crate::{
    columns,
    schema::{
        Batch, Cell, ColumnHandle, Columns, Label, OwnerKey, ProcessKey, Table, Timestamp,
        TypedTable,
        read::{array, dictionary},
    },
    sources::{
        TickContext, block_io, file_io, net_io, perf, perf::EventRow, sched, syscalls, usage,
    },
    tasks::process_tree,
};

/// A column that is added up.
struct Counter {
    table: &'static Table,
    /// Index in the table.
    column: usize,
    only: Option<Only>,
}

/// Restriction to the rows in which a label is one of some words.
#[derive(Clone, Copy)]
struct Only {
    /// Index in the table.
    label: usize,
    words: &'static [&'static str],
}

impl Counter {
    /// A column of a table per process.
    const fn new<K: ProcessColumns, R: Columns, C: Cell<Array = UInt64Array>>(
        table: &'static TypedTable<K, R>,
        column: ColumnHandle<R, C>,
    ) -> Self {
        Self {
            table: table.untyped(),
            column: K::COLUMNS.len() + column.index(),
            only: None,
        }
    }
}

impl Only {
    const fn new<K: Columns, R: Columns>(
        _table: &'static TypedTable<K, R>,
        label: ColumnHandle<R, Label>,
        words: &'static [&'static str],
    ) -> Self {
        Self {
            label: K::COLUMNS.len() + label.index(),
            words,
        }
    }
}

/// A key whose first columns are those of [`ProcessKey`].
trait ProcessColumns: Columns {}
impl ProcessColumns for ProcessKey {}
impl ProcessColumns for OwnerKey {}

macro_rules! region_usage {
    ($(
        $name:ident = $source:ident::$row:ident::$column:ident $([$label:ident: $($word:literal),+])?
            ($unit:literal, $help:literal),
    )*) => {
        const N: usize = [$(stringify!($name)),*].len();

        static COUNTERS: [Counter; N] = [
            $(Counter {
                only: [
                    $(Some(Only::new(
                        &$source::TABLE,
                        $source::$row::$label,
                        &[$($word),+],
                    )),)?
                    None,
                ][0],
                ..Counter::new(&$source::TABLE, $source::$row::$column)
            },)*
        ];

        columns! {
            /// Resources used during a region.
            pub struct RegionUsageRow {
                name: Option<Label> = Label("", "Name of the region"),
                start_offset_ns: i64 = Gauge("ns", "Time from the start of the region to the reading at its start"),
                end_offset_ns: i64 = Gauge("ns", "Time from the end of the region to the reading at its end"),
                $($name: Option<u64> = Counter($unit, $help),)*
            }
        }

        impl RegionUsageRow {
            /// The row of these values; `offsets` are those of start and end.
            pub fn new(name: Option<Label>, offsets: [i64; 2], values: Values) -> Self {
                let mut values = values.into_iter();
                Self {
                    name,
                    start_offset_ns: offsets[0],
                    end_offset_ns: offsets[1],
                    $($name: values.next().flatten(),)*
                }
            }
        }
    };
}

region_usage! {
    user_ns = usage::UsageRow::user_ns ("ns", "CPU time in user mode"),
    system_ns = usage::UsageRow::system_ns ("ns", "CPU time in the kernel"),
    minor_faults = usage::UsageRow::minor_faults ("1", "Page faults served without I/O"),
    major_faults = usage::UsageRow::major_faults ("1", "Page faults that waited for I/O"),
    voluntary_switches = usage::UsageRow::voluntary_switches ("1", "Context switches because a thread waited"),
    involuntary_switches = usage::UsageRow::involuntary_switches ("1", "Context switches because the CPU was given to another thread"),
    read_chars = usage::UsageRow::read_chars ("bytes", "Bytes returned by read system calls of all kinds"),
    write_chars = usage::UsageRow::write_chars ("bytes", "Bytes accepted by write system calls of all kinds"),
    read_syscalls = usage::UsageRow::read_syscalls ("1", "Read system calls"),
    write_syscalls = usage::UsageRow::write_syscalls ("1", "Write system calls"),
    read_bytes = usage::UsageRow::read_bytes ("bytes", "Bytes fetched from storage"),
    write_bytes = usage::UsageRow::write_bytes ("bytes", "Bytes written to storage at once (O_DIRECT), or dirtied in the page cache and written later"),
    cancelled_write_bytes = usage::UsageRow::cancelled_write_bytes ("bytes", "Dirty bytes dropped before they were written"),
    oncpu_ns = sched::SchedRow::oncpu_ns ("ns", "Time on a CPU"),
    runqueue_ns = sched::SchedRow::runqueue_ns ("ns", "Time runnable and waiting for a CPU"),
    runqueue_count = sched::SchedRow::runqueue_count ("1", "Times a thread was put on a CPU"),
    sleep_ns = sched::SchedRow::sleep_ns ("ns", "Interruptible sleep"),
    blocked_ns = sched::SchedRow::blocked_ns ("ns", "Uninterruptible wait"),
    wakeups = sched::SchedRow::wakeups ("1", "Wakeups"),
    migrations = sched::SchedRow::migrations ("1", "Moves to another CPU"),
    file_read_ops = file_io::FileIoRow::read_ops ("1", "Reads of files"),
    file_read_bytes = file_io::FileIoRow::read_bytes ("bytes", "Bytes returned by reads of files"),
    file_write_ops = file_io::FileIoRow::write_ops ("1", "Writes to files"),
    file_write_bytes = file_io::FileIoRow::write_bytes ("bytes", "Bytes accepted by writes to files"),
    file_errors = file_io::FileIoRow::errors ("1", "Failed reads, writes, syncs and opens"),
    fsyncs = file_io::FileIoRow::fsyncs ("1", "fsync, fdatasync and msync calls"),
    opens = file_io::FileIoRow::opens ("1", "Files opened"),
    creates = file_io::FileIoRow::creates ("1", "Files created by opening them"),
    unlinks = file_io::FileIoRow::unlinks ("1", "Files and directories removed"),
    renames = file_io::FileIoRow::renames ("1", "Files and directories renamed"),
    mkdirs = file_io::FileIoRow::mkdirs ("1", "Directories created"),
    block_read_ops = block_io::BlockIoRow::ops [op: "read"] ("1", "Read requests to block devices"),
    block_read_bytes = block_io::BlockIoRow::bytes [op: "read"] ("bytes", "Bytes of read requests"),
    block_write_ops = block_io::BlockIoRow::ops [op: "write"] ("1", "Write requests to block devices"),
    block_write_bytes = block_io::BlockIoRow::bytes [op: "write"] ("bytes", "Bytes of write requests"),
    block_queue_ns = block_io::BlockIoRow::queue_ns ("ns", "Time from creation to issue of requests of all kinds"),
    block_service_ns = block_io::BlockIoRow::service_ns ("ns", "Time from issue to completion of requests of all kinds"),
    net_tx_bytes = net_io::NetIoRow::tx_bytes [protocol: "tcp", "udp"] ("bytes", "Bytes sent over TCP and UDP"),
    net_rx_bytes = net_io::NetIoRow::rx_bytes [protocol: "tcp", "udp"] ("bytes", "Bytes received over TCP and UDP"),
    net_tx_calls = net_io::NetIoRow::tx_calls [protocol: "tcp", "udp"] ("1", "Send calls on TCP and UDP sockets"),
    net_rx_calls = net_io::NetIoRow::rx_calls [protocol: "tcp", "udp"] ("1", "Receive calls on TCP and UDP sockets"),
    net_retransmits = net_io::NetIoRow::retransmits [protocol: "tcp"] ("1", "Retransmitted TCP segments"),
    net_connects = net_io::NetIoRow::connects [protocol: "tcp"] ("1", "TCP connections established by connect()"),
    net_accepts = net_io::NetIoRow::accepts [protocol: "tcp"] ("1", "TCP connections accepted"),
    unix_tx_bytes = net_io::NetIoRow::tx_bytes [protocol: "unix"] ("bytes", "Bytes sent over unix sockets, including marks"),
    unix_rx_bytes = net_io::NetIoRow::rx_bytes [protocol: "unix"] ("bytes", "Bytes received over unix sockets"),
    syscalls = syscalls::SyscallRow::count ("1", "System calls (with --source +syscalls)"),
    syscall_errors = syscalls::SyscallRow::errors ("1", "System calls that returned an error"),
    syscall_ns = syscalls::SyscallRow::total_ns ("ns", "Time in system calls"),
}

/// A value for each counter; `None` if it is unknown.
pub type Values = [Option<u64>; N];

/// Sums of the counters since an arbitrary time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    sums: [u64; N],
    /// Number of unknown values in each sum.
    unknown: [u32; N],
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            sums: [0; N],
            unknown: [0; N],
        }
    }
}

impl Sums {
    /// Adds other sums.
    pub fn add(&mut self, more: &Self) {
        for counter in 0..N {
            self.sums[counter] = self.sums[counter].wrapping_add(more.sums[counter]);
            self.unknown[counter] = self.unknown[counter].wrapping_add(more.unknown[counter]);
        }
    }

    /// Adds an unknown value for each of these counters.
    pub fn add_unknown(&mut self, counters: &[usize]) {
        for counter in counters {
            self.unknown[*counter] += 1;
        }
    }

    /// Increases since `before`.
    pub fn since(&self, before: &Self) -> Values {
        std::array::from_fn(|counter| {
            (self.unknown[counter] == before.unknown[counter])
                .then(|| self.sums[counter].wrapping_sub(before.sums[counter]))
        })
    }
}

/// Counters whose source was not read in this reading.
pub fn unread(ctx: &TickContext<'_>) -> Vec<usize> {
    let is_unread = |counter: &usize| !ctx.has_read(COUNTERS[*counter].table);
    (0..N).filter(is_unread).collect()
}

/// Name of a hardware event: PMU, group, event.
pub type EventName = (Label, Option<Label>, Label);

/// Counts of a hardware event since an arbitrary time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Scaled count.
    pub value: f64,
    /// Number of unknown values in the sum.
    pub unknown: u32,
    /// Count without scaling.
    pub raw: u64,
    /// Time for which the event was enabled, ns.
    pub enabled_ns: u64,
    /// Time for which it was on a counter, ns.
    pub running_ns: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, more: &Self) {
        self.value += more.value;
        self.unknown = self.unknown.wrapping_add(more.unknown);
        self.raw = self.raw.wrapping_add(more.raw);
        self.enabled_ns = self.enabled_ns.wrapping_add(more.enabled_ns);
        self.running_ns = self.running_ns.wrapping_add(more.running_ns);
    }

    /// Increases since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            value: self.value - before.value,
            unknown: self.unknown.wrapping_sub(before.unknown),
            raw: self.raw.wrapping_sub(before.raw),
            enabled_ns: self.enabled_ns.wrapping_sub(before.enabled_ns),
            running_ns: self.running_ns.wrapping_sub(before.running_ns),
        }
    }
}

/// Increases of each process in one reading.
#[derive(Debug, Default)]
pub struct Increases {
    /// Counters.
    pub sums: HashMap<process_tree::ProcessKey, Sums>,
    /// Hardware events.
    pub events: HashMap<process_tree::ProcessKey, Vec<(EventName, Counts)>>,
}

impl Increases {
    /// Increases in the batches of a reading.
    pub fn of(batches: &[Batch]) -> Self {
        let mut increases = Self::default();
        for Batch { table, rows } in batches {
            if std::ptr::eq(*table, perf::EVENTS.untyped()) {
                increases.add_events(rows);
            } else if COUNTERS
                .iter()
                .any(|counter| std::ptr::eq(counter.table, *table))
            {
                increases.add_counters(table, rows);
            }
        }
        increases
    }

    fn add_counters(&mut self, table: &Table, batch: &RecordBatch) {
        let owners = owners(batch);
        for (index, counter) in COUNTERS.iter().enumerate() {
            if !std::ptr::eq(counter.table, table) {
                continue;
            }
            let values = array::<u64>(batch, counter.column);
            let accepted = counter.only.as_ref().map(|only| accepted(batch, only));
            for (row, owner) in owners.iter().enumerate() {
                let Some(owner) = owner else { continue };
                if accepted.as_ref().is_some_and(|accepted| !accepted[row]) {
                    continue;
                }
                let sums = self.sums.entry(*owner).or_default();
                if values.is_null(row) {
                    sums.unknown[index] += 1;
                } else {
                    sums.sums[index] += values.value(row);
                }
            }
        }
    }

    fn add_events(&mut self, batch: &RecordBatch) {
        fn cells<C: Cell>(batch: &RecordBatch, column: ColumnHandle<EventRow, C>) -> &C::Array {
            array::<C>(batch, OwnerKey::COLUMNS.len() + column.index())
        }
        let pmus = cells(batch, EventRow::pmu);
        let groups = cells(batch, EventRow::group);
        let names = cells(batch, EventRow::event);
        let values = cells(batch, EventRow::count);
        let raw = cells(batch, EventRow::count_raw);
        let enabled = cells(batch, EventRow::enabled_ns);
        let running = cells(batch, EventRow::running_ns);
        let [pmu_words, group_words, name_words] = [pmus, groups, names].map(words);
        for (row, owner) in owners(batch).into_iter().enumerate() {
            let Some(owner) = owner else { continue };
            let text = |labels: &DictionaryArray<Int32Type>, words: &[Label]| {
                Some(words[labels.key(row)?].clone())
            };
            let (Some(pmu), Some(name)) = (text(pmus, &pmu_words), text(names, &name_words)) else {
                continue;
            };
            let value = values.is_valid(row).then(|| values.value(row));
            let counts = Counts {
                value: value.unwrap_or(0.0),
                unknown: u32::from(value.is_none() && enabled.value(row) != 0),
                raw: raw.value(row),
                enabled_ns: enabled.value(row),
                running_ns: running.value(row),
            };
            let events = self.events.entry(owner).or_default();
            events.push(((pmu, text(groups, &group_words), name), counts));
        }
    }
}

/// The process of each row of a per-process table; `None` for rows of threads and rows without a
/// process.
fn owners(batch: &RecordBatch) -> Vec<Option<process_tree::ProcessKey>> {
    let pids = array::<u32>(batch, ProcessKey::pid.index());
    let starts = array::<Timestamp>(batch, ProcessKey::start_ts.index());
    let threads = array::<u32>(batch, ProcessKey::tid.index());
    let owner = |row| {
        let is_known = pids.is_valid(row) && starts.is_valid(row);
        (is_known && threads.is_null(row)).then(|| (pids.value(row), starts.value(row)))
    };
    (0..batch.num_rows()).map(owner).collect()
}

/// Whether each row has one of the words.
fn accepted(batch: &RecordBatch, only: &Only) -> Vec<bool> {
    let labels = array::<Label>(batch, only.label);
    let words: Vec<bool> = dictionary(labels)
        .map(|word| only.words.contains(&word))
        .collect();
    let is_accepted = |row| labels.key(row).is_some_and(|key| words[key]);
    (0..batch.num_rows()).map(is_accepted).collect()
}

/// Words of a column of labels.
fn words(labels: &DictionaryArray<Int32Type>) -> Vec<Label> {
    dictionary(labels)
        .map(|word| Label::from(word.to_owned()))
        .collect()
}
