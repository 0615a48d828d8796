//! From readings that grow to increases over the interval: never negative, never huge, null when unknown.
//!
//! After a reading that failed the next one is a baseline again: its increase would cover two intervals.

/// No counter grows by more than this in an interval; what seems to has been reset or misread.
const IMPLAUSIBLE: u64 = 1 << 48;

/// A counter that only grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter {
    last: Option<u64>,
}

impl Counter {
    /// Increase since the previous reading; null at a baseline and after a reset.
    pub(crate) fn increase(&mut self, now: Option<u64>) -> Option<u64> {
        let last = std::mem::replace(&mut self.last, now)?;
        let increase = now?.checked_sub(last)?;
        (increase < IMPLAUSIBLE).then_some(increase)
    }
}

/// A sum of 32-bit counters, one per CPU: it falls by 2^32 whenever one of them wraps.
#[derive(Clone, Debug, Default)]
pub(crate) struct SumOf32Bit {
    last: Option<u64>,
}

impl SumOf32Bit {
    /// Increase since the previous reading; null at a baseline and after a reset.
    pub(crate) fn increase(&mut self, now: Option<u64>) -> Option<u64> {
        const WRAP: u64 = 1 << 32;
        /// Counters that grow alike (timer interrupts) wrap on several CPUs within one interval.
        const WRAPS: u64 = 16;
        let last = std::mem::replace(&mut self.last, now)?;
        let now = now?;
        let increase = if now >= last {
            now - last
        } else {
            let wraps = (last - now).div_ceil(WRAP);
            let increase = wraps.checked_mul(WRAP)? - (last - now);
            // A reset shows as a large remainder, or as a fall over many wraps.
            (wraps <= WRAPS && increase < WRAP / 2).then_some(increase)?
        };
        (increase < IMPLAUSIBLE).then_some(increase)
    }
}

/// A time that the kernel estimates and may take back a little: `idle`, `iowait`, and a difference of two times.
///
/// What was taken back is not counted a second time when it grows again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    highest: Option<u64>,
}

impl Level {
    /// Increase over the highest reading so far; `at_most` is what an interval can hold. A fall by up to
    /// `tolerated`, or by less than half, is an estimate taken back (0); any other is a reset (null).
    pub(crate) fn increase(
        &mut self,
        now: Option<u64>,
        at_most: u64,
        tolerated: u64,
    ) -> Option<u64> {
        let highest = std::mem::replace(&mut self.highest, now)?;
        let now = now?;
        if let Some(increase) = now.checked_sub(highest) {
            return (increase <= at_most).then_some(increase);
        }
        if highest - now <= tolerated.max(highest / 2) {
            self.highest = Some(highest);
            return Some(0);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_resets_to_null() {
        let mut counter = Counter::default();
        let readings = [
            (Some(5), None),
            (Some(9), Some(4)),
            (Some(9), Some(0)),
            (Some(2), None),
            (Some(3), Some(1)),
            (None, None),
            (Some(8), None),
            (Some(9), Some(1)),
            (Some(u64::MAX), None),
            (Some(0), None),
        ];
        for (now, increase) in readings {
            assert_eq!(counter.increase(now), increase, "{now:?}");
        }
    }

    #[test]
    fn a_wrapped_cpu_is_not_a_reset() {
        let mut sum = SumOf32Bit::default();
        let wrap = 1 << 32;
        let readings = [
            (Some(3 * wrap + 100), None),
            // One CPU wrapped, the sum grew by 50.
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
    fn an_estimate_taken_back_counts_once() {
        let mut level = Level::default();
        let readings = [
            (Some(1000), None),
            (Some(1100), Some(100)),
            (Some(1040), Some(0)),
            (Some(1090), Some(0)),
            (Some(1130), Some(30)),
            // The CPU went and came back: idle began at 0.
            (Some(3), None),
            (Some(13), Some(10)),
            // Small levels fall by more than half without a reset.
            (Some(4), Some(0)),
            (Some(14), Some(1)),
            (Some(u64::MAX), None),
            (Some(20), None),
            (Some(21), Some(1)),
            (None, None),
            (Some(22), None),
        ];
        for (now, increase) in readings {
            assert_eq!(level.increase(now, 500, 10), increase, "{now:?}");
        }
    }
}
