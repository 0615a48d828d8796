//! Checks that every tick has rows or was counted as missed.

use serde::Serialize;

use crate::output::dataset::manifest::{Manifest, State};

/// The ticks of one session of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ticks {
    /// Ticks with rows.
    pub found: u64,
    /// Ticks that the profiler counted as missed.
    pub missed: u64,
    /// Ticks that are neither; `None` if unknown.
    pub missing: Option<u64>,
    /// Longest time between two ticks, ns.
    pub longest_ns: Option<u64>,
    /// Start of this time, ns since 1970.
    pub longest_since: Option<i64>,
}

impl Ticks {
    /// The ticks of a session with rows at `times` (rising, ns) and `missed` ticks. `each` is
    /// whether a table has rows at every tick.
    pub fn of(session: &Manifest, times: &[i64], missed: u64, each: bool) -> Self {
        let found = times.len() as u64;
        let longest = times
            .windows(2)
            .map(|pair| (pair[1].abs_diff(pair[0]), pair[0]))
            .max_by_key(|(length, _)| *length);
        let ended = matches!(session.state, State::Complete | State::Incomplete);
        let missing = match session.samples {
            // Counted by the profiler.
            Some(written) if ended => Some(written.saturating_sub(found)),
            _ if each => {
                due(session, times).map(|due| due.saturating_sub(found.saturating_add(missed)))
            }
            _ => None,
        };
        Self {
            found,
            missed,
            missing,
            longest_ns: longest.map(|(length, _)| length),
            longest_since: longest.map(|(_, since)| since),
        }
    }

    /// Both sessions together.
    #[must_use]
    pub fn and(self, next: Self) -> Self {
        let longer = if next.longest_ns > self.longest_ns {
            next
        } else {
            self
        };
        Self {
            found: self.found.saturating_add(next.found),
            missed: self.missed.saturating_add(next.missed),
            missing: match (self.missing, next.missing) {
                (Some(some), Some(more)) => Some(some.saturating_add(more)),
                (one, other) => one.or(other),
            },
            longest_ns: longer.longest_ns,
            longest_since: longer.longest_since,
        }
    }
}

/// Ticks that were due from the first to the last one with rows. Their deadlines have a fixed
/// distance, and a tick that is late by more than that is counted as missed.
fn due(session: &Manifest, times: &[i64]) -> Option<u64> {
    // The interval can have been another one at first.
    if session.reloads != 0 {
        return None;
    }
    let interval = session.config.get("interval_ns")?.as_u64()?;
    let (first, last) = (times.first()?, times.last()?);
    // The first tick is a little late too.
    let since = last.abs_diff(*first).saturating_add(interval / 8);
    Some(since.checked_div(interval)?.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(state: State, ticks: Option<u64>) -> Manifest {
        Manifest {
            state,
            samples: ticks,
            config: serde_json::json!({"interval_ns": 100}),
            ..Manifest::default()
        }
    }

    #[test]
    fn counted_ticks_are_not_missing() {
        let killed = session(State::Recovered, None);
        let missing = |times: &[i64], missed| Ticks::of(&killed, times, missed, true).missing;
        assert_eq!(missing(&[0, 99, 250, 305], 0), Some(0));
        assert_eq!(missing(&[0, 99, 305], 0), Some(1));
        assert_eq!(missing(&[0, 99, 305], 1), Some(0));
        assert_eq!(missing(&[7], 0), Some(0));
        assert_eq!(missing(&[], 0), None);
        let ticks = Ticks::of(&killed, &[0, 99, 305], 0, true);
        assert_eq!(
            (ticks.longest_ns, ticks.longest_since),
            (Some(206), Some(99))
        );
        assert_eq!(Ticks::of(&killed, &[0, 500], 0, false).missing, None);
    }

    #[test]
    fn finished_session_has_counted_its_ticks() {
        let ended = session(State::Complete, Some(3));
        assert_eq!(Ticks::of(&ended, &[0, 5, 900], 0, false).missing, Some(0));
        assert_eq!(Ticks::of(&ended, &[0, 900], 0, true).missing, Some(1));
    }

    #[test]
    fn extreme_values_saturate() {
        let mut killed = session(State::Running, None);
        killed.config = serde_json::json!({"interval_ns": 1});
        let ticks = Ticks::of(&killed, &[i64::MIN, i64::MAX], 0, true);
        assert_eq!(ticks.longest_ns, Some(u64::MAX));
        killed.config = serde_json::json!({"interval_ns": 0});
        assert_eq!(Ticks::of(&killed, &[1, 2], 0, true).missing, None);
        killed.config = serde_json::json!({"interval_ns": 1});
        let most = Ticks::of(&killed, &[1, 5], u64::MAX, true);
        assert_eq!(most.missing, Some(0));
        assert_eq!(most.and(most).missed, u64::MAX);
    }
}
