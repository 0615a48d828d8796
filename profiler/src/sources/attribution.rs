//! Whose energy it was: a model, as no counter knows.
//!
//! `cpu_time_share`: the energy of all packages in an interval, idle power included, is divided among processes like
//! the CPU time that was used in it.

use arrow::datatypes::{Float64Type, UInt64Type};

use super::timeline::reading::{Rows, sum, whole};
use crate::schema::Batch;

/// What is to be divided in one tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// Energy of all packages, µJ.
    package_uj: f64,
    /// CPU time of all processes of the node, ns.
    busy_ns: f64,
}

impl Attribution {
    /// From the batches of a tick, and the CPU time of the target at the boundaries before it, ns; `None` where energy or CPU
    /// time is not known.
    pub fn of(batches: &[Batch], earlier_ns: u64) -> Option<Self> {
        let package = [("domain", "package")];
        let busy = busy(&Rows::of(batches, "system"))?;
        // The node's time comes in steps of 10 ms, the target's to the nanosecond.
        let target = cpu_ns(&Rows::of(batches, "usage")).unwrap_or(0);
        let busy = busy.max(earlier_ns + target);
        Some(Self {
            package_uj: whole(
                &Rows::of(batches, "energy").values::<Float64Type>("energy_uj", &package),
            )?,
            busy_ns: busy as f64,
        })
    }

    /// The share of who used so much CPU time, µJ.
    pub fn share(&self, cpu_ns: u64) -> f64 {
        let cpu_ns = cpu_ns as f64;
        if cpu_ns == 0.0 {
            return 0.0;
        }
        self.package_uj * (cpu_ns / self.busy_ns.max(cpu_ns))
    }
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
            busy_ns: 4e9,
        };
        assert!((model.share(1_000_000_000) - 250.0).abs() < 1e-9);
        // Never more than there is.
        assert!((model.share(5_000_000_000) - 1000.0).abs() < 1e-9);
        let idle = Attribution {
            busy_ns: 0.0,
            ..model
        };
        assert_eq!((idle.share(0), idle.share(1)), (0.0, 1000.0));
        assert_eq!(Attribution::of(&[], 0), None);
    }
}
