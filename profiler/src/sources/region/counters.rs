//! What is added up for a region: columns of the tables of processes.

use arrow::{
    array::{Array, AsArray as _, RecordBatch, StringArray, UInt32Array},
    compute::cast,
    datatypes::{DataType, Float64Type, TimestampNanosecondType, UInt32Type, UInt64Type},
};
use hashbrown::HashMap;

use crate::{
    columns,
    schema::{Batch, Label},
    tasks::process_tree::ProcessKey,
};

/// A column that is added up.
struct Counter {
    /// Table, which is called like its source.
    table: &'static str,
    column: &'static str,
    /// Only rows in which this label is one of these words.
    only: Option<(&'static str, &'static [&'static str])>,
}

macro_rules! region_usage {
    ($($name:ident = $table:literal $column:literal $([$label:literal: $($word:literal),+])? ($unit:literal, $help:literal),)*) => {
        const COUNTERS: &[Counter] = &[
            $(Counter {
                table: $table,
                column: $column,
                only: [$(Some(($label, &[$($word),+] as &[_])),)? None][0],
            },)*
        ];

        columns! {
            /// What was used during a region.
            pub struct UsageRow {
                name: Option<Label> = Label("", "Name of the region"),
                start_offset_ns: i64 = Gauge("ns", "From the region's start to the reading that stands for it"),
                end_offset_ns: i64 = Gauge("ns", "From the region's end to the reading that stands for it"),
                $($name: Option<u64> = Counter($unit, $help),)*
            }
        }

        impl UsageRow {
            /// The row of these values.
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
    user_ns = "usage" "user_ns" ("ns", "CPU time in user mode"),
    system_ns = "usage" "system_ns" ("ns", "CPU time in the kernel"),
    minor_faults = "usage" "minor_faults" ("1", "Page faults served without I/O"),
    major_faults = "usage" "major_faults" ("1", "Page faults that waited for I/O"),
    voluntary_switches = "usage" "voluntary_switches" ("1", "Context switches because a thread waited"),
    involuntary_switches = "usage" "involuntary_switches" ("1", "Context switches because the CPU was given to another"),
    read_chars = "usage" "read_chars" ("bytes", "Bytes returned by read system calls of all kinds"),
    write_chars = "usage" "write_chars" ("bytes", "Bytes accepted by write system calls of all kinds"),
    read_syscalls = "usage" "read_syscalls" ("1", "Read system calls"),
    write_syscalls = "usage" "write_syscalls" ("1", "Write system calls"),
    read_bytes = "usage" "read_bytes" ("bytes", "Bytes fetched from storage"),
    write_bytes = "usage" "write_bytes" ("bytes", "Bytes dirtied that go to storage"),
    cancelled_write_bytes = "usage" "cancelled_write_bytes" ("bytes", "Dirty bytes dropped before they were written"),
    oncpu_ns = "sched" "oncpu_ns" ("ns", "Time on a CPU"),
    runqueue_ns = "sched" "runqueue_ns" ("ns", "Time ready but waiting for a CPU"),
    runqueue_count = "sched" "runqueue_count" ("1", "Times put on a CPU"),
    sleep_ns = "sched" "sleep_ns" ("ns", "Interruptible sleep"),
    blocked_ns = "sched" "blocked_ns" ("ns", "Uninterruptible wait"),
    wakeups = "sched" "wakeups" ("1", "Times made ready"),
    migrations = "sched" "migrations" ("1", "Moves to another CPU"),
    file_read_ops = "file_io" "read_ops" ("1", "Reads of files"),
    file_read_bytes = "file_io" "read_bytes" ("bytes", "Bytes that they returned"),
    file_write_ops = "file_io" "write_ops" ("1", "Writes to files"),
    file_write_bytes = "file_io" "write_bytes" ("bytes", "Bytes that they accepted"),
    file_errors = "file_io" "errors" ("1", "Reads, writes, syncs and opens that failed"),
    fsyncs = "file_io" "fsyncs" ("1", "fsync, fdatasync and msync"),
    opens = "file_io" "opens" ("1", "Files opened"),
    creates = "file_io" "creates" ("1", "Files created by opening them"),
    unlinks = "file_io" "unlinks" ("1", "Files and directories removed"),
    renames = "file_io" "renames" ("1", "Files and directories renamed"),
    mkdirs = "file_io" "mkdirs" ("1", "Directories made"),
    block_read_ops = "block_io" "ops" ["op": "read"] ("1", "Read requests to block devices"),
    block_read_bytes = "block_io" "bytes" ["op": "read"] ("bytes", "Bytes that they read"),
    block_write_ops = "block_io" "ops" ["op": "write"] ("1", "Write requests to block devices"),
    block_write_bytes = "block_io" "bytes" ["op": "write"] ("bytes", "Bytes that they wrote"),
    block_queue_ns = "block_io" "queue_ns" ("ns", "Time that requests of all kinds took to be issued"),
    block_service_ns = "block_io" "service_ns" ("ns", "Time that they took from then on"),
    net_tx_bytes = "net_io" "tx_bytes" ["protocol": "tcp", "udp"] ("bytes", "Sent over TCP and UDP"),
    net_rx_bytes = "net_io" "rx_bytes" ["protocol": "tcp", "udp"] ("bytes", "Received over TCP and UDP"),
    net_tx_calls = "net_io" "tx_calls" ["protocol": "tcp", "udp"] ("1", "Send calls on TCP and UDP sockets"),
    net_rx_calls = "net_io" "rx_calls" ["protocol": "tcp", "udp"] ("1", "Receive calls on TCP and UDP sockets"),
    net_retransmits = "net_io" "retransmits" ["protocol": "tcp"] ("1", "TCP segments sent again"),
    net_connects = "net_io" "connects" ["protocol": "tcp"] ("1", "TCP connections opened and established"),
    net_accepts = "net_io" "accepts" ["protocol": "tcp"] ("1", "TCP connections accepted"),
    unix_tx_bytes = "net_io" "tx_bytes" ["protocol": "unix"] ("bytes", "Sent over unix sockets, the marks included"),
    unix_rx_bytes = "net_io" "rx_bytes" ["protocol": "unix"] ("bytes", "Received over unix sockets"),
    syscalls = "syscalls" "count" ("1", "System calls (with --source +syscalls)"),
    syscall_errors = "syscalls" "errors" ("1", "Those that returned an error"),
    syscall_ns = "syscalls" "total_ns" ("ns", "Time in them"),
}

const N: usize = COUNTERS.len();

/// A value for each counter; `None` where it is not known.
pub type Values = [Option<u64>; N];

/// Sums since some moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    sums: [u64; N],
    /// How often a value was not known.
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
    /// Adds what came since.
    pub fn add(&mut self, more: &Self) {
        for counter in 0..N {
            self.sums[counter] = self.sums[counter].wrapping_add(more.sums[counter]);
            self.unknown[counter] = self.unknown[counter].wrapping_add(more.unknown[counter]);
        }
    }

    /// Notes that the sources which are not named were not read.
    pub fn miss_all_but(&mut self, sources: &[&str]) {
        for (counter, unknown) in COUNTERS.iter().zip(&mut self.unknown) {
            *unknown += u32::from(!sources.contains(&counter.table));
        }
    }

    /// What was added since `before`.
    pub fn since(&self, before: &Self) -> Values {
        std::array::from_fn(|counter| {
            (self.unknown[counter] == before.unknown[counter])
                .then(|| self.sums[counter].wrapping_sub(before.sums[counter]))
        })
    }
}

/// Name of a hardware event: PMU, group, event.
pub type EventName = (Label, Option<Label>, Label);

/// Counts of a hardware event since some moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Scaled.
    pub value: f64,
    /// How often it was to be counted and was not.
    pub unknown: u32,
    /// Not scaled.
    pub raw: u64,
    /// Time that it was to be counted, ns.
    pub enabled_ns: u64,
    /// Time that it was, ns.
    pub running_ns: u64,
}

impl Counts {
    /// Adds what came since.
    pub fn add(&mut self, more: &Self) {
        self.value += more.value;
        self.unknown = self.unknown.wrapping_add(more.unknown);
        self.raw = self.raw.wrapping_add(more.raw);
        self.enabled_ns = self.enabled_ns.wrapping_add(more.enabled_ns);
        self.running_ns = self.running_ns.wrapping_add(more.running_ns);
    }

    /// What was added since `before`.
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

/// What each process did, by the rows of one reading.
#[derive(Debug, Default)]
pub struct Increases {
    /// Counters.
    pub sums: HashMap<ProcessKey, Sums>,
    /// Hardware events.
    pub events: HashMap<ProcessKey, Vec<(EventName, Counts)>>,
}

impl Increases {
    /// From the batches of a reading.
    pub fn of(batches: &[Batch]) -> Self {
        let mut increases = Self::default();
        for batch in batches {
            let table = batch.table.name;
            if table == "perf_event" {
                increases.add_events(&batch.rows);
            } else if COUNTERS.iter().any(|counter| counter.table == table) {
                increases.add_counters(table, &batch.rows);
            }
        }
        increases
    }

    fn add_counters(&mut self, table: &str, rows: &RecordBatch) {
        let owners = owners(rows);
        for (place, counter) in COUNTERS.iter().enumerate() {
            if counter.table != table {
                continue;
            }
            let Some(values) = rows.column_by_name(counter.column) else {
                continue;
            };
            let Some(values) = values.as_primitive_opt::<UInt64Type>() else {
                continue;
            };
            let words = counter.only.and_then(|(label, _)| words(rows, label));
            for (row, owner) in owners.iter().enumerate() {
                let Some(owner) = owner else { continue };
                if let Some((_, wanted)) = counter.only {
                    let word = words.as_ref().map_or("", |words| words.value(row));
                    if !wanted.contains(&word) {
                        continue;
                    }
                }
                let sums = self.sums.entry(*owner).or_default();
                if values.is_null(row) {
                    sums.unknown[place] += 1;
                } else {
                    sums.sums[place] += values.value(row);
                }
            }
        }
    }

    fn add_events(&mut self, rows: &RecordBatch) {
        let owners = owners(rows);
        let label = |name| words(rows, name);
        let count = |name| {
            Some(
                rows.column_by_name(name)?
                    .as_primitive_opt::<UInt64Type>()?
                    .clone(),
            )
        };
        let value = rows
            .column_by_name("value")
            .and_then(|value| value.as_primitive_opt::<Float64Type>());
        let (Some(pmus), Some(groups), Some(names), Some(value)) =
            (label("pmu"), label("group"), label("event"), value)
        else {
            return;
        };
        let (Some(raw), Some(enabled), Some(running)) =
            (count("raw"), count("enabled_ns"), count("running_ns"))
        else {
            return;
        };
        for (row, owner) in owners.iter().enumerate() {
            let Some(owner) = owner else { continue };
            let text = |words: &StringArray| Label::from(words.value(row).to_owned());
            let group = groups.is_valid(row).then(|| text(&groups));
            let counts = Counts {
                value: if value.is_valid(row) {
                    value.value(row)
                } else {
                    0.0
                },
                unknown: u32::from(value.is_null(row) && enabled.value(row) != 0),
                raw: raw.value(row),
                enabled_ns: enabled.value(row),
                running_ns: running.value(row),
            };
            let events = self.events.entry(*owner).or_default();
            events.push(((text(&pmus), group, text(&names)), counts));
        }
    }
}

/// Whose each row is; rows of threads and of nobody are nobody's.
fn owners(rows: &RecordBatch) -> Vec<Option<ProcessKey>> {
    let pids: Option<&UInt32Array> = rows
        .column_by_name("pid")
        .and_then(|pids| pids.as_primitive_opt::<UInt32Type>());
    let starts = rows
        .column_by_name("start_ts")
        .and_then(|starts| starts.as_primitive_opt::<TimestampNanosecondType>());
    let (Some(pids), Some(starts)) = (pids, starts) else {
        return Vec::new();
    };
    let threads = rows.column_by_name("tid");
    (0..rows.num_rows())
        .map(|row| {
            let of_process = threads.is_none_or(|threads| threads.is_null(row));
            let known = pids.is_valid(row) && starts.is_valid(row);
            (of_process && known).then(|| (pids.value(row), starts.value(row)))
        })
        .collect()
}

/// The texts of a label.
fn words(rows: &RecordBatch, label: &str) -> Option<StringArray> {
    let texts = cast(rows.column_by_name(label)?, &DataType::Utf8).ok()?;
    Some(texts.as_string::<i32>().clone())
}
