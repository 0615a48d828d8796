//! `timeline`: the merged picture, computed from what the other sources read at the same tick.

use std::collections::HashMap;

use anyhow::Result;
use arrow::datatypes::{Float64Type, TimestampNanosecondType, UInt64Type};

use super::{
    Context, Source, SourceSpec, Support, TickContext,
    energy::attribution::{Attribution, busy, counted},
};
use crate::{
    columns,
    perf::{NODE_CYCLES, TARGET_CYCLES},
    schema::{
        Batch, Table, TableBuilder, TickKey,
        read::{Rows, largest, sum, whole},
    },
    support::self_metrics::{Component, SelfMetrics},
};

columns! {
    /// One tick of everything.
    pub struct TimelineRow {
        target_cpu: Option<f64> = Gauge("%", "CPU time of the target over the interval: 100 is one CPU (usage)"),
        target_runqueue_ns: Option<u64> = Counter("ns", "Time that the target's threads were ready but waited for a CPU (sched)"),
        target_rss_sum: Option<u64> = Gauge("bytes", "Sum of RSS: pages that processes share are counted once per process (usage.rss)"),
        target_pss_sum: Option<u64> = Gauge("bytes", "Sum of PSS: shared pages are divided by the number of processes that map them, so this is the memory of the target; null at ticks at which it was not read of each process. Read every 30 s, at the end, and when target_rss_sum has grown by 25 %"),
        target_minor_faults: Option<u64> = Counter("1", "Page faults served without I/O (usage)"),
        target_major_faults: Option<u64> = Counter("1", "Page faults that waited for I/O (usage)"),
        target_file_read_bytes: Option<u64> = Counter("bytes", "Returned by reads of files, cached or not (file_io); null with its method `accounting`, which does not tell files from pipes and devices"),
        target_file_write_bytes: Option<u64> = Counter("bytes", "Accepted by writes to files (file_io); null with its method `accounting`"),
        target_block_read_bytes: Option<u64> = Counter("bytes", "Read from block devices (block_io)"),
        target_block_write_bytes: Option<u64> = Counter("bytes", "Written to block devices (block_io)"),
        target_net_tx_bytes: Option<u64> = Counter("bytes", "Sent over TCP and UDP, loopback included (net_io)"),
        target_net_rx_bytes: Option<u64> = Counter("bytes", "Received over TCP and UDP, loopback included (net_io)"),
        target_cycles: Option<f64> = Counter("1", "CPU cycles (perf_event, group HW); with --node those of all CPUs, as of the columns up to l3_bw"),
        target_instructions: Option<f64> = Counter("1", "Completed instructions (perf_event, group HW)"),
        target_ipc: Option<f64> = Gauge("instructions/cycle", "target_instructions / target_cycles"),
        target_flops: Option<f64> = Gauge("FLOP/s", "Floating-point operations per second, where the CPU does not tell precisions apart (perf_metric flops)"),
        target_dp_flops: Option<f64> = Gauge("FLOP/s", "The same in double precision (perf_metric dp_flops)"),
        target_sp_flops: Option<f64> = Gauge("FLOP/s", "The same in single precision (perf_metric sp_flops)"),
        target_hp_flops: Option<f64> = Gauge("FLOP/s", "The same in half precision (perf_metric hp_flops)"),
        target_l2_bw: Option<f64> = Gauge("B/s", "Data between L1 and L2 (perf_metric l2_bw)"),
        target_l3_bw: Option<f64> = Gauge("B/s", "Data between L2 and L3 (perf_metric l3_bw); of the node where only the shared cache counts it"),
        node_cpu: Option<f64> = Gauge("%", "CPU time of all processes of the node over the interval: 100 is one CPU (system, without interrupts)"),
        node_memory: Option<u64> = Gauge("bytes", "Memory in use (system.memory_used)"),
        node_block_read_bytes: Option<u64> = Counter("bytes", "Read from block devices (system.page_in_bytes)"),
        node_block_write_bytes: Option<u64> = Counter("bytes", "Written to block devices (system.page_out_bytes)"),
        node_net_tx_bytes: Option<u64> = Counter("bytes", "Sent by physical network interfaces (netdev)"),
        node_net_rx_bytes: Option<u64> = Counter("bytes", "Received by physical network interfaces (netdev)"),
        node_mem_bw: Option<f64> = Gauge("B/s", "Data read from and written to DRAM (perf_metric mem_bw); of the target where the CPU can tell"),
        package_power: Option<f64> = Gauge("W", "Power of all packages (energy)"),
        dram_power: Option<f64> = Gauge("W", "Power of all memory (energy)"),
        fabric_tx_bytes: Option<u64> = Counter("bytes", "Sent by all ports (fabric); null while one of them cannot tell"),
        fabric_rx_bytes: Option<u64> = Counter("bytes", "Received by all ports (fabric); likewise"),
        gpu_utilization_sum: Option<f64> = Gauge("%", "Utilization of all GPUs: 100 is one of them (gpu, the reading that had ended: mostly that of the tick before); MIG instances are in their GPUs"),
        gpu_utilization_max: Option<f64> = Gauge("%", "That of the busiest GPU (gpu)"),
        gpu_memory_sum: Option<f64> = Gauge("bytes", "Device memory in use on all GPUs (gpu)"),
        gpu_memory_max: Option<f64> = Gauge("bytes", "That of the fullest GPU (gpu)"),
        gpu_power_sum: Option<f64> = Gauge("W", "Power of all GPUs (gpu)"),
        gpu_power_max: Option<f64> = Gauge("W", "That of the GPU with the most (gpu)"),
        node_cycles: Option<f64> = Counter("1", "CPU cycles of all CPUs, whoever used them (perf_event, group NODE); counted where the energy of packages is known, and not with --node"),
        target_energy_uj: Option<f64> = Counter("µJ", "The target's share of the packages' energy, as its share of the node's CPU time: a model, not a measurement", "cpu_time_share"),
        target_energy_by_cycles_uj: Option<f64> = Counter("µJ", "The same, as its share of the node's cycles (target_cycles / node_cycles): a model, not a measurement", "cycle_share"),
    }
}

