//! `disk`: I/O of each disk and partition, from `/proc/diskstats`
//! (Documentation/admin-guide/iostats.rst).

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::{
        device_file::DeviceFile,
        file::{number, words},
    },
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::{delta::Range, device_counters::Increase},
};

columns! {
    /// One disk or partition over one interval.
    pub struct DiskRow {
        device: Label = Label("", "Name of the disk or partition, as in /dev"),
        partition: bool = Label("", "Whether it is a partition; the row of its disk includes its I/O"),
        read_ops: Option<u64> = Counter("1", "Completed reads; read_count in psutil"),
        read_merged: Option<u64> = Counter("1", "Reads merged with others before they were issued"),
        read_bytes: Option<u64> = Counter("bytes", "Bytes read, in sectors of 512 bytes"),
        read_ns: Option<u64> = Counter("ns", "Time of all reads from queue to completion, in steps of 1 ms; exceeds the interval if several are in flight"),
        write_ops: Option<u64> = Counter("1", "Completed writes; write_count in psutil"),
        write_merged: Option<u64> = Counter("1", "Writes merged with others before they were issued"),
        write_bytes: Option<u64> = Counter("bytes", "Bytes written, in sectors of 512 bytes"),
        write_ns: Option<u64> = Counter("ns", "Time of all writes from queue to completion, in steps of 1 ms"),
        in_flight: Option<u64> = Gauge("1", "Requests in flight"),
        busy_ns: Option<u64> = Counter("ns", "Time with a request in flight, in steps of 1 ms. A disk that serves many requests at once is not saturated when it is always busy"),
        queue_ns: Option<u64> = Counter("ns", "Time × requests in flight; divided by the interval, the mean queue length"),
        discard_ops: Option<u64> = Counter("1", "Completed discards; null before kernel 4.18"),
        discard_bytes: Option<u64> = Counter("bytes", "Bytes discarded; null before kernel 4.18"),
        flush_ops: Option<u64> = Counter("1", "Completed flushes; 0 for partitions, null before kernel 5.5"),
        flush_ns: Option<u64> = Counter("ns", "Time of all flushes; null before kernel 5.5"),
    }
}

pub(super) static TABLE: TypedTable<TickKey, DiskRow> = TypedTable::new(
    "disk",
    "One row per sample and disk or partition that has had I/O since boot, from the second sample after it appears",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "disk",
    help: "requests, bytes and times of each disk and partition",
    tables: &[TABLE.untyped()],
    probe: Some(|host| {
        Support::of_file(&file(host), "a kernel with CONFIG_PROC_FS and CONFIG_BLOCK")
    }),
    open: |context| {
        Ok(Box::new(Disks {
            file: DeviceFile::new(file(context.host), RANGES, parse),
            sysfs: context.host.sysfs.clone(),
            rows: TableBuilder::new(&TABLE),
        }))
    },
    ..SourceSpec::DEFAULT
};

fn file(host: &Host) -> PathBuf {
    host.procfs.join("diskstats")
}

/// Bytes of a sector in this file, whatever the sector size of the disk.
const SECTOR: u64 = 512;
const NS_PER_MS: u64 = 1_000_000;

/// Number of values after the name.
pub(super) const VALUES: usize = 17;

/// Times in ms have 32 bits, which a busy disk exceeds after 49 days.
const RANGES: [Range; VALUES] = {
    let mut ranges = [Range::Unlimited; VALUES];
    let times = [3, 7, 9, 10, 14, 16];
    let mut index = 0;
    while index < times.len() {
        ranges[times[index]] = Range::BITS_32;
        index += 1;
    }
    ranges[IN_FLIGHT] = Range::Gauge;
    ranges
};
const IN_FLIGHT: usize = 8;

/// Parses a line `major minor name values…`. Devices without any I/O, such as unused loop devices
/// and RAM disks, are skipped.
pub(super) fn parse(line: &[u8]) -> Option<(&[u8], [Option<u64>; VALUES])> {
    let mut words = words(line);
    words.next().and_then(number)?;
    words.next().and_then(number)?;
    let name = words.next()?;
    let values = std::array::from_fn(|_| words.next().and_then(number));
    let is_used = values.iter().any(|value| value.unwrap_or(0) != 0);
    is_used.then_some((name, values))
}

struct Disks {
    file: DeviceFile<Facts, VALUES>,
    sysfs: PathBuf,
    rows: TableBuilder<TickKey, DiskRow>,
}

/// Constant facts about a device.
pub(super) struct Facts {
    name: Label,
    partition: bool,
}

impl Facts {
    pub(super) fn read(sysfs: &Path, name: &str) -> Self {
        let partition = sysfs.join(format!("class/block/{name}/partition"));
        Self {
            partition: partition.exists(),
            name: name.to_owned().into(),
        }
    }
}

impl Source for Disks {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let rows = &mut self.rows;
        self.file.read(
            |name| Facts::read(&self.sysfs, name),
            |increase| rows.push(ctx.key(increase.interval_ns), row(&increase)),
        )?;
        rows.finish(out);
        Ok(())
    }
}

pub(super) fn row(increase: &Increase<'_, Facts, VALUES>) -> DiskRow {
    let bytes = |sectors: Option<u64>| sectors?.checked_mul(SECTOR);
    let ns = |ms: Option<u64>| ms?.checked_mul(NS_PER_MS);
    let [
        read_ops,
        read_merged,
        read_sectors,
        read_ms,
        write_ops,
        write_merged,
        write_sectors,
        write_ms,
        _in_flight,
        busy_ms,
        queue_ms,
        discard_ops,
        _discard_merged,
        discard_sectors,
        _discard_ms,
        flush_ops,
        flush_ms,
    ] = increase.counts;
    DiskRow {
        device: increase.facts.name.clone(),
        partition: increase.facts.partition,
        read_ops,
        read_merged,
        read_bytes: bytes(read_sectors),
        read_ns: ns(read_ms),
        write_ops,
        write_merged,
        write_bytes: bytes(write_sectors),
        write_ns: ns(write_ms),
        in_flight: increase.values[IN_FLIGHT],
        busy_ns: ns(busy_ms),
        queue_ns: ns(queue_ms),
        discard_ops,
        discard_bytes: bytes(discard_sectors),
        flush_ops,
        flush_ns: ns(flush_ms),
    }
}
