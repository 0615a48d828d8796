//! `disk`: I/O of each disk and partition, from `/proc/diskstats`
//! (Documentation/admin-guide/iostats.rst).

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::{self, Host},
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
        kind: Label = Label("", "physical (also a disk behind a network); virtual (dm, md, loop, zram …, whose I/O is also counted on other disks, or goes to memory). Sum physical disks for the I/O of the node"),
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

/// Value of column `kind` for disks whose I/O is not that of other disks of the node.
pub(super) const PHYSICAL: &str = "physical";
/// Value of column `kind` for the others.
pub const VIRTUAL: &str = "virtual";

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
    kind: &'static str,
}

impl Facts {
    pub(super) fn read(sysfs: &Path, name: &str) -> Self {
        // In sysfs, `!` replaces the slash of names such as cciss/c0d0.
        let class = sysfs.join("class/block");
        let mut directory = class.join(name.replace('/', "!"));
        let partition = directory.join("partition").exists();
        if partition && let Ok(own) = directory.canonicalize() {
            directory = own.parent().map_or(own.clone(), Path::to_owned);
        }
        Self {
            partition,
            kind: kind(&class, &directory),
            name: name.to_owned().into(),
        }
    }
}

/// Drivers of disks that are files or memory, and have no slaves.
const WITHOUT_SLAVES: [&str; 4] = ["loop", "zram", "ram", "drbd"];

/// Kind of a disk, which has this directory.
fn kind(class: &Path, directory: &Path) -> &'static str {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_stacked = !host::names(&directory.join("slaves"), "").is_empty();
    if is_stacked || WITHOUT_SLAVES.contains(&driver) || is_multipath(class, &name) {
        VIRTUAL
    } else {
        PHYSICAL
    }
}

/// Whether this is an NVMe namespace with several paths: `nvme0n1`, whose paths `nvme0c0n1`,
/// `nvme0c1n1` … count the same I/O.
fn is_multipath(class: &Path, name: &str) -> bool {
    let Some((subsystem, namespace)) = name.rsplit_once('n') else {
        return false;
    };
    let is_path = |path: String| {
        let number = path[subsystem.len() + 1..].strip_suffix(namespace);
        let number = number.and_then(|rest| rest.strip_suffix('n'));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    subsystem.starts_with("nvme")
        && host::names(class, &format!("{subsystem}c"))
            .into_iter()
            .any(is_path)
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
        kind: Label::Static(increase.facts.kind),
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn disks_on_other_disks_are_virtual() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let class = sysfs.path().join("class/block");
        for name in [
            "sda/sda1/partition",
            "dm-0/slaves/sda1",
            "md127/slaves/sda",
            "loop0/slaves",
            "zram0",
            "nbd0/slaves",
            "cciss!c0d0",
            "nvme0n1",
            "nvme0c0n1",
            "nvme0n12",
            "nvme1n1",
        ] {
            fs::create_dir_all(class.join(name)).expect("a directory");
        }
        std::os::unix::fs::symlink("sda/sda1", class.join("sda1")).expect("a link");
        fs::create_dir_all(class.join("md127/md127p1/partition")).expect("a directory");
        std::os::unix::fs::symlink("md127/md127p1", class.join("md127p1")).expect("a link");
        let of = |name: &str| {
            let facts = Facts::read(sysfs.path(), name);
            (facts.partition, facts.kind)
        };
        for (name, expected) in [
            ("sda", (false, PHYSICAL)),
            ("sda1", (true, PHYSICAL)),
            ("dm-0", (false, VIRTUAL)),
            ("md127", (false, VIRTUAL)),
            ("md127p1", (true, VIRTUAL)),
            ("loop0", (false, VIRTUAL)),
            ("zram0", (false, VIRTUAL)),
            ("nbd0", (false, PHYSICAL)),
            ("cciss/c0d0", (false, PHYSICAL)),
            ("nvme0n1", (false, VIRTUAL)),
            ("nvme0c0n1", (false, PHYSICAL)),
            ("nvme0n12", (false, PHYSICAL)),
            ("nvme1n1", (false, PHYSICAL)),
        ] {
            assert_eq!(of(name), expected, "{name}");
        }
    }
}
