//! Migrations compared with a known number and the kernel's event.

use e2e::{rows::sum, workload_driver::WorkloadDriver};

use crate::{
    WORKLOAD,
    perf::raw,
    sched::{profile_command, rows_of},
};

/// A pinned process migrates only on request; the kernel's event counts the same.
#[test]
fn cpu_moves_are_migrations() {
    let moves = 31;
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    workload.run("pin");
    let (finished, _) = profile_command(&mut workload, &format!("migrate {moves}"));
    assert_eq!(sum(&rows_of(&finished, &workload), "migrations"), moves);
    assert_eq!(raw(&finished, "process", "cpu-migrations"), moves);
    let (finished, _) = profile_command(&mut workload, "nap 20");
    assert_eq!(sum(&rows_of(&finished, &workload), "migrations"), 0);
    assert_eq!(raw(&finished, "process", "cpu-migrations"), 0);
}
