//! Quality of a node's wall clock, as its kernel knows it.

use serde::{Deserialize, Serialize};

use super::clock::Clock;

/// Offset of the wall clock from the monotonic clock, and its state in the kernel (`adjtimex(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timekeeping {
    /// `CLOCK_REALTIME` − `CLOCK_MONOTONIC` in ns. Both run at the same rate, so it changes only
    /// when the wall clock is set: by the time daemon, by hand, or by a leap second.
    pub offset_ns: i64,
    /// Whether a time daemon keeps the clock synchronized; `None` if unknown.
    pub synchronized: Option<bool>,
    /// Maximum error of the clock in ns, as the time daemon reported it to the kernel; `None` if
    /// the clock is not synchronized.
    pub max_error_ns: Option<u64>,
}

/// Result and output of `adjtimex(2)`.
fn kernel_state() -> (libc::c_int, libc::timex) {
    // SAFETY: `timex` consists of integers, for which zero is valid.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the struct; with `modes` 0 it changes nothing.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    (result, state)
}

impl Timekeeping {
    /// The state now, with the offset of `clock`, which all timestamps of a session have.
    pub fn of(clock: &Clock) -> Self {
        let (result, state) = kernel_state();
        let synchronized = (result >= 0)
            .then_some(result != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0);
        Self {
            offset_ns: clock.offset_ns(),
            synchronized,
            max_error_ns: (synchronized == Some(true))
                // The kernel counts µs.
                .then(|| {
                    u64::try_from(state.maxerror)
                        .unwrap_or(0)
                        .saturating_mul(1000)
                }),
        }
    }

    /// The state and the offset now.
    pub fn now() -> Self {
        Self::of(&Clock::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_matches_the_clocks_and_is_stable() {
        let first = Timekeeping::now();
        let second = Timekeeping::now();
        // No test sets the clock; two readings differ by the duration of a reading.
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
