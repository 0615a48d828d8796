//! What the profiler itself uses: its process with all threads, its helper processes, and the
//! programs that it has run.

use super::{clock::process_cpu_ns, helper_process};

/// CPU time so far, ns. Missing is that of helper processes that have ended without being waited for.
pub fn cpu_ns() -> u64 {
    process_cpu_ns() + helper_process::cpu_ns() + children_cpu_ns()
}

/// CPU time of the children that have been waited for, ns. The command is waited for after the last
/// sample.
fn children_cpu_ns() -> u64 {
    // SAFETY: integers, for which 0 is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return 0;
    }
    let ns = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec).cast_unsigned() * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Resident memory of the process now and at its peak, bytes, without its helper processes.
pub fn resident() -> [Option<u64>; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn time_of_children_and_peak_of_memory_count() {
        let before = cpu_ns();
        let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let status = Command::new("sh").args(["-c", script]).status();
        assert!(status.expect("sh").success());
        assert!(cpu_ns() > before);
        let large = vec![1_u8; 64 << 20];
        let [with, _] = resident();
        drop(std::hint::black_box(large));
        let [_, peak] = resident();
        // The kernel notes the peak without what the CPUs hold back.
        let noted = peak.expect("known") + (16 << 20);
        assert!(
            with >= Some(64 << 20) && Some(noted) > with,
            "{with:?} {peak:?}"
        );
    }
}
