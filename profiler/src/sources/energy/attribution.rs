//! Whose energy it was: models, as no counter knows.
//!
//! The energy of all packages in an interval, idle power included, is divided among processes like something that was
//! used in it: `cpu_time_share` takes CPU time, `cycle_share` clock cycles, of which a slow CPU has fewer.

use arrow::datatypes::{Float64Type, UInt64Type};

use super::PACKAGE;
use crate::{
    perf::NODE_CYCLES,
    schema::{
        Batch,
        read::{Rows, sum, whole},
    },
};

/// What is to be divided in one tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// Energy of all packages, µJ.
    package_uj: f64,
    /// What all processes of the node used.
    used: f64,
}

impl Attribution {
    /// By CPU time in ns, from the batches of a tick and the CPU time of the target at the boundaries before it; `None` where
    /// energy or CPU time is not known.
    pub fn by_cpu_time(batches: &[Batch], earlier_ns: u64) -> Option<Self> {
        let busy = busy(&Rows::of(batches, "system"))?;
        // The node's time comes in steps of 10 ms, the target's to the nanosecond.
        let target = cpu_ns(&Rows::of(batches, "usage")).unwrap_or(0);
        let busy = busy.max(earlier_ns + target);
        Some(Self {
            package_uj: package_uj(batches)?,
            used: busy as f64,
        })
    }

    /// By cycles; `None` where energy or the cycles of the node are not known.
    pub fn by_cycles(batches: &[Batch]) -> Option<Self> {
        Some(Self {
            package_uj: package_uj(batches)?,
            used: counted(&Rows::of(batches, "perf_event"), NODE_CYCLES)?,
        })
    }

    /// The share of who used so much, µJ.
    pub fn share(&self, used: f64) -> f64 {
        if used == 0.0 {
            return 0.0;
        }
        self.package_uj * (used / self.used.max(used))
    }
}

/// Energy of all packages, if that of each is known.
fn package_uj(batches: &[Batch]) -> Option<f64> {
    let package = [("domain", PACKAGE)];
    whole(&Rows::of(batches, "energy").values::<Float64Type>("energy_uj", &package))
}

/// A count of table `perf_event` by group and event, summed over processes, CPUs, sockets and kinds of cores.
pub fn counted(events: &Rows<'_>, [group, event]: [&str; 2]) -> Option<f64> {
    sum(&events.values::<Float64Type>("value", &[("group", group), ("event", event)]))
}

/// Times in which a CPU works for a process, of table `system`.
const BUSY: [&str; 5] = [
    "user_ns",
    "nice_ns",
    "system_ns",
    "guest_ns",
    "guest_nice_ns",
];

/// CPU time of all processes of the node, ns.
pub fn busy(system: &Rows<'_>) -> Option<u64> {
    let times = BUSY.map(|column| sum(&system.values::<UInt64Type>(column, &[])));
    whole(&times)
}

/// CPU time of the target, ns.
pub fn cpu_ns(usage: &Rows<'_>) -> Option<u64> {
    let times = ["user_ns", "system_ns"];
    whole(&times.map(|column| sum(&usage.values::<UInt64Type>(column, &[]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_cpu_time() {
        let model = Attribution {
            package_uj: 1000.0,
            used: 4e9,
        };
        assert!((model.share(1e9) - 250.0).abs() < 1e-9);
        // Never more than there is.
        assert!((model.share(5e9) - 1000.0).abs() < 1e-9);
        let idle = Attribution { used: 0.0, ..model };
        assert_eq!((idle.share(0.0), idle.share(1.0)), (0.0, 1000.0));
        assert_eq!(Attribution::by_cpu_time(&[], 0), None);
        assert_eq!(Attribution::by_cycles(&[]), None);
    }
}
