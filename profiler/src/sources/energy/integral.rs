//! Energy from a gauge of power. A thread reads the gauge several times per interval; the energy is
//! the sum of the trapezoids between readings. It is an estimate, because the power between two
//! readings is unknown.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, anyhow};

use super::{
    accumulator::{NODE_POWER, whole},
    meter::{Counter, Gauge, Reading},
};
use crate::support::{clock::monotonic_ns, worker::PeriodicTask};

/// Readings of a gauge per interval of the run.
const READINGS: u32 = 4;

/// Shortest and longest time between two readings.
const PERIODS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A meter without a new value for this time is out of order, ns.
pub(super) const SILENCE: u64 = 10_000_000_000;

/// A gauge that is read as a counter of energy.
pub(super) struct Integral {
    state: Arc<Mutex<State>>,
    thread: io::Result<PeriodicTask>,
}

struct State {
    energy_uj: f64,
    /// Last power; `None` at the start and after a gap.
    watts: Option<f64>,
    at: u64,
    gap: Option<Gap>,
}

/// A time whose energy is unknown.
struct Gap {
    /// The error, if there was one.
    why: Option<String>,
    is_over: bool,
}

impl Integral {
    /// Starts the thread that reads the gauge.
    pub(super) fn new(mut gauge: Box<dyn Gauge>, interval: Duration) -> Self {
        let state = Arc::new(Mutex::new(State::new(monotonic_ns())));
        let shared = state.clone();
        let period = (interval / READINGS).clamp(PERIODS.0, PERIODS.1);
        let thread = PeriodicTask::every(period, "energy", move || {
            let watts = gauge.watts();
            lock(&shared).add(watts, monotonic_ns());
        });
        Self { state, thread }
    }
}

impl Counter for Integral {
    fn read(&mut self) -> Result<Option<Reading>> {
        if let Err(error) = &self.thread {
            return Err(anyhow!("cannot start a thread: {error}"));
        }
        lock(&self.state).reading(monotonic_ns())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn new(now: u64) -> Self {
        Self {
            energy_uj: 0.0,
            watts: None,
            at: now,
            gap: None,
        }
    }

    fn add(&mut self, watts: Result<Option<f64>>, now: u64) {
        let watts = match watts {
            Ok(Some(watts)) if (0.0..NODE_POWER).contains(&watts) => watts,
            Ok(None) => return self.begin_gap(None),
            Ok(Some(watts)) => {
                return self.begin_gap(Some(format!("implausible power: {watts} W")));
            }
            Err(error) => return self.begin_gap(Some(format!("{error:#}"))),
        };
        let elapsed = now.saturating_sub(self.at);
        if elapsed > SILENCE {
            self.begin_gap(Some("no value for a long time".to_owned()));
        }
        if let Some(gap) = &mut self.gap
            && !std::mem::replace(&mut gap.is_over, true)
        {
            self.watts = None;
        } else {
            let mean = self.watts.map_or(watts, |before| before.midpoint(watts));
            self.energy_uj += mean * 1e6 * (elapsed as f64 / 1e9);
        }
        self.watts = Some(watts);
        self.at = now;
    }

    fn begin_gap(&mut self, why: Option<String>) {
        let is_over = false;
        self.gap = Some(Gap { why, is_over });
    }

    fn reading(&mut self, now: u64) -> Result<Option<Reading>> {
        if let Some(gap) = &self.gap {
            let why = gap.why.clone();
            if gap.is_over {
                self.gap = None;
            }
            return why.map_or(Ok(None), |why| Err(anyhow!(why)));
        }
        let silent = now.saturating_sub(self.at);
        if silent > SILENCE {
            return Err(anyhow!("no answer for {} s", silent / 1_000_000_000));
        }
        Ok(Some(Reading {
            energy_uj: whole(self.energy_uj),
            at: self.at,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn energy(state: &mut State, now: u64) -> Option<u64> {
        let reading = state.reading(now).ok().flatten();
        reading.map(|reading| reading.energy_uj)
    }

    #[test]
    fn trapezoids_add_up() {
        let mut state = State::new(0);
        let mut joules = Vec::new();
        for (second, watts) in [(1, 10.0), (2, 20.0), (4, 20.0), (5, 0.0)] {
            state.add(Ok(Some(watts)), second * SECOND);
            let now = energy(&mut state, second * SECOND);
            joules.push(now.expect("known") / 1_000_000);
        }
        assert_eq!(joules, [10, 25, 65, 75]);
    }

    #[test]
    fn energy_in_a_gap_is_unknown() {
        let mut state = State::new(0);
        state.add(Ok(Some(10.0)), SECOND);
        state.add(Err(anyhow!("gone")), 2 * SECOND);
        assert!(state.reading(2 * SECOND).is_err());
        assert!(state.reading(3 * SECOND).is_err(), "the gap continues");
        state.add(Ok(Some(30.0)), 4 * SECOND);
        assert!(state.reading(4 * SECOND).is_err(), "a part is unknown");
        assert_eq!(energy(&mut state, 4 * SECOND), Some(10_000_000));
        state.add(Ok(Some(30.0)), 5 * SECOND);
        assert_eq!(energy(&mut state, 5 * SECOND), Some(40_000_000));
        state.add(Ok(None), 6 * SECOND);
        assert!(matches!(state.reading(6 * SECOND), Ok(None)), "no error");
    }

    #[test]
    fn implausible_power_is_unknown() {
        for watts in [-1.0, 1e7, f64::NAN, f64::INFINITY] {
            let mut state = State::new(0);
            state.add(Ok(Some(watts)), SECOND);
            assert!(state.reading(SECOND).is_err(), "{watts}");
        }
        let mut state = State::new(0);
        state.add(Ok(Some(10.0)), SECOND);
        assert!(state.reading(SECOND + SILENCE + 1).is_err(), "hung");
        let late = 2 * SECOND + SILENCE;
        state.add(Ok(Some(10.0)), late);
        assert!(state.reading(late).is_err());
        assert_eq!(energy(&mut state, late), Some(10_000_000));
    }
}
