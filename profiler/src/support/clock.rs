//! Clocks of the kernel, and the offsets between them.
//!
//! Samples are taken at points on `CLOCK_MONOTONIC`. Wall-clock times are computed from one offset
//! that is read at the start of the run, so a step of the system clock does not make a series jump.

use rustix::time::{ClockId, clock_gettime};

use super::time_namespace::Offsets;
use crate::schema::Timestamp;

/// `CLOCK_MONOTONIC` of the initial time namespace in ns, the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    now(ClockId::Monotonic).saturating_add_signed(-Offsets::current().monotonic)
}

/// `CLOCK_BOOTTIME` of the initial time namespace in ns, the clock of the start times of processes.
fn boottime_ns() -> u64 {
    now(ClockId::Boottime).saturating_add_signed(-Offsets::current().boottime)
}

/// The time for a timer of this process: `CLOCK_MONOTONIC` of its time namespace, ns.
pub fn timer_ns(monotonic_ns: u64) -> u64 {
    monotonic_ns.saturating_add_signed(Offsets::current().monotonic)
}

/// `CLOCK_BOOTTIME` of the initial time namespace of a time in `/proc`, which is that of the reader's, ns.
pub fn boottime_of_procfs(ns: u64) -> u64 {
    ns.saturating_add_signed(-Offsets::current().boottime)
}

/// CPU time of the calling thread, ns.
pub fn thread_cpu_ns() -> u64 {
    now(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process, ns.
pub fn process_cpu_ns() -> u64 {
    now(ClockId::ProcessCPUTime)
}

/// Exact CPU time of a process with all its threads, also ended ones, ns
/// (`clock_getcpuclockid(3)`). `None` if it has ended.
pub fn cpu_ns_of(pid: u32) -> Option<u64> {
    const CPUCLOCK_SCHED: i32 = 2;
    let clock = !pid.cast_signed() << 3 | CPUCLOCK_SCHED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// Reads a clock that is never negative, ns.
fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Shortest suspend, ns.
const SUSPEND_MIN: i64 = 1_000_000;

/// Offsets between the kernel's clocks, taken once per run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    realtime_minus_monotonic: i64,
    boottime_minus_monotonic: i64,
}

impl Clock {
    /// Reads the clocks now.
    pub fn new() -> Self {
        let suspended = minus_monotonic(boottime_ns);
        Self {
            realtime_minus_monotonic: minus_monotonic(|| now(ClockId::Realtime)),
            // Before the first suspend the clocks are the same, and the difference is an error.
            boottime_minus_monotonic: if suspended < SUSPEND_MIN {
                0
            } else {
                suspended
            },
        }
    }

    /// Wall clock minus `CLOCK_MONOTONIC` in ns: the offset in all timestamps of the session.
    pub fn offset_ns(&self) -> i64 {
        self.realtime_minus_monotonic
    }

    /// Wall clock of a point on `CLOCK_MONOTONIC`, ns since 1970-01-01 UTC.
    pub fn wall_ns(&self, monotonic_ns: u64) -> i64 {
        monotonic_ns.cast_signed() + self.realtime_minus_monotonic
    }

    /// Wall clock of a point on `CLOCK_MONOTONIC`.
    pub fn wall(&self, monotonic_ns: u64) -> Timestamp {
        Timestamp::from_ns(self.wall_ns(monotonic_ns))
    }

    /// `CLOCK_MONOTONIC` of a point on `CLOCK_BOOTTIME`; they differ by the time spent in suspend.
    pub fn monotonic_of_boottime(&self, boottime_ns: u64) -> u64 {
        boottime_ns.saturating_add_signed(-self.boottime_minus_monotonic)
    }

    /// `CLOCK_BOOTTIME` of a point on `CLOCK_MONOTONIC`.
    pub fn boottime(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add_signed(self.boottime_minus_monotonic)
    }

    /// Wall clock of a point on `CLOCK_BOOTTIME`, such as the start of a process.
    pub fn wall_of_boottime(&self, boottime_ns: u64) -> Timestamp {
        let monotonic_ns = boottime_ns.cast_signed() - self.boottime_minus_monotonic;
        Timestamp::from_ns(monotonic_ns + self.realtime_minus_monotonic)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// A clock minus [`monotonic_ns`], ns. Of several readings the fastest one counts: the clocks are read
/// one after the other.
fn minus_monotonic(clock: impl Fn() -> u64) -> i64 {
    let mut best = (u64::MAX, 0);
    for _ in 0..8 {
        let before = monotonic_ns();
        let reading = clock();
        let after = monotonic_ns();
        let width = after - before;
        if width < best.0 {
            best = (
                width,
                reading.cast_signed() - (before + width / 2).cast_signed(),
            );
        }
    }
    best.1
}

/// The time of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// 0 for the baseline, then increasing; missed ticks leave gaps.
    pub number: u64,
    /// `CLOCK_MONOTONIC` in ns.
    pub monotonic_ns: u64,
    /// Wall clock at the same time.
    pub ts: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_is_between_the_monotonic_times_around_it() {
        let clock = Clock::new();
        let suspended = clock.boottime_minus_monotonic;
        assert!(suspended == 0 || suspended >= SUSPEND_MIN, "{suspended} ns");
        // After a suspend, the difference is only known to the time of reading the clocks.
        let error = if suspended == 0 { 0 } else { 1000 };
        for _ in 0..1000 {
            let before = monotonic_ns();
            let boottime = boottime_ns();
            let after = monotonic_ns();
            let converted = clock.monotonic_of_boottime(boottime);
            let range = before.saturating_sub(error)..=after + error;
            assert!(
                range.contains(&converted),
                "{converted} is not in {range:?}"
            );
            assert_eq!(clock.boottime(converted), boottime);
        }
    }
}
