//! `timeline`: target, node, power, fabric and GPUs in one row per sample, computed from the
//! batches of the other sources.

mod node;
mod target;

use anyhow::Result;

use self::{
    node::{Gpus, Node},
    target::Target,
};
use super::{
    Input, Source, SourceSpec, Stage, TickContext,
    energy_attribution::{Attribution, Packages},
};
use crate::{
    columns,
    perf::NODE_CYCLES,
    schema::{Batch, TableBuilder, TickKey, TypedTable},
    sources::perf,
    support::delta::Interval,
};

columns! {
    /// One sample of target and node.
    pub struct TimelineRow {
        target_cpu_percent: Option<f64> = Gauge("%", "CPU time of the target over the interval; 100 is one CPU (usage). If processes are read from /proc, it includes processes without a sample"),
        target_runqueue_ns: Option<u64> = Counter("ns", "Time that threads of the target were runnable and waited for a CPU (sched)"),
        target_rss_sum: Option<u64> = Gauge("bytes", "Sum of the resident memory of all processes; shared pages are counted for each process (usage.rss)"),
        target_pss_sum: Option<u64> = Gauge("bytes", "Memory of the target: sum of PSS, in which shared pages are divided by the number of processes that map them. Read every 30 s, at the end, and when target_rss_sum has grown by 25 %; null at other samples"),
        target_minor_faults: Option<u64> = Counter("1", "Page faults served without I/O (usage)"),
        target_major_faults: Option<u64> = Counter("1", "Page faults that waited for I/O (usage)"),
        target_file_read_bytes: Option<u64> = Counter("bytes", "Bytes returned by reads of files, cached or not (file_io); null with method `accounting`, which includes pipes and devices"),
        target_file_write_bytes: Option<u64> = Counter("bytes", "Bytes accepted by writes to files (file_io); null with method `accounting`"),
        target_block_read_bytes: Option<u64> = Counter("bytes", "Bytes read from block devices (block_io)"),
        target_block_write_bytes: Option<u64> = Counter("bytes", "Bytes written to block devices (block_io)"),
        target_net_tx_bytes: Option<u64> = Counter("bytes", "Bytes sent over TCP and UDP, including loopback (net_io)"),
        target_net_rx_bytes: Option<u64> = Counter("bytes", "Bytes received over TCP and UDP, including loopback (net_io)"),
        target_cycles: Option<f64> = Counter("1", "CPU cycles (perf_event, group HW); with --node, this column and the following ones up to target_l3_bw_bytes_per_s are of all CPUs"),
        target_instructions: Option<f64> = Counter("1", "Completed instructions (perf_event, group HW)"),
        target_ipc: Option<f64> = Gauge("instructions/cycle", "Instructions per cycle: target_instructions / target_cycles"),
        target_flop_per_s: Option<f64> = Gauge("FLOP/s", "Floating-point operations per second, on CPUs that do not distinguish precisions (perf_metric flops)"),
        target_dp_flop_per_s: Option<f64> = Gauge("FLOP/s", "Floating-point operations per second in double precision (perf_metric dp_flops)"),
        target_sp_flop_per_s: Option<f64> = Gauge("FLOP/s", "Floating-point operations per second in single precision (perf_metric sp_flops)"),
        target_hp_flop_per_s: Option<f64> = Gauge("FLOP/s", "Floating-point operations per second in half precision (perf_metric hp_flops)"),
        target_l2_bw_bytes_per_s: Option<f64> = Gauge("B/s", "Bandwidth between L1 and L2 (perf_metric l2_bw)"),
        target_l3_bw_bytes_per_s: Option<f64> = Gauge("B/s", "Bandwidth between L2 and L3 (perf_metric l3_bw); of the node if only the shared cache counts it"),
        node_cpu_percent: Option<f64> = Gauge("%", "CPU time of all processes of the node over the interval, without interrupts; 100 is one CPU (system)"),
        node_memory_bytes: Option<u64> = Gauge("bytes", "Memory in use (system.memory_used)"),
        node_block_read_bytes: Option<u64> = Counter("bytes", "Bytes read from physical disks (disk)"),
        node_block_write_bytes: Option<u64> = Counter("bytes", "Bytes written to physical disks (disk)"),
        node_net_tx_bytes: Option<u64> = Counter("bytes", "Bytes sent by physical network interfaces, in a container by those that lead out of it (netdev)"),
        node_net_rx_bytes: Option<u64> = Counter("bytes", "Bytes received by physical network interfaces, in a container by those that lead out of it (netdev)"),
        node_mem_bw_bytes_per_s: Option<f64> = Gauge("B/s", "Bandwidth of DRAM, reads and writes (perf_metric mem_bw); of the target if the CPU can attribute it"),
        package_power_w: Option<f64> = Gauge("W", "Power of all packages (energy)"),
        dram_power_w: Option<f64> = Gauge("W", "Power of all memory (energy)"),
        fabric_tx_bytes: Option<u64> = Counter("bytes", "Bytes sent by all ports (fabric); null if the value of a port is unknown"),
        fabric_rx_bytes: Option<u64> = Counter("bytes", "Bytes received by all ports (fabric); null if the value of a port is unknown"),
        gpu_utilization_sum: Option<f64> = Gauge("%", "Utilization of all GPUs, which include their MIG instances; 100 is one GPU. From the last reading that has ended, usually that of the previous sample (gpu)"),
        gpu_utilization_max: Option<f64> = Gauge("%", "Utilization of the busiest GPU (gpu)"),
        gpu_memory_sum_bytes: Option<f64> = Gauge("bytes", "Device memory in use on all GPUs (gpu)"),
        gpu_memory_max_bytes: Option<f64> = Gauge("bytes", "Device memory in use on the GPU with the largest use (gpu)"),
        gpu_power_sum_w: Option<f64> = Gauge("W", "Power of all GPUs (gpu)"),
        gpu_power_max_w: Option<f64> = Gauge("W", "Power of the GPU with the highest power (gpu)"),
        node_cycles: Option<f64> = Counter("1", "CPU cycles of all CPUs (perf_event, group NODE); counted if the energy of packages is known, except with --node"),
        target_energy_uj: Option<f64> = Counter("µJ", "Energy of the packages × share of the node's CPU time used by the target: a model, not a measurement", "cpu_time_share"),
        target_energy_cycle_share_uj: Option<f64> = Counter("µJ", "Energy of the packages × share of the node's cycles used by the target (target_cycles / node_cycles): a model, not a measurement", "cycle_share"),
    }
}

