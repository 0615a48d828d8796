//! Energy between samples, from readings of a counter; null if part of it is unknown.

use anyhow::{Error, Result};

use super::meter::{Counter, Limits, Reading};
use crate::support::{clock::monotonic_ns, delta::Range};

/// Largest plausible power of a package, W, unless the firmware reports a larger one.
const PACKAGE_POWER: f64 = 2000.0;

/// Largest plausible power of a node, W.
pub(super) const NODE_POWER: f64 = 1e6;

/// The number without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and no energy or time is negative"
)]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}

/// A counter, and its increase since the previous row.
pub(super) struct Accumulator {
    counter: Box<dyn Counter>,
    limits: Limits,
    /// Last reading, if it was successful.
    before: Option<Reading>,
    /// Energy since the previous row, µJ; `None` if part of it is unknown.
    sum: Option<u64>,
    /// Whether the counter has risen since the first reading.
    has_risen: bool,
    begin: Option<Begin>,
    error: Option<Error>,
}

/// Start of the interval of the next row.
#[derive(Clone, Copy)]
struct Begin {
    /// By the clock of the meter, ns; `None` if it could not be read.
    meter: Option<u64>,
    /// By the clock of the profiler, ns.
    own: u64,
}

/// Energy of one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) interval_ns: u64,
    pub(super) energy_uj: Option<u64>,
}

impl Accumulator {
    pub(super) fn new(counter: Box<dyn Counter>, limits: Limits) -> Self {
        Self {
            counter,
            limits,
            before: None,
            sum: None,
            has_risen: false,
            begin: None,
            error: None,
        }
    }

    /// Longest time between two readings in which the counter cannot wrap twice, ns.
    pub(super) fn period(&self) -> Option<u64> {
        let range = self.limits.range?;
        let seconds = range as f64 / 1e6 / self.limits.power();
        Some(whole(seconds * 1e9 / 2.0))
    }

    /// Reads the counter, at a sample or between two samples.
    pub(super) fn read(&mut self) {
        let now = match self.counter.read() {
            Ok(now) => now,
            Err(error) => {
                self.error = Some(error);
                None
            }
        };
        let before = std::mem::replace(&mut self.before, now);
        self.sum = (self.sum.zip(before).zip(now)).and_then(|((sum, before), now)| {
            let interval_ns = now.at.checked_sub(before.at)?;
            let increase = self
                .limits
                .increase(before.energy_uj, now.energy_uj, interval_ns)?;
            self.has_risen |= increase > 0;
            sum.checked_add(increase)
        });
    }

    /// Ends the interval. `None` at the first sample, and if a meter that updates on its own
    /// schedule has no new value.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let own = monotonic_ns();
        let meter = self.before.map(|reading| reading.at);
        let known = self.sum.is_some();
        if known && self.begin.is_some_and(|begin| begin.meter == meter) {
            return None;
        }
        let is_connected = self.has_risen || !self.limits.rises;
        let sum = std::mem::replace(&mut self.sum, meter.map(|_| 0));
        let energy_uj = sum.filter(|_| is_connected);
        let begin = self.begin.replace(Begin { meter, own })?;
        let by_meter = (begin.meter.zip(meter)).and_then(|(begin, end)| end.checked_sub(begin));
        Some(Taken {
            interval_ns: by_meter
                .filter(|_| known)
                .unwrap_or_else(|| own.saturating_sub(begin.own)),
            energy_uj,
        })
    }

    /// The last error since the previous call.
    pub(super) fn error(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }
}

impl Limits {
    /// Largest plausible power of the domain, W.
    fn power(self) -> f64 {
        let usual = if self.range.is_some() {
            PACKAGE_POWER
        } else {
            NODE_POWER
        };
        // The limit of the firmware is a long-term average, which is exceeded for short times.
        self.max_power.map_or(usual, |watts| usual.max(watts * 2.0))
    }

