//! One clock for all sources.
//!
//! Ticks are points on `CLOCK_MONOTONIC`; wall clock times come from one offset taken at the start of the run,
//! so that a step of the system's clock never makes a series jump.

use rustix::time::{ClockId, clock_gettime};

pub use super::timekeeping::Timekeeping;
use crate::schema::Timestamp;

/// ns of `CLOCK_MONOTONIC`, what BPF calls `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    now(ClockId::Monotonic)
}

/// CPU time of the calling thread, ns.
pub fn thread_cpu_ns() -> u64 {
    now(ClockId::ThreadCPUTime)
}

/// A clock of the kernel that cannot be negative.
fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Offsets between the kernel's clocks, taken once per run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    realtime_minus_monotonic: i64,
    realtime_minus_boottime: i64,
}

impl Clock {
    /// Reads the clocks of this moment.
    pub fn new() -> Self {
        Self {
            realtime_minus_monotonic: offset(ClockId::Realtime, ClockId::Monotonic),
            realtime_minus_boottime: offset(ClockId::Realtime, ClockId::Boottime),
        }
    }

    /// Wall clock minus `CLOCK_MONOTONIC` in ns: the one offset that all timestamps have.
    pub fn offset_ns(&self) -> i64 {
        self.realtime_minus_monotonic
    }

    /// Wall clock of a point on `CLOCK_MONOTONIC`.
    pub fn wall(&self, monotonic_ns: u64) -> Timestamp {
        Timestamp(monotonic_ns.cast_signed() + self.realtime_minus_monotonic)
    }

    /// `CLOCK_MONOTONIC` of a point on `CLOCK_BOOTTIME`; they differ by the time spent in suspend.
    pub fn monotonic_of_boottime(&self, boottime_ns: u64) -> u64 {
        boottime_ns
            .saturating_add_signed(self.realtime_minus_boottime - self.realtime_minus_monotonic)
    }

    /// `CLOCK_BOOTTIME` of a point on `CLOCK_MONOTONIC`.
    pub fn boottime(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns
            .saturating_add_signed(self.realtime_minus_monotonic - self.realtime_minus_boottime)
    }

    /// Wall clock of a point on `CLOCK_BOOTTIME` (a process's start time).
    pub fn wall_of_boottime(&self, boottime_ns: u64) -> Timestamp {
        Timestamp(boottime_ns.cast_signed() + self.realtime_minus_boottime)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// `a - b` in ns, read close together: of several readings the one that took least time.
fn offset(a: ClockId, b: ClockId) -> i64 {
    let mut best = (u64::MAX, 0);
    for _ in 0..8 {
        let before = now(b);
        let reading = now(a);
        let after = now(b);
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

/// The moment at which all sources are read.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// 0 for the baseline, then counting up; missed ticks leave gaps.
    pub number: u64,
    /// `CLOCK_MONOTONIC` in ns.
    pub monotonic_ns: u64,
    /// Wall clock of the same moment.
    pub ts: Timestamp,
}