static TABLE: TypedTable<TickKey, TimelineRow> = TypedTable::every_tick(
    "timeline",
    "One row per sample, computed from the rows of the other tables at the sample; null if no source reports a value",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "timeline",
    help: "target, node, power, fabric and GPUs in one row per sample",
    tables: &[TABLE.untyped()],
    input: Input::Sources,
    stage: Stage::Derive,
    at_boundaries: true,
    open: |_| {
        Ok(Box::new(Timeline {
            interval: Interval::default(),
            packages: Packages::default(),
            earlier: Target::default(),
            rows: TableBuilder::new(&TABLE),
        }))
    },
    ..SourceSpec::DEFAULT
};

struct Timeline {
    interval: Interval,
    packages: Packages,
    /// Use by the target at the boundaries since the last sample.
    earlier: Target,
    rows: TableBuilder<TickKey, TimelineRow>,
}

impl Source for Timeline {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let earlier = std::mem::take(&mut self.earlier);
        let target = earlier.and(&Target::read(ctx, out));
        if ctx.boundary.is_some() {
            self.earlier = target;
            return Ok(());
        }
        let earlier_ns = earlier.cpu_ns.unwrap_or(0);
        let package_uj = self.packages.energy_uj(&ctx.tick, out);
        if let Some(interval_ns) = self.interval.end(ctx.tick.monotonic_ns) {
            let row = row(ctx, out, interval_ns, &target, earlier_ns, package_uj);
            self.rows.push(ctx.key(interval_ns), row);
        }
        self.rows.finish(out);
        Ok(())
    }
}

/// The row of a sample. `earlier_ns` is the CPU time of the target that is not in `batches`.
fn row(
    ctx: &TickContext<'_>,
    batches: &[Batch],
    interval_ns: u64,
    target: &Target,
    earlier_ns: u64,
    package_uj: Option<f64>,
) -> TimelineRow {
    let metric = |name| node::metric(batches, name);
    let node = Node::read(batches);
    let gpus = Gpus::read(batches);
    let instructions = target.instructions.zip(target.cycles);
    let cpu_time = Attribution::by_cpu_time(package_uj, batches, earlier_ns);
    let cycles = Attribution::by_cycles(package_uj, batches);
    TimelineRow {
        target_cpu_percent: target.cpu_ns.and_then(|ns| percent(ns, interval_ns)),
        target_runqueue_ns: target.runqueue_ns,
        target_rss_sum: target::rss(ctx, batches),
        target_pss_sum: ctx.tasks.pss,
        target_minor_faults: target.minor_faults,
        target_major_faults: target.major_faults,
        target_file_read_bytes: target.file_read_bytes,
        target_file_write_bytes: target.file_write_bytes,
        target_block_read_bytes: target.block_read_bytes,
        target_block_write_bytes: target.block_write_bytes,
        target_net_tx_bytes: target.net_tx_bytes,
        target_net_rx_bytes: target.net_rx_bytes,
        target_cycles: target.cycles,
        target_instructions: target.instructions,
        target_ipc: instructions
            .filter(|(_, cycles)| *cycles > 0.0)
            .map(|(instructions, cycles)| instructions / cycles),
        target_flop_per_s: metric("flops"),
        target_dp_flop_per_s: metric("dp_flops"),
        target_sp_flop_per_s: metric("sp_flops"),
        target_hp_flop_per_s: metric("hp_flops"),
        target_l2_bw_bytes_per_s: metric("l2_bw"),
        target_l3_bw_bytes_per_s: metric("l3_bw"),
        node_cpu_percent: node.cpu,
        node_memory_bytes: node.memory,
        node_block_read_bytes: node.block_read_bytes,
        node_block_write_bytes: node.block_write_bytes,
        node_net_tx_bytes: node.net_tx_bytes,
        node_net_rx_bytes: node.net_rx_bytes,
        node_mem_bw_bytes_per_s: metric("mem_bw"),
        package_power_w: node::power(batches, "package"),
        dram_power_w: node::power(batches, "dram"),
        fabric_tx_bytes: node.fabric_tx_bytes,
        fabric_rx_bytes: node.fabric_rx_bytes,
        gpu_utilization_sum: gpus.utilization.sum,
        gpu_utilization_max: gpus.utilization.max,
        gpu_memory_sum_bytes: gpus.memory.sum,
        gpu_memory_max_bytes: gpus.memory.max,
        gpu_power_sum_w: gpus.power.sum,
        gpu_power_max_w: gpus.power.max,
        node_cycles: perf::count(batches, NODE_CYCLES),
        target_energy_uj: target
            .cpu_ns
            .zip(cpu_time)
            .map(|(ns, model)| model.share(ns as f64)),
        target_energy_cycle_share_uj: target
            .cycles
            .zip(cycles)
            .map(|(used, model)| model.share(used)),
    }
}

/// `ns` as a percentage of `of`.
fn percent(ns: u64, of: u64) -> Option<f64> {
    (of != 0).then(|| ns as f64 / of as f64 * 100.0)
}
