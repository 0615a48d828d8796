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
    support::clock::Tick,
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
    pub fn by_cpu_time(
        package_uj: Option<f64>,
        batches: &[Batch],
        earlier_ns: u64,
    ) -> Option<Self> {
        let busy = busy(&Rows::of(batches, &system::TABLE))?;
        // The CPU time of the node has steps of 10 ms, that of the target of 1 ns.
        let target = cpu_ns(&Rows::of(batches, &usage::TABLE)).unwrap_or(0);
        let busy = busy.max(earlier_ns + target);
        Some(Self {
            package_uj: package_uj?,
            used: busy as f64,
        })
    }

    /// By cycles; `None` if energy or the cycles of the node are unknown.
    pub fn by_cycles(package_uj: Option<f64>, batches: &[Batch]) -> Option<Self> {
        Some(Self {
            package_uj: package_uj?,
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

/// Energy of all packages in one sample after the other.
#[derive(Debug, Default)]
pub struct Packages {
    /// Whether the previous sample had values of them.
    had_values: bool,
}

impl Packages {
    /// Energy of all packages in a sample, µJ. `None` if that of one is unknown, and after a sample
    /// without a value: a meter can be slower than samples, and its energy is then of a longer time
    /// than the use.
    pub fn energy_uj(&mut self, tick: &Tick, batches: &[Batch]) -> Option<f64> {
        let rows = Rows::of(batches, &TABLE).with(EnergyRow::domain, &[PACKAGE]);
        // There are no rows at the baselines.
        let has_values = tick.number == 0 || !rows.is_empty();
        let is_of_the_sample = std::mem::replace(&mut self.had_values, has_values);
        let energy = sum_of_all(rows.values(EnergyRow::energy_uj));
        energy
            .filter(|_| is_of_the_sample)
            .map(|energy| energy as f64)
    }
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
    use crate::schema::{TableBuilder, Timestamp};

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
        assert_eq!(Attribution::by_cpu_time(Some(1.0), &[], 0), None);
        assert_eq!(Attribution::by_cycles(Some(1.0), &[]), None);
    }

    /// The energy of a slow meter, by samples.
    #[test]
    fn energy_of_several_samples_is_not_divided() {
        let row = |energy_uj| EnergyRow {
            socket: Some(0),
            die: None,
            domain: PACKAGE.into(),
            provider: "powercap".into(),
            energy_uj,
        };
        let mut packages = Packages::default();
        let mut number = 0;
        let mut sample = |energy: Option<Option<u64>>, interval_ns: u64| {
            let mut rows = TableBuilder::new(&TABLE);
            let ts = Timestamp::from_us(0);
            if let Some(energy_uj) = energy {
                rows.push(TickKey { ts, interval_ns }, row(energy_uj));
            }
            let mut batches = Vec::new();
            rows.finish(&mut batches);
            let tick = Tick {
                number,
                monotonic_ns: 0,
                ts,
            };
            number += 1;
            packages.energy_uj(&tick, &batches)
        };
        assert_eq!(sample(None, 0), None, "the baseline");
        assert_eq!(sample(Some(Some(5)), 100), Some(5.0));
        // The profiler had to wait for a CPU: the next interval is shorter by as much.
        assert_eq!(sample(Some(Some(20)), 400), Some(20.0));
        assert_eq!(sample(None, 0), None);
        assert_eq!(sample(Some(Some(10)), 200), None, "of two samples");
        assert_eq!(sample(Some(Some(5)), 100), Some(5.0));
        assert_eq!(sample(Some(None), 100), None);
    }
}
