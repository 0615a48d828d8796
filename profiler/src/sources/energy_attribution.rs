//! Models that divide the energy of the packages among processes, which no counter measures.
//!
//! The energy of all packages in an interval, including idle power, is divided in proportion to the
//! use of a resource: CPU time (`cpu_time_share`), or clock cycles (`cycle_share`), of which a CPU
//! at a low frequency has fewer.

use super::{
    energy::{EnergyRow, PACKAGE, TABLE},
    perf,
    system::{self, SystemRow},
    usage::{self, UsageRow},
};
use crate::{
    perf::NODE_CYCLES,
    schema::{
        Batch, TickKey,
        read::{Rows, sum_of_all, sum_of_known},
    },
};

/// Energy and use of the node in one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// Energy of all packages, µJ.
    package_uj: f64,
    /// Use of the resource by all processes of the node.
    used: f64,
}

impl Attribution {
    /// By CPU time in ns, from the batches of a sample. `earlier_ns` is the CPU time of the target
    /// at the boundaries before it. `None` if energy or CPU time is unknown.
    pub fn by_cpu_time(batches: &[Batch], earlier_ns: u64) -> Option<Self> {
        let busy = busy(&Rows::of(batches, &system::TABLE))?;
        // The CPU time of the node has steps of 10 ms, that of the target of 1 ns.
        let target = cpu_ns(&Rows::of(batches, &usage::TABLE)).unwrap_or(0);
        let busy = busy.max(earlier_ns + target);
        Some(Self {
            package_uj: package_uj(batches)?,
            used: busy as f64,
        })
    }

    /// By cycles; `None` if energy or the cycles of the node are unknown.
    pub fn by_cycles(batches: &[Batch]) -> Option<Self> {
        Some(Self {
            package_uj: package_uj(batches)?,
            used: perf::count(batches, NODE_CYCLES)?,
        })
    }

    /// Energy of a process that used this much, µJ.
    pub fn share(&self, used: f64) -> f64 {
        if used == 0.0 {
            return 0.0;
        }
        self.package_uj * (used / self.used.max(used))
    }
}

/// Energy of all packages, if that of each is known and not of a much longer time than the use. Meters
/// can be slower than samples.
fn package_uj(batches: &[Batch]) -> Option<f64> {
    let longest = |times: &mut dyn Iterator<Item = Option<u64>>| times.max().flatten();
    let sample_ns = longest(&mut Rows::of(batches, &system::TABLE).keys(TickKey::interval_ns));
    let energy_ns = longest(&mut Rows::of(batches, &TABLE).keys(TickKey::interval_ns));
    if energy_ns
        .zip(sample_ns)
        .is_some_and(|(energy, sample)| energy > 2 * sample)
    {
        return None;
    }
    let packages = Rows::of(batches, &TABLE).with(EnergyRow::domain, &[PACKAGE]);
    sum_of_all(packages.values(EnergyRow::energy_uj)).map(|energy| energy as f64)
}

/// CPU time of all processes of the node, ns: without interrupts.
pub fn busy(system: &Rows<'_, TickKey, SystemRow>) -> Option<u64> {
    let times = [
        SystemRow::user_ns,
        SystemRow::nice_ns,
        SystemRow::system_ns,
        SystemRow::guest_ns,
        SystemRow::guest_nice_ns,
    ];
    sum_of_all(times.map(|time| sum_of_known(system.values(time))))
}

/// CPU time of the target, ns.
fn cpu_ns(usage: &Rows<'_, crate::schema::ProcessKey, UsageRow>) -> Option<u64> {
    let times = [UsageRow::user_ns, UsageRow::system_ns];
    sum_of_all(times.map(|time| sum_of_known(usage.values(time))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_divided_in_proportion_to_use() {
        let model = Attribution {
            package_uj: 1000.0,
            used: 4e9,
        };
        assert!((model.share(1e9) - 250.0).abs() < 1e-9);
        assert!(
            (model.share(5e9) - 1000.0).abs() < 1e-9,
            "never more than all"
        );
        let idle = Attribution { used: 0.0, ..model };
        assert_eq!((idle.share(0.0), idle.share(1.0)), (0.0, 1000.0));
        assert_eq!(Attribution::by_cpu_time(&[], 0), None);
        assert_eq!(Attribution::by_cycles(&[]), None);
    }
}
