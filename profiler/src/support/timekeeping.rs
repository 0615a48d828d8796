//! How well a node's wall clock is kept, as far as the node itself can know.

use serde::{Deserialize, Serialize};

use super::clock::Clock;

/// Where the wall clock stands against the monotonic one, and what the kernel says of it (`adjtimex(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timekeeping {
    /// `CLOCK_REALTIME` − `CLOCK_MONOTONIC` in ns. Both run at the same rate: it changes only when the wall clock is
    /// set, by a step of the time daemon, by hand or by a leap second.
    pub offset_ns: i64,
    /// Whether a time daemon keeps the clock; `None`: the kernel does not tell.
    pub synchronized: Option<bool>,
    /// What the clock may be wrong by at most, ns, as the time daemon has told the kernel; `None` where none keeps it.
    pub max_error_ns: Option<u64>,
}

/// What `adjtimex(2)` returns and tells.
fn kernel_state() -> (libc::c_int, libc::timex) {
    // SAFETY: all zeros is a valid `timex`: numbers only.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the struct; with `modes` 0 nothing is changed.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    (answer, state)
}

impl Timekeeping {
    /// With `clock`, whose offset all timestamps of a run have.
    pub fn of(clock: &Clock) -> Self {
        let (answer, state) = kernel_state();
        let synchronized = (answer >= 0)
            .then_some(answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0);
        Self {
            offset_ns: clock.offset_ns(),
            synchronized,
            max_error_ns: (synchronized == Some(true))
                // In µs.
                .then(|| {
                    u64::try_from(state.maxerror)
                        .unwrap_or(0)
                        .saturating_mul(1000)
                }),
        }
    }

    /// At this moment.
    pub fn now() -> Self {
        Self::of(&Clock::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_that_of_the_clock_and_stays() {
        let first = Timekeeping::now();
        let second = Timekeeping::now();
        // No test changes the clock; two readings differ by what a reading takes.
        assert!((first.offset_ns - second.offset_ns).abs() < 1_000_000);
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        let monotonic = crate::support::clock::monotonic_ns().cast_signed();
        let wall = i64::try_from(wall.as_nanos()).expect("before 2262");
        assert!((wall - monotonic - first.offset_ns).abs() < 100_000_000);
        assert_eq!(
            first.max_error_ns.is_some(),
            first.synchronized == Some(true)
        );
    }
}