static TABLE: Table = Table::new::<TickKey, TimelineRow>(
    "timeline",
    "The merged picture: one row per tick, made of the other tables' rows of the tick; null: nothing has it",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "timeline",
    help: "the merged picture: target, node, power, fabric and GPUs in one row per tick",
    tables: &[&TABLE],
    probe: |_| Support::Works,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |_: &Context<'_>| {
        Ok(Box::new(Timeline {
            read_at: None,
            runs: HashMap::new(),
            earlier: Target::default(),
            rows: TableBuilder::new(&TABLE),
        }))
    },
};

struct Timeline {
    read_at: Option<u64>,
    /// Runs without error of each source up to the tick before.
    runs: HashMap<&'static str, u64>,
    /// What the target did up to the boundaries since the last tick.
    earlier: Target,
    rows: TableBuilder<TickKey, TimelineRow>,
}

impl Timeline {
    /// The sources that have read at this tick without error: where they have no row, nothing happened.
    fn have_read(&mut self, self_metrics: &SelfMetrics) -> Vec<&'static str> {
        let mut have_read = Vec::new();
        for (part, name, account) in self_metrics.iter() {
            let runs = account
                .runs
                .unwrap_or(0)
                .saturating_sub(account.errors.unwrap_or(0));
            if part == Component::Source && self.runs.insert(name, runs) != Some(runs) {
                have_read.push(name);
            }
        }
        have_read
    }
}

impl Source for Timeline {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let have_read = self.have_read(at.self_metrics);
        let tick = Tick {
            batches: out,
            have_read: &have_read,
            tells_files: at.tasks.per_key.file_io.is_some(),
            pss: at.tasks.pss,
        };
        let earlier = self.earlier;
        let target = earlier.and(&tick.target());
        if at.boundary.is_some() {
            self.earlier = target;
            return Ok(());
        }
        self.earlier = Target::default();
        let now = at.tick.monotonic_ns;
        let Some(before) = self.read_at.replace(now) else {
            return Ok(());
        };
        let interval_ns = now - before;
        self.rows.push(
            TickKey {
                ts: at.tick.ts,
                interval_ns,
            },
            tick.row(interval_ns, &target, earlier.cpu_ns.unwrap_or(0)),
        );
        self.rows.finish(out);
        Ok(())
    }
}

