//! Values of the node in one sample: CPUs, memory, network, power and GPUs.

use hashbrown::HashMap;

use super::percent;
use crate::{
    schema::{
        Batch, TickKey,
        read::{Rows, largest, sum_of_all, sum_of_known},
    },
    sources::{
        disk::{self, DiskRow},
        energy::{self, EnergyRow},
        energy_attribution::busy,
        fabric::{self, FabricRow},
        gpu::{self, GpuKey, GpuRow},
        netdev::{self, NetdevRow},
        perf::{self, MetricRow},
        system::{self, SystemRow},
    },
};

/// Values of the tables of the node.
pub(super) struct Node {
    /// CPU time of all processes, percent of one CPU.
    pub(super) cpu: Option<f64>,
    pub(super) memory: Option<u64>,
    pub(super) block_read_bytes: Option<u64>,
    pub(super) block_write_bytes: Option<u64>,
    pub(super) net_tx_bytes: Option<u64>,
    pub(super) net_rx_bytes: Option<u64>,
    pub(super) fabric_tx_bytes: Option<u64>,
    pub(super) fabric_rx_bytes: Option<u64>,
}

impl Node {
    pub(super) fn read(batches: &[Batch]) -> Self {
        let system = Rows::of(batches, &system::TABLE);
        let value = |column| sum_of_known(system.values(column));
        let interval_ns = sum_of_known(system.keys(TickKey::interval_ns));
        let interfaces = Rows::of(batches, &netdev::TABLE).with(NetdevRow::kind, &netdev::EXTERNAL);
        // pgpgin and pgpgout count what a loop device reads and writes twice.
        let disks = Rows::of(batches, &disk::TABLE)
            .with(DiskRow::kind, &[disk::PHYSICAL])
            .without(DiskRow::partition);
        let ports = Rows::of(batches, &fabric::TABLE);
        Self {
            cpu: busy(&system)
                .zip(interval_ns)
                .and_then(|(busy, interval_ns)| percent(busy, interval_ns)),
            memory: value(SystemRow::memory_used),
            block_read_bytes: sum_of_all(disks.values(DiskRow::read_bytes)),
            block_write_bytes: sum_of_all(disks.values(DiskRow::write_bytes)),
            net_tx_bytes: sum_of_all(interfaces.values(NetdevRow::tx_bytes)),
            net_rx_bytes: sum_of_all(interfaces.values(NetdevRow::rx_bytes)),
            fabric_tx_bytes: sum_of_all(ports.values(FabricRow::tx_bytes)),
            fabric_rx_bytes: sum_of_all(ports.values(FabricRow::rx_bytes)),
        }
    }
}

/// A metric of the target or, if there is none, of the node; the sum over the kinds of cores.
pub(super) fn metric(batches: &[Batch], name: &str) -> Option<f64> {
    let metrics = Rows::of(batches, &perf::METRICS).with(MetricRow::metric, &[name]);
    ["target", "node"].into_iter().find_map(|scope| {
        let rows = metrics.with(MetricRow::scope, &[scope]);
        // The same metric may be in several groups.
        let mut by_pmu: HashMap<Option<&str>, f64> = HashMap::new();
        for (pmu, value) in rows
            .labels(MetricRow::pmu)
            .zip(rows.values(MetricRow::value))
        {
            if let Some(value) = value {
                by_pmu.entry(pmu).or_insert(value);
            }
        }
        sum_of_known(by_pmu.into_values().map(Some))
    })
}

/// Power of a domain over all sockets, W.
pub(super) fn power(batches: &[Batch], domain: &str) -> Option<f64> {
    let rows = Rows::of(batches, &energy::TABLE).with(EnergyRow::domain, &[domain]);
    let energies = rows.values(EnergyRow::energy_uj);
    let powers = energies
        .zip(rows.keys(TickKey::interval_ns))
        .map(|(energy_uj, interval_ns)| {
            let interval_ns = interval_ns.filter(|interval_ns| *interval_ns > 0)?;
            Some(energy_uj? as f64 * 1000.0 / interval_ns as f64)
        });
    sum_of_all(powers)
}

/// A value of all GPUs.
pub(super) struct GpuFigures {
    pub(super) sum: Option<f64>,
    pub(super) max: Option<f64>,
}

/// Values of all GPUs, from the last reading that has ended. MIG instances are part of their GPUs.
pub(super) struct Gpus {
    /// Percent.
    pub(super) utilization: GpuFigures,
    /// Bytes.
    pub(super) memory: GpuFigures,
    /// W.
    pub(super) power: GpuFigures,
}

impl Gpus {
    pub(super) fn read(batches: &[Batch]) -> Self {
        let rows = Rows::of(batches, &gpu::GPUS);
        let last = rows.keys(GpuKey::ts).max().flatten();
        let of_all = |values: Vec<Option<f64>>| {
            let times = rows.keys(GpuKey::ts);
            let all = times.zip(rows.key_labels(GpuKey::parent_uuid)).zip(values);
            let of_last = all.filter(|((ts, parent), _)| *ts == last && parent.is_none());
            let values: Vec<Option<f64>> = of_last.map(|(_, value)| value).collect();
            GpuFigures {
                sum: sum_of_all(values.iter().copied()),
                max: largest(values),
            }
        };
        let counts = |column| rows.values(column).map(|value| Some(value? as f64));
        Self {
            utilization: of_all(counts(GpuRow::utilization).collect()),
            memory: of_all(counts(GpuRow::memory_used).collect()),
            power: of_all(rows.values(GpuRow::power_w).collect()),
        }
    }
}
