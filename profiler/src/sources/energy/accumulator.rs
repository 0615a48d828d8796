//! From readings of a counter to increases between ticks: never guessed, null where a part is unknown.

use anyhow::{Error, Result};

use super::meter::{Counter, Limits, Reading};
use crate::support::clock::monotonic_ns;

/// More than any package uses, W, unless its firmware says otherwise.
const PACKAGE_POWER: f64 = 2000.0;

/// More than any node uses, W.
pub(super) const NODE_POWER: f64 = 1e6;

/// Without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and nothing here is negative"
)]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}

/// A counter with what it has counted since the row before.
pub(super) struct Accumulator {
    counter: Box<dyn Counter>,
    limits: Limits,
    /// The last reading, if it succeeded.
    before: Option<Reading>,
    /// µJ since the row before; `None` when a part of it is unknown.
    sum: Option<u64>,
    begin: Option<Begin>,
    error: Option<Error>,
}

/// When the interval of the next row began.
#[derive(Clone, Copy)]
struct Begin {
    /// By the meter's clock; `None` when it could not be read.
    meter: Option<u64>,
    /// By our own, ns.
    own: u64,
}

/// What is told of one interval.
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
            begin: None,
            error: None,
        }
    }

    /// How often it must be read, at least, so that no wrap is missed, ns.
    pub(super) fn timeout(&self) -> Option<u64> {
        let range = self.limits.range?;
        let seconds = range as f64 / 1e6 / self.limits.power();
        Some(whole(seconds * 1e9 / 2.0))
    }

    /// Reads the counter. Whether a tick does so or somebody in between is the same.
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
            sum.checked_add(increase)
        });
    }

    /// Ends the interval. `None` for the first, and when a meter that goes on by itself has told nothing new.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let own = monotonic_ns();
        let meter = self.before.map(|reading| reading.at);
        let known = self.sum.is_some();
        if known && self.begin.is_some_and(|begin| begin.meter == meter) {
            return None;
        }
        let energy_uj = std::mem::replace(&mut self.sum, meter.map(|_| 0));
        let begin = self.begin.replace(Begin { meter, own })?;
        let by_meter = (begin.meter.zip(meter)).and_then(|(begin, end)| end.checked_sub(begin));
        Some(Taken {
            interval_ns: by_meter
                .filter(|_| known)
                .unwrap_or_else(|| own.saturating_sub(begin.own)),
            energy_uj,
        })
    }

    /// What went wrong since it was asked last.
    pub(super) fn error(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }
}

impl Limits {
    /// More than the domain uses, W.
    fn power(self) -> f64 {
        let usual = if self.range.is_some() {
            PACKAGE_POWER
        } else {
            NODE_POWER
        };
        // Firmware's limit is one of a long average, and often lower than what a short one has.
        self.max_power.map_or(usual, |watts| usual.max(watts * 2.0))
    }

    /// What was added, if the counter cannot have wrapped more than once.
    fn increase(self, before: u64, now: u64, interval_ns: u64) -> Option<u64> {
        let possible = self.power() * (interval_ns as f64 / 1e9) * 1e6;
        let increase = match (now.checked_sub(before), self.range) {
            (_, Some(range)) if possible >= range as f64 => return None,
            (Some(increase), _) => increase,
            (None, Some(range)) => now.checked_add(range)?.checked_sub(before)?,
            (None, None) => return None,
        };
        // Anything else is a counter that began anew for another reason.
        (increase as f64 <= possible.max(1e6)).then_some(increase)
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
        }
    }

    #[test]
    fn counters_wrap_once_and_not_more() {
        let server = limits(262_143_328_850, Some(2000.0));
        let of = |before, now, seconds| server.increase(before, now, seconds * SECOND);
        assert_eq!(of(1_000_000, 66_000_000, 1), Some(65_000_000));
        assert_eq!(
            of(262_143_000_000, 64_671_150, 1),
            Some(65_000_000),
            "wrapped"
        );
        // 4 kW for 66 s are the whole range.
        assert_eq!(of(0, 1_000_000, 65), Some(1_000_000));
        assert_eq!(of(0, 1_000_000, 66), None);
        // A fall that is no wrap: it would have been 262 kJ in a second.
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
    fn counters_without_a_range_only_grow() {
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
    fn readings_in_between_keep_several_wraps_apart() {
        // 2 kW are the range in 100 s.
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
        assert_eq!(of_all.timeout(), Some(50 * SECOND));
        of_all.read();
        assert_eq!(of_all.take(), None);
        for _ in 0..3 {
            of_all.read();
        }
        let taken = of_all.take().expect("a row");
        assert_eq!(taken.energy_uj, Some(300_000_000_000));
        assert_eq!(taken.interval_ns, 180 * SECOND);
        // Without them nobody knows how often it wrapped.
        let mut path: Vec<_> = path();
        path.drain(1..3);
        let mut of_ends = accumulator(small, path);
        of_ends.read();
        of_ends.take();
        of_ends.read();
        assert_eq!(of_ends.take().map(|taken| taken.energy_uj), Some(None));
    }

    #[test]
    fn an_interval_with_a_hole_is_null() {
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
            "said once"
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
        assert_eq!(accumulator.take(), taken(5, 2), "over both ticks");
        for _ in 0..2 {
            accumulator.read();
            assert_eq!(accumulator.take().map(|taken| taken.energy_uj), Some(None));
        }
    }
}