macro_rules! target {
    ($($name:ident: $type:ty,)*) => {
        /// What the target did; `None` where nothing tells.
        #[derive(Clone, Copy, Default)]
        struct Target {
            $($name: Option<$type>,)*
        }

        impl Target {
            /// Both together, as far as they are known.
            fn and(&self, later: &Self) -> Self {
                Self {
                    $($name: sum(&[self.$name, later.$name]),)*
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

/// What has been read at one tick.
struct Tick<'a> {
    batches: &'a [Batch],
    have_read: &'a [&'static str],
    /// Whether `file_io` counts files only.
    tells_files: bool,
    pss: Option<u64>,
}

impl Tick<'_> {
    /// What the target did since the reading before.
    fn target(&self) -> Target {
        let usage = |column| self.of_target("usage", column, &[]);
        let file = |column| {
            let of_files = self.tells_files.then_some("file_io");
            of_files.and_then(|table| self.of_target(table, column, &[]))
        };
        let block = |op| self.of_target("block_io", "bytes", &[("op", op)]);
        let net = |column| {
            let of = |protocol| self.of_target("net_io", column, &[("protocol", protocol)]);
            Some(of("tcp")? + of("udp")?)
        };
        let cpu_ns = usage("user_ns").zip(usage("system_ns"));
        let events = Rows::of(self.batches, "perf_event");
        Target {
            cpu_ns: cpu_ns.map(|(user, system)| user + system),
            runqueue_ns: self.of_target("sched", "runqueue_ns", &[]),
            minor_faults: usage("minor_faults"),
            major_faults: usage("major_faults"),
            file_read_bytes: file("read_bytes"),
            file_write_bytes: file("write_bytes"),
            block_read_bytes: block("read"),
            block_write_bytes: block("write"),
            net_tx_bytes: net("tx_bytes"),
            net_rx_bytes: net("rx_bytes"),
            cycles: counted(&events, TARGET_CYCLES),
            instructions: counted(&events, [TARGET_CYCLES[0], "instructions"]),
        }
    }

    /// The row of a tick; `earlier_ns`: the part of the target's CPU time that is not in its rows.
    fn row(&self, interval_ns: u64, target: &Target, earlier_ns: u64) -> TimelineRow {
        let percent = |ns: u64, of: u64| (of != 0).then(|| ns as f64 / of as f64 * 100.0);
        let node = Rows::of(self.batches, "system");
        let node_batches = |column| sum(&node.values::<UInt64Type>(column, &[]));
        let nodes_interval = node_batches("interval_ns");
        let interfaces = Rows::of(self.batches, "netdev");
        let physical =
            |column| whole(&interfaces.values::<UInt64Type>(column, &[("kind", "physical")]));
        let ports = Rows::of(self.batches, "fabric");
        let fabric = |column| whole(&ports.values::<UInt64Type>(column, &[]));
        let [utilization, memory, power] =
            ["utilization", "memory_used", "power_mw"].map(|column| self.gpus(column));
        let watts = |milliwatts: f64| milliwatts / 1000.0;
        TimelineRow {
            target_cpu: target.cpu_ns.and_then(|ns| percent(ns, interval_ns)),
            target_runqueue_ns: target.runqueue_ns,
            target_rss_sum: self.of_target("usage", "rss", &[]),
            target_pss_sum: self.pss,
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
            target_ipc: target
                .cycles
                .zip(target.instructions)
                .filter(|(cycles, _)| *cycles > 0.0)
                .map(|(cycles, instructions)| instructions / cycles),
            target_flops: self.metric("flops"),
            target_dp_flops: self.metric("dp_flops"),
            target_sp_flops: self.metric("sp_flops"),
            target_hp_flops: self.metric("hp_flops"),
            target_l2_bw: self.metric("l2_bw"),
            target_l3_bw: self.metric("l3_bw"),
            node_cpu: busy(&node)
                .zip(nodes_interval)
                .and_then(|(busy, interval)| percent(busy, interval)),
            node_memory: node_batches("memory_used"),
            node_block_read_bytes: node_batches("page_in_bytes"),
            node_block_write_bytes: node_batches("page_out_bytes"),
            node_net_tx_bytes: physical("tx_bytes"),
            node_net_rx_bytes: physical("rx_bytes"),
            node_mem_bw: self.metric("mem_bw"),
            package_power: self.power("package"),
            dram_power: self.power("dram"),
            fabric_tx_bytes: fabric("tx_bytes"),
            fabric_rx_bytes: fabric("rx_bytes"),
            gpu_utilization_sum: whole(&utilization),
            gpu_utilization_max: largest(&utilization),
            gpu_memory_sum: whole(&memory),
            gpu_memory_max: largest(&memory),
            gpu_power_sum: whole(&power).map(watts),
            gpu_power_max: largest(&power).map(watts),
            node_cycles: counted(&Rows::of(self.batches, "perf_event"), NODE_CYCLES),
            target_energy_uj: target
                .cpu_ns
                .zip(Attribution::by_cpu_time(self.batches, earlier_ns))
                .map(|(ns, model)| model.share(ns as f64)),
            target_energy_by_cycles_uj: target
                .cycles
                .zip(Attribution::by_cycles(self.batches))
                .map(|(cycles, model)| model.share(cycles)),
        }
    }

    /// A sum over the target's processes; 0 where the source has no row, because nothing happened.
    fn of_target(&self, table: &str, column: &str, wanted: &[(&str, &str)]) -> Option<u64> {
        let values = Rows::of(self.batches, table).values::<UInt64Type>(column, wanted);
        if values.is_empty() && self.have_read.contains(&table) {
            return Some(0);
        }
        sum(&values)
    }

    /// A rate of the target, of the node where there is none; summed over the kinds of cores.
    fn metric(&self, name: &str) -> Option<f64> {
        let rows = Rows::of(self.batches, "perf_metric");
        ["target", "node"].into_iter().find_map(|scope| {
            let wanted = [("metric", name), ("scope", scope)];
            // The same metric may be in several groups.
            let mut of_kinds: HashMap<Option<&str>, f64> = HashMap::new();
            let kinds = rows.labels("pmu", &wanted);
            for (kind, value) in kinds
                .into_iter()
                .zip(rows.values::<Float64Type>("value", &wanted))
            {
                if let Some(value) = value {
                    of_kinds.entry(kind).or_insert(value);
                }
            }
            (!of_kinds.is_empty()).then(|| of_kinds.values().sum())
        })
    }

    /// A column of all GPUs, without MIG instances, of the last reading that has ended.
    fn gpus(&self, column: &str) -> Vec<Option<f64>> {
        let rows = Rows::of(self.batches, "gpu");
        let times = rows.values::<TimestampNanosecondType>("ts", &[]);
        let last = times.iter().max().copied();
        let values = rows.values::<Float64Type>(column, &[]);
        let parents = rows.labels("parent_uuid", &[]);
        let all = times.into_iter().zip(parents).zip(values);
        all.filter(|((ts, parent), _)| Some(*ts) == last && parent.is_none())
            .map(|(_, value)| value)
            .collect()
    }

    /// Power of a domain over all sockets, W: µJ per µs.
    fn power(&self, domain: &str) -> Option<f64> {
        let rows = Rows::of(self.batches, "energy");
        let wanted = [("domain", domain)];
        let energies = rows.values::<Float64Type>("energy_uj", &wanted);
        let intervals = rows.values::<Float64Type>("interval_ns", &wanted);
        let powers: Vec<_> = energies
            .into_iter()
            .zip(intervals)
            .map(|(energy, interval)| {
                let interval = interval.filter(|interval| *interval > 0.0)?;
                Some(energy? * 1000.0 / interval)
            })
            .collect();
        whole(&powers)
    }
}
