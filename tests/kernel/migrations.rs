//! Moves between CPUs against a known number and the kernel's own event. They need a second CPU.

use e2e::{puppet::Puppet, rows::sum};

use crate::{
    WORKLOAD,
    perf::raw,
    sched::{rows_of, told},
};

/// A process that may run on one CPU only moves when it is told to, and the kernel's own event counts the same.
#[test]
fn cpu_moves_are_migrations() {
    let moves = 31;
    let mut puppet = Puppet::new(WORKLOAD, 0);
    puppet.tell("pin");
    let (finished, _) = told(&mut puppet, &format!("migrate {moves}"));
    assert_eq!(sum(&rows_of(&finished, &puppet), "migrations"), moves);
    assert_eq!(raw(&finished, "process", "cpu-migrations"), moves);
    let (finished, _) = told(&mut puppet, "nap 20");
    assert_eq!(sum(&rows_of(&finished, &puppet), "migrations"), 0);
    assert_eq!(raw(&finished, "process", "cpu-migrations"), 0);
}
