//! Increases of counters: the difference of two readings, corrected for wraps and resets.
//!
//! An increase is null at the first reading, after a failed reading, after a reset, and when the
//! counter may have wrapped more than once. A reading that follows a failed one sets a new
//! baseline, because its increase would cover two intervals.

/// Largest plausible increase of a 64-bit counter in one interval. A larger one is a misread value.
const PLAUSIBLE: u64 = (1 << 48) - 1;

/// Number of values of a 32-bit counter.
const VALUES_32: u64 = 1 << 32;

/// Values that a counter can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Range {
    /// 64 bits, which never wrap in practice: a decrease is a reset.
    #[default]
    Unlimited,
    /// This many values, after which the counter continues from 0.
    Wraps(u64),
    /// Not a counter: a value that has no increase.
    Gauge,
}

impl Range {
    /// A counter of 32 bits.
    pub(crate) const BITS_32: Self = Self::Wraps(VALUES_32);

    /// Increase between two readings, if it cannot be larger than `at_most`; `None` if it is
    /// larger, or if the counter may have wrapped more than once.
    pub(crate) fn increase(self, before: u64, now: u64, at_most: u64) -> Option<u64> {
        let increase = match self {
            Self::Gauge => return None,
            Self::Unlimited => now.checked_sub(before)?,
            Self::Wraps(values) if at_most >= values => return None,
            Self::Wraps(_) if now >= before => now - before,
            Self::Wraps(values) => now.checked_add(values)?.checked_sub(before)?,
        };
        (increase <= at_most).then_some(increase)
    }
}

/// Comparison of a reading with the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The counter has increased by this much.
    By(u64),
    /// The counter has started again from 0.
    Reset,
    /// The increase is unknown for another reason.
    Unknown,
}

impl Change {
    /// The increase, if it is known.
    pub(crate) fn increase(self) -> Option<u64> {
        match self {
            Self::By(increase) => Some(increase),
            Self::Reset | Self::Unknown => None,
        }
    }
}

/// A counter with its last reading.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    range: Range,
    last: Option<u64>,
}

impl Counter {
    /// A counter that was not read yet.
    pub(crate) const fn new(range: Range) -> Self {
        Self { range, last: None }
    }

    /// Takes a reading and compares it with the one before; `None` is a failed reading.
    pub(crate) fn change(&mut self, now: Option<u64>) -> Change {
        let last = std::mem::replace(&mut self.last, now);
        let (Some(last), Some(now)) = (last, now) else {
            return Change::Unknown;
        };
        let at_most = match self.range {
            Range::Unlimited if now < last => return Change::Reset,
            Range::Unlimited | Range::Gauge => PLAUSIBLE,
            // A decrease by less than half of the range is a reset, not a wrap.
            Range::Wraps(values) => values / 2 - 1,
        };
        let increase = self.range.increase(last, now, at_most);
        increase.map_or(Change::Unknown, Change::By)
    }

    /// Takes a reading; the increase since the one before.
    pub(crate) fn increase(&mut self, now: Option<u64>) -> Option<u64> {
        self.change(now).increase()
    }
}

/// A sum of 32-bit counters, one per CPU: it decreases by 2^32 when one of them wraps.
#[derive(Clone, Debug, Default)]
pub(crate) struct SumOf32Bit {
    last: Option<u64>,
}

impl SumOf32Bit {
    /// Takes a reading; the increase since the one before.
    pub(crate) fn increase(&mut self, now: Option<u64>) -> Option<u64> {
        /// Counters that increase alike (timer interrupts) wrap on several CPUs in one interval.
        const MAX_WRAPS: u64 = 16;
        let last = std::mem::replace(&mut self.last, now)?;
        let now = now?;
        let increase = if now >= last {
            now - last
        } else {
            let wraps = (last - now).div_ceil(VALUES_32);
            let increase = wraps.checked_mul(VALUES_32)? - (last - now);
            // After a reset, the remainder is large or the decrease spans many wraps.
            (wraps <= MAX_WRAPS && increase < VALUES_32 / 2).then_some(increase)?
        };
        (increase <= PLAUSIBLE).then_some(increase)
    }
}

/// A time that the kernel estimates and may correct downwards by a little: `idle`, `iowait`, and
/// the difference of two times.
///
/// Time that was taken back is not counted again when the value rises.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimate {
    highest: Option<u64>,
}

