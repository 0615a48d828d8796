//! `disk`: each disk and partition, from `/proc/diskstats` (Documentation/admin-guide/iostats.rst).

use anyhow::{Context as _, Result};

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::file::{KernelFile, lines, number, words},
    schema::{Batch, Label, Table, TableBuilder, TickKey},
    support::{
        clock::monotonic_ns,
        device_counters::{Devices, Width},
    },
};

columns! {
    /// One disk or partition over one interval.
    pub struct DiskRow {
        device: Label = Label("", "Name of the disk or partition, as in /dev"),
        partition: bool = Label("", "Whether it is a part of a disk, whose row has the same I/O"),
        read_ops: Option<u64> = Counter("1", "Reads completed; psutil's read_count"),
        read_merged: Option<u64> = Counter("1", "Reads merged with others before they were issued"),
        read_bytes: Option<u64> = Counter("bytes", "Read; in sectors of 512 bytes"),
        read_ns: Option<u64> = Counter("ns", "Time of all reads from queue to completion, in steps of 1 ms; more than the interval when several are under way"),
        write_ops: Option<u64> = Counter("1", "Writes completed; psutil's write_count"),
        write_merged: Option<u64> = Counter("1", "Writes merged with others before they were issued"),
        write_bytes: Option<u64> = Counter("bytes", "Written; in sectors of 512 bytes"),
        write_ns: Option<u64> = Counter("ns", "Time of all writes from queue to completion, in steps of 1 ms"),
        in_flight: Option<u64> = Gauge("1", "Requests under way"),
        busy_ns: Option<u64> = Counter("ns", "Time in which a request was under way, in steps of 1 ms; a disk that serves many at once is not full when it is always busy"),
        queue_ns: Option<u64> = Counter("ns", "Time × requests under way: divided by the interval, the mean length of the queue"),
        discard_ops: Option<u64> = Counter("1", "Discards completed; null before kernel 4.18"),
        discard_bytes: Option<u64> = Counter("bytes", "Discarded; null before kernel 4.18"),
        flush_ops: Option<u64> = Counter("1", "Flushes completed; null before kernel 5.5, and of partitions 0"),
        flush_ns: Option<u64> = Counter("ns", "Time of all flushes; null before kernel 5.5"),
    }
}

static TABLE: Table = Table::new::<TickKey, DiskRow>(
    "disk",
    "Each disk and partition that has had I/O since boot: one row per tick and device; the first a tick after it appears",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "disk",
    help: "requests, bytes and times of each disk and partition",
    tables: &[&TABLE],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Disks::open(context.host))),
};

fn probe(host: &Host) -> Support {
    match std::fs::read(host.procfs.join("diskstats")) {
        Ok(_) => Support::Works,
        Err(error) => Support::No {
            why: format!("{}: {error}", host.procfs.join("diskstats").display()),
            remedy: "a kernel with CONFIG_PROC_FS and CONFIG_BLOCK".to_owned(),
        },
    }
}

/// Sectors of the file, whatever those of the disk.
const SECTOR: u64 = 512;
const MS: u64 = 1_000_000;

/// Fields after the name. Times in ms are 32 bits wide: 49 days of a busy disk.
const WIDTHS: [Width; 17] = {
    let mut widths = [Width::Long; 17];
    let times = [3, 7, 9, 10, 14, 16];
    let mut index = 0;
    while index < times.len() {
        widths[times[index]] = Width::Wraps32;
        index += 1;
    }
    // A gauge: not to be compared.
    widths[IN_FLIGHT] = Width::Wraps32;
    widths
};
const IN_FLIGHT: usize = 8;

struct Disks {
    file: KernelFile,
    host: Host,
    devices: Devices<Facts, 17>,
    rows: TableBuilder<TickKey, DiskRow>,
}

/// What does not change.
struct Facts {
    name: Label,
    partition: bool,
}

impl Disks {
    fn open(host: &Host) -> Self {
        Self {
            file: KernelFile::new(host.procfs.join("diskstats")),
            host: host.clone(),
            devices: Devices::new(WIDTHS),
            rows: TableBuilder::new(&TABLE),
        }
    }
}

/// Name and fields of a line: `major minor name fields…`.
fn parse(line: &[u8]) -> Option<(&[u8], [Option<u64>; 17])> {
    let mut words = words(line);
    words.next().and_then(number)?;
    words.next().and_then(number)?;
    let name = words.next()?;
    let mut values = [None; 17];
    for value in &mut values {
        *value = words.next().and_then(number);
    }
    Some((name, values))
}

impl Source for Disks {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let now = monotonic_ns();
        let path = self.file.path().to_owned();
        let text = self
            .file
            .read()
            .with_context(|| path.display().to_string())?;
        self.devices.begin();
        for (name, values) in lines(text).filter_map(parse) {
            // Loop devices and RAM disks that nobody uses.
            if values.iter().all(|value| value.unwrap_or(0) == 0) {
                continue;
            }
            let facts = || {
                let name = String::from_utf8_lossy(name);
                let partition = format!("class/block/{name}/partition");
                Facts {
                    partition: self.host.sysfs.join(partition).exists(),
                    name: Label::from(name.into_owned()),
                }
            };
            let Some(increase) = self.devices.take(name, now, values, facts) else {
                continue;
            };
            let count = |index: usize| increase.counts[index];
            let bytes = |index: usize| count(index).and_then(|sectors| sectors.checked_mul(SECTOR));
            let time = |index: usize| count(index).and_then(|ms| ms.checked_mul(MS));
            self.rows.push(
                TickKey {
                    ts: at.tick.ts,
                    interval_ns: increase.interval_ns,
                },
                DiskRow {
                    device: increase.facts.name.clone(),
                    partition: increase.facts.partition,
                    read_ops: count(0),
                    read_merged: count(1),
                    read_bytes: bytes(2),
                    read_ns: time(3),
                    write_ops: count(4),
                    write_merged: count(5),
                    write_bytes: bytes(6),
                    write_ns: time(7),
                    in_flight: values[IN_FLIGHT],
                    busy_ns: time(9),
                    queue_ns: time(10),
                    discard_ops: count(11),
                    discard_bytes: bytes(13),
                    flush_ops: count(15),
                    flush_ns: time(16),
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}