    /// Increase between two readings, µJ, if the counter cannot have wrapped more than once.
    fn increase(self, before: u64, now: u64, interval_ns: u64) -> Option<u64> {
        /// Some counters have steps of 1 J.
        const TOLERANCE_UJ: f64 = 1e6;
        let possible = self.power() * (interval_ns as f64 / 1e9) * 1e6;
        let range = self.range.map_or(Range::Unlimited, Range::Wraps);
        range.increase(before, now, whole(possible.max(TOLERANCE_UJ)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use anyhow::anyhow;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limits(range: u64, max_power: Option<f64>) -> Limits {
        Limits {
            range: Some(range),
            max_power,
            rises: false,
        }
    }

    #[test]
    fn an_increase_contains_at_most_one_wrap() {
        let server = limits(262_143_328_850, Some(2000.0));
        let of = |before, now, seconds| server.increase(before, now, seconds * SECOND);
        assert_eq!(of(1_000_000, 66_000_000, 1), Some(65_000_000));
        assert_eq!(
            of(262_143_000_000, 64_671_150, 1),
            Some(65_000_000),
            "wrapped"
        );
        // 4 kW for 66 s use the whole range.
        assert_eq!(of(0, 1_000_000, 65), Some(1_000_000));
        assert_eq!(of(0, 1_000_000, 66), None);
        // A decrease that is no wrap: it would have been 262 kJ in a second.
        assert_eq!(of(200_000_000, 100_000_000, 1), None);
        let laptop = limits(262_143_328_850, Some(15.0));
        assert_eq!(laptop.increase(0, 64_000_000, SECOND), Some(64_000_000));
        let silent = limits(65_532_610_987, None);
        assert_eq!(silent.increase(0, 10, 30 * SECOND), Some(10));
        assert_eq!(silent.increase(0, 10, 33 * SECOND), None, "2 kW for 33 s");
        assert_eq!(silent.increase(1, u64::MAX, SECOND), None);
        assert_eq!(limits(10, None).increase(u64::MAX, 9, 1), None);
    }

    #[test]
    fn counters_without_a_range_never_wrap() {
        let endless = Limits::default();
        assert_eq!(endless.increase(5, 3, SECOND), None);
        assert_eq!(endless.increase(3, 5, SECOND), Some(2));
        assert_eq!(endless.increase(0, u64::MAX, SECOND), None, "2^64 µJ");
    }

    struct Script(VecDeque<Result<Option<Reading>>>);

    impl Counter for Script {
        fn read(&mut self) -> Result<Option<Reading>> {
            self.0.pop_front().unwrap_or(Ok(None))
        }
    }

    fn accumulator(limits: Limits, readings: Vec<Result<Option<Reading>>>) -> Accumulator {
        Accumulator::new(Box::new(Script(readings.into())), limits)
    }

    fn reading(energy_uj: u64, seconds: u64) -> Reading {
        let at = seconds * SECOND;
        Reading { energy_uj, at }
    }

    #[test]
    fn readings_between_samples_find_every_wrap() {
        // 2 kW use the range in 100 s.
        let small = limits(200_000_000_000, None);
        let path = || {
            let readings = [
                reading(150_000_000_000, 0),
                reading(50_000_000_000, 60),
                reading(150_000_000_000, 120),
                reading(50_000_000_000, 180),
            ];
            readings.map(|reading| Ok(Some(reading))).into()
        };
        let mut of_all = accumulator(small, path());
        assert_eq!(of_all.period(), Some(50 * SECOND));
        of_all.read();
        assert_eq!(of_all.take(), None);
        for _ in 0..3 {
            of_all.read();
        }
        let taken = of_all.take().expect("a row");
        assert_eq!(taken.energy_uj, Some(300_000_000_000));
        assert_eq!(taken.interval_ns, 180 * SECOND);
        // Without them, the number of wraps is unknown.
        let mut path: Vec<_> = path();
        path.drain(1..3);
        let mut of_ends = accumulator(small, path);
        of_ends.read();
        of_ends.take();
        of_ends.read();
        assert_eq!(of_ends.take().map(|taken| taken.energy_uj), Some(None));
    }

    #[test]
    fn a_counter_that_has_never_risen_is_null() {
        let of = |rises: bool| {
            let limits = Limits {
                rises,
                ..Limits::default()
            };
            let readings = [5, 5, 5, 9, 9].iter().zip(1..);
            let readings = readings.map(|(&energy, seconds)| Ok(Some(reading(energy, seconds))));
            let mut accumulator = accumulator(limits, readings.collect());
            accumulator.read();
            accumulator.take();
            let energy = || {
                accumulator.read();
                accumulator.take().and_then(|taken| taken.energy_uj)
            };
            std::iter::repeat_with(energy).take(4).collect::<Vec<_>>()
        };
        assert_eq!(of(false), [Some(0), Some(0), Some(4), Some(0)]);
        assert_eq!(of(true), [None, None, Some(4), Some(0)], "not connected");
    }

    #[test]
    fn an_interval_with_a_failed_reading_is_null() {
        let readings = vec![
            Ok(Some(reading(10, 1))),
            Err(anyhow!("gone")),
            Ok(Some(reading(30, 3))),
            Ok(Some(reading(40, 4))),
            Ok(Some(reading(45, 5))),
            Ok(Some(reading(45, 5))),
            Ok(Some(reading(50, 7))),
        ];
        let mut accumulator = accumulator(Limits::default(), readings);
        accumulator.read();
        assert_eq!(accumulator.take(), None, "a baseline");
        accumulator.read();
        accumulator.read();
        assert_eq!(accumulator.take().map(|taken| taken.energy_uj), Some(None));
        assert!(
            accumulator.error().is_err() && accumulator.error().is_ok(),
            "reported once"
        );
        accumulator.read();
        let taken = |energy, seconds| {
            Some(Taken {
                interval_ns: seconds * SECOND,
                energy_uj: Some(energy),
            })
        };
        assert_eq!(accumulator.take(), taken(10, 1));
        accumulator.read();
        assert_eq!(accumulator.take(), taken(5, 1));
        accumulator.read();
        assert_eq!(accumulator.take(), None, "nothing new");
        accumulator.read();
        assert_eq!(accumulator.take(), taken(5, 2), "over both samples");
        for _ in 0..2 {
            accumulator.read();
            assert_eq!(accumulator.take().map(|taken| taken.energy_uj), Some(None));
        }
    }
}
