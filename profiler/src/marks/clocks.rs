//! The monotonic clock of the tables and the wall clock, with which the kernel timestamps datagrams.

use rustix::time::{ClockId, clock_gettime};

use crate::support::clock::monotonic_ns;

/// Both clocks at the same time, ns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub monotonic: u64,
    pub realtime: i64,
}

impl Now {
    /// Reads the clocks up to five times and takes the shortest reading.
    pub fn read() -> Self {
        let reading = || {
            let before = monotonic_ns();
            let time = clock_gettime(ClockId::Realtime);
            let width = monotonic_ns() - before;
            let now = Self {
                monotonic: before + width / 2,
                realtime: time.tv_sec * 1_000_000_000 + time.tv_nsec,
            };
            (width, now)
        };
        let mut best = reading();
        for _ in 0..4 {
            if best.0 < 1000 {
                break;
            }
            let next = reading();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Converts the wall clock timestamp of a datagram.
    pub fn monotonic_of(&self, sent: i64) -> u64 {
        let ago = self.realtime.saturating_sub(sent);
        self.monotonic.saturating_add_signed(-ago)
    }
}