impl Estimate {
    /// Takes a reading; the increase over the highest reading so far, which is at most `at_most`. A
    /// decrease by up to `tolerance`, or by less than half, is a correction (0). A larger one is a
    /// reset (null).
    pub(crate) fn increase(
        &mut self,
        now: Option<u64>,
        at_most: u64,
        tolerance: u64,
    ) -> Option<u64> {
        let highest = std::mem::replace(&mut self.highest, now)?;
        let now = now?;
        if let Some(increase) = now.checked_sub(highest) {
            return (increase <= at_most).then_some(increase);
        }
        if highest - now <= tolerance.max(highest / 2) {
            self.highest = Some(highest);
            return Some(0);
        }
        None
    }
}

/// Time between readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    began: Option<u64>,
}

impl Interval {
    /// Ends the interval at this time in ns and begins the next one; the length of the interval
    /// that ended, or `None` at the first reading.
    pub(crate) fn end(&mut self, now: u64) -> Option<u64> {
        let began = self.began.replace(now)?;
        Some(now.saturating_sub(began))
    }

    /// Makes the next reading the first one, because this one failed.
    pub(crate) fn restart(&mut self) {
        self.began = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decrease_of_a_wide_counter_is_a_reset() {
        let mut counter = Counter::default();
        let readings = [
            (Some(5), Change::Unknown),
            (Some(9), Change::By(4)),
            (Some(9), Change::By(0)),
            (Some(2), Change::Reset),
            (Some(3), Change::By(1)),
            (None, Change::Unknown),
            (Some(8), Change::Unknown),
            (Some(9), Change::By(1)),
            (Some(u64::MAX), Change::Unknown),
            (Some(0), Change::Reset),
        ];
        for (now, change) in readings {
            assert_eq!(counter.change(now), change, "{now:?}");
        }
    }

    #[test]
    fn a_decrease_of_a_narrow_counter_is_a_wrap() {
        let mut counter = Counter::new(Range::BITS_32);
        let readings = [
            (Some(5), None),
            (Some(u64::from(u32::MAX)), None),
            (Some(9), Some(10)),
            (Some(8), None),
            (Some(8), Some(0)),
        ];
        for (now, increase) in readings {
            assert_eq!(counter.increase(now), increase, "{now:?}");
        }
    }

    #[test]
    fn an_increase_that_may_contain_two_wraps_is_unknown() {
        let range = Range::Wraps(100);
        assert_eq!(range.increase(90, 10, 99), Some(20));
        assert_eq!(range.increase(90, 10, 100), None);
        assert_eq!(range.increase(90, 10, 19), None, "more than possible");
        assert_eq!(range.increase(10, 90, 99), Some(80));
        assert_eq!(range.increase(u64::MAX, 9, 99), None);
        assert_eq!(Range::Unlimited.increase(5, 3, u64::MAX), None);
        assert_eq!(Range::Unlimited.increase(3, 5, 1), None);
    }

    #[test]
    fn a_wrap_on_one_cpu_is_no_reset_of_the_sum() {
        let mut sum = SumOf32Bit::default();
        let wrap = 1 << 32;
        let readings = [
            (Some(3 * wrap + 100), None),
            // One CPU wrapped, and the sum increased by 50.
            (Some(2 * wrap + 150), Some(50)),
            (Some(2 * wrap + 151), Some(1)),
            // Two CPUs wrapped.
            (Some(160), Some(9)),
            // A reset.
            (Some(10), None),
            (Some(11), Some(1)),
            (Some(u64::MAX), None),
            (Some(5), None),
            (None, None),
            (Some(5), None),
        ];
        for (now, increase) in readings {
            assert_eq!(sum.increase(now), increase, "{now:?}");
        }
    }

    #[test]
    fn time_that_was_taken_back_is_counted_once() {
        let mut estimate = Estimate::default();
        let readings = [
            (Some(1000), None),
            (Some(1100), Some(100)),
            (Some(1040), Some(0)),
            (Some(1090), Some(0)),
            (Some(1130), Some(30)),
            // The CPU went offline and came back: idle began at 0.
            (Some(3), None),
            (Some(13), Some(10)),
            // Small values decrease by more than half without a reset.
            (Some(4), Some(0)),
            (Some(14), Some(1)),
            (Some(u64::MAX), None),
            (Some(20), None),
            (Some(21), Some(1)),
            (None, None),
            (Some(22), None),
        ];
        for (now, increase) in readings {
            assert_eq!(estimate.increase(now, 500, 10), increase, "{now:?}");
        }
    }

    #[test]
    fn intervals_begin_with_the_first_reading() {
        let mut interval = Interval::default();
        assert_eq!(interval.end(10), None);
        assert_eq!(interval.end(25), Some(15));
        interval.restart();
        assert_eq!(interval.end(30), None);
    }
}
