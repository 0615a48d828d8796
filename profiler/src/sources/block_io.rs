//! `block_io`: requests to block devices, by process, device and operation.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::PathBuf,
};

use anyhow::Result;
use profiler_ebpf::{
    maps::{self, Named as _},
    per_key::{
        self,
        block::{device_of, numbers, op, op_of},
    },
};

use super::{
    Input, Source, SourceSpec, TickContext,
    latency::{self, LatencyRow},
};
use crate::{
    bpf::{Hook, Instrumentation, Method},
    columns,
    procfs::cgroup_names::CgroupNames,
    schema::{Batch, Label, OwnerKey, ProcessKey, TableBuilder, TypedTable},
    tasks::{
        ProcessId,
        counters::Latency,
        per_key::{BlockIncrease, CounterRow},
    },
};

columns! {
    /// Block I/O submitted by a process.
    pub struct BlockIoRow {
        device: Label = Label("", "Kernel name of the whole disk (nvme0n1, dm-0), not of a partition"),
        dev: Label = Label("", "Device number (major:minor). NVMe multipath paths have no device node"),
        dm_name: Option<Label> = Label("", "Name of a device-mapper disk, as in /dev/mapper; null for other disks"),
        cgroup: Option<Label> = Label("", "In rows without a process: the cgroup that the kernel charged, as a path below its mount point; null if it is unknown, and in rows of processes"),
        op: Label = Label("", "Operation: read, write (including zeroes), discard or flush (of the device cache)"),
        ops: u64 = Counter("1", "Completed requests, after merging and splitting"),
        bytes: u64 = Counter("bytes", "Bytes of completed requests and of completed parts of requests"),
        queue_ns: u64 = Counter("ns", "Time from creation to issue to the driver, summed over requests (see `ops_untimed`)"),
        service_ns: u64 = Counter("ns", "Time from issue to the driver to completion, summed over requests (see `ops_untimed`)"),
        ops_untimed: u64 = Counter("1", "Requests whose completion no BPF program observed: part of `ops`, but not of times and histograms"),
        errors: u64 = Counter("1", "Failed requests; also part of `ops`"),
        flush_requests: Option<u64> = Counter("1", "Flush requests without data (fsync of data that is already written). The device gets one flush for all waiting requests; it is part of the `ops` of the process that has waited longest. Null for other operations"),
    }
}

pub static TABLE: TypedTable<OwnerKey, BlockIoRow> = TypedTable::new(
    "block_io",
    "One row per sample, process, device and operation, if a request was completed",
);

static INSTRUMENTATION: Instrumentation = Instrumentation {
    source: "block_io",
    maps: &[
        per_key::BlockIo::NAME,
        maps::Requests::NAME,
        maps::Dirtiers::NAME,
    ],
    methods: &[Method::new(
        "requests",
        &[
            Hook::tracepoint("block_getrq", "block_getrq"),
            Hook::tracepoint("block_rq_insert", "block_rq_insert"),
            Hook::tracepoint("block_rq_issue", "block_rq_issue"),
            Hook::tracepoint("block_rq_merge", "block_rq_merge"),
            Hook::tracepoint("block_rq_complete", "block_rq_complete"),
            Hook::tracepoint("block_rq_nested", "block_rq_complete"),
        ],
    )
    // Only useful together: without one of them, writeback has no owner.
    .optional(&[
        Hook::tracepoint("writeback_single_inode", "writeback_single_inode"),
        Hook::tracepoint(
            "writeback_single_inode_start",
            "writeback_single_inode_start",
        ),
        Hook::tracepoint("writeback_dirty_folio", "writeback_dirty_folio")
            .formerly("writeback_dirty_page"),
    ])],
    optional: &[],
};

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "block_io",
    help: "requests of block devices, by process, device and operation",
    tables: &[TABLE.untyped(), latency::TABLE.untyped()],
    input: Input::Tasks { procfs: false },
    instrumentation: Some(&INSTRUMENTATION),
    open: |context| {
        Ok(Box::new(BlockIo {
            rows: TableBuilder::new(&TABLE),
            latencies: TableBuilder::new(&latency::TABLE),
            cgroups: CgroupNames::new(&context.host.cgroups),
            mapped: Mapped {
                devices: context.host.sysfs.join("dev/block"),
                names: HashMap::new(),
            },
        }))
    },
    ..SourceSpec::DEFAULT
};

