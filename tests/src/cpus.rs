//! The CPUs on which tests and their children run.

use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The CPUs that this thread is allowed to use.
pub fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("our CPUs");
    let cpus = 0..CpuSet::MAX_CPU;
    cpus.filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Moves a thread, or this one, to these CPUs.
pub fn move_to(thread: Option<Pid>, cpus: &[usize]) {
    let mut only = CpuSet::new();
    for cpu in cpus {
        only.set(*cpu);
    }
    sched_setaffinity(thread, &only).expect("CPUs of the affinity mask");
}

/// Runs `body` on these CPUs, on which the children that it starts remain.
pub fn on_cpus<T>(cpus: &[usize], body: impl FnOnce() -> T) -> T {
    let before = self::cpus();
    move_to(None, cpus);
    let result = body();
    move_to(None, &before);
    result
}