struct BlockIo {
    rows: TableBuilder<OwnerKey, BlockIoRow>,
    latencies: TableBuilder<ProcessKey, LatencyRow>,
    cgroups: CgroupNames,
    mapped: Mapped,
}

impl Source for BlockIo {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let per_key = &ctx.tasks.per_key;
        let Some(table) = &per_key.block_io else {
            return Ok(());
        };
        self.mapped.clear();
        let mut times = BTreeMap::new();
        for row in &table.rows {
            let device = device_of(row.dimension);
            let (major, minor) = numbers(device);
            let number = format!("{major}:{minor}");
            let counts = &row.increase.counts;
            let name = per_key.disks.name(device);
            let mapped = self.mapped.name(device, &number);
            let cgroup = row.cgroup.and_then(|id| self.cgroups.path(id));
            self.rows.push(
                ctx.key_of_counters(row),
                BlockIoRow {
                    device: name.map_or_else(|| number.clone().into(), Label::from),
                    dev: number.into(),
                    dm_name: mapped.map(Into::into),
                    cgroup: cgroup.as_ref().map(Label::from),
                    op: op_name(row.dimension).into(),
                    ops: counts.ops,
                    bytes: counts.bytes,
                    queue_ns: sum_of(row.increase.queue.as_ref()),
                    service_ns: sum_of(row.increase.service.as_ref()),
                    ops_untimed: counts.ops_untimed,
                    errors: counts.errors,
                    flush_requests: (op_of(row.dimension) == op::FLUSH)
                        .then_some(counts.flush_requests),
                },
            );
            add_times(&mut times, row);
        }
        self.rows.finish(out);
        for ((id, tid, kind), (interval_ns, latency)) in times {
            let key = ctx.key_of_process(id, tid, interval_ns);
            self.latencies.push(key, LatencyRow::new(kind, &latency));
        }
        self.latencies.finish(out);
        Ok(())
    }
}

/// Durations of a process or thread by kind, over all devices, with the length of the interval.
type Times = BTreeMap<(ProcessId, Option<u32>, &'static str), (u64, Latency)>;

fn add_times(times: &mut Times, row: &CounterRow<BlockIncrease>) {
    let Some(id) = row.id else { return };
    let service = match op_of(row.dimension) {
        op::READ => "block_read",
        op::WRITE => "block_write",
        op::DISCARD => "block_discard",
        _ => "block_flush",
    };
    let increase = &row.increase;
    for (kind, latency) in [
        (service, &increase.service),
        ("block_queue", &increase.queue),
    ] {
        if let Some(latency) = latency {
            times
                .entry((id, row.tid, kind))
                .and_modify(|(_, sum)| sum.add(latency))
                .or_insert_with(|| (row.interval_ns, latency.clone()));
        }
    }
}

fn sum_of(latency: Option<&Latency>) -> u64 {
    latency.map_or(0, |latency| latency.sum)
}

/// Names of device-mapper disks, from sysfs.
struct Mapped {
    /// `/sys/dev/block`.
    devices: PathBuf,
    /// Cache for this sample, because a disk may be renamed.
    names: HashMap<u64, Option<String>>,
}

impl Mapped {
    fn clear(&mut self) {
        self.names.clear();
    }

    fn name(&mut self, device: u64, number: &str) -> Option<String> {
        let devices = &self.devices;
        let read = || {
            let name = fs::read_to_string(devices.join(number).join("dm/name")).ok()?;
            Some(name.trim_end().to_owned())
        };
        self.names.entry(device).or_insert_with(read).clone()
    }
}

fn op_name(dimension: u64) -> &'static str {
    match op_of(dimension) {
        op::READ => "read",
        op::WRITE => "write",
        op::DISCARD => "discard",
        _ => "flush",
    }
}
