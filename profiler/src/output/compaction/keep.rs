//! What is kept of rows as they become older: all of them, one per second, one per minute, none.

use std::{str::FromStr, time::Duration};

use thiserror::Error;

use crate::support::units::{self, DurationError};

/// A day in µs.
pub const DAY_US: i64 = 86_400_000_000;

/// Levels of resolution, each up to an age; empty to keep all rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    levels: Vec<Level>,
    /// First day of which rows are kept.
    first: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    resolution: Resolution,
    /// `None` for ever.
    age_us: Option<i64>,
}

/// Time of a row: as sampled, or at least this long, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resolution(pub i64);

impl Resolution {
    /// Rows as sampled.
    pub const RAW: Self = Self(0);

    /// The end of the period with a time, µs since 1970-01-01 UTC. A period includes its end.
    pub fn end_of(self, ts: i64) -> i64 {
        if self == Self::RAW {
            return ts;
        }
        let after_start = ts.saturating_sub(1).div_euclid(self.0);
        after_start.saturating_add(1).saturating_mul(self.0)
    }
}

/// Why a text does not tell what to keep.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KeepError {
    /// An element is not `RESOLUTION=AGE`.
    #[error("`{0}`: write RESOLUTION=AGE, for example raw=7d,1s=90d,1m=3y")]
    Malformed(String),
    /// A resolution or age is not a duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// The first level is not that of all rows.
    #[error("begin with raw=AGE: how long rows are kept as they were sampled")]
    First,
    /// A level is finer than the one before, or does not consist of whole periods of it.
    #[error("`{0}` does not divide into whole periods of the level before it")]
    Resolution(String),
    /// A resolution does not divide a day.
    #[error("a day does not divide into whole periods of `{0}`")]
    Day(String),
    /// A level ends before the one before it.
    #[error("`{0}`: later levels are for older rows")]
    Age(String),
}

impl FromStr for Keep {
    type Err = KeepError;

    fn from_str(text: &str) -> Result<Self, KeepError> {
        let mut levels: Vec<Level> = Vec::new();
        for part in text.split(',') {
            let (resolution, age) = part
                .trim()
                .split_once('=')
                .ok_or_else(|| KeepError::Malformed(part.to_owned()))?;
            let resolution = match (resolution.to_ascii_lowercase().as_str(), levels.last()) {
                ("raw", None) => Resolution::RAW,
                ("raw", Some(_)) => return Err(KeepError::Malformed(part.to_owned())),
                (_, None) => return Err(KeepError::First),
                (text, Some(before)) => {
                    let us = micros(units::positive(text)?);
                    if us < 1000 || DAY_US % us != 0 {
                        return Err(KeepError::Day(text.to_owned()));
                    }
                    let before = before.resolution.0;
                    if us <= before || (before != 0 && us % before != 0) {
                        return Err(KeepError::Resolution(text.to_owned()));
                    }
                    Resolution(us)
                }
            };
            let age_us = match age {
                "forever" => None,
                age => Some(micros(units::positive(age)?)),
            };
            let is_later = match levels.last() {
                None => true,
                Some(Level { age_us: None, .. }) => false,
                Some(before) => age_us.is_none() || age_us > before.age_us,
            };
            if !is_later {
                return Err(KeepError::Age(part.to_owned()));
            }
            levels.push(Level { resolution, age_us });
        }
        Ok(Self {
            levels,
            first: None,
        })
    }
}

impl Keep {
    /// Keeps no rows before a day.
    pub fn begin_at(&mut self, day: i64) {
        self.first = Some(day);
    }

    /// How rows of a day (since 1970-01-01 UTC) are kept; `None` if they are not. The age of a day
    /// is the time since its end.
    pub fn of(&self, day: i64, now_us: i64) -> Option<Resolution> {
        if self.first.is_some_and(|first| day < first) {
            return None;
        }
        if self.levels.is_empty() {
            return Some(Resolution::RAW);
        }
        let age = now_us.saturating_sub(day.saturating_add(1).saturating_mul(DAY_US));
        let mut levels = self.levels.iter();
        let level = levels.find(|level| level.age_us.is_none_or(|limit| age < limit));
        level.map(|level| level.resolution)
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_days_have_longer_periods() {
        let keep: Keep = "RAW=7d,1s=90d,1m=3y".parse().unwrap();
        let level = |days: i64| keep.of(9_999, (10_000 + days) * DAY_US);
        let (second, minute) = (Resolution(1_000_000), Resolution(60_000_000));
        assert_eq!(level(0), Some(Resolution::RAW));
        assert_eq!(level(6), Some(Resolution::RAW));
        assert_eq!(level(7), Some(second));
        assert_eq!(level(90), Some(minute));
        assert_eq!(level(3 * 365 - 1), Some(minute));
        assert_eq!(level(3 * 365), None);
        let forever: Keep = "raw=1h,10s=forever".parse().unwrap();
        assert_eq!(forever.of(0, 1000 * DAY_US), Some(Resolution(10_000_000)));
        assert_eq!(Keep::default().of(0, i64::MAX), Some(Resolution::RAW));
    }

    #[test]
    fn levels_that_contradict_each_other_are_refused() {
        for text in [
            "",
            "raw",
            "1s=7d",
            "raw=7d,raw=9d",
            "raw=7d,1s=7d",
            "raw=forever,1s=90d",
            "raw=0d",
            "raw=7d,7s=90d",
            "raw=7d,10s=90d,15s=1y",
            "raw=7d,1m=90d,1s=1y",
            "raw=7d,x=90d",
        ] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }

    #[test]
    fn periods_include_their_end() {
        let second = Resolution(1_000_000);
        assert_eq!(second.end_of(1_000_000), 1_000_000);
        assert_eq!(second.end_of(1_000_001), 2_000_000);
        assert_eq!(second.end_of(0), 0);
        assert_eq!(second.end_of(-1), 0);
        // A longer period has whole shorter ones.
        let minute = Resolution(60_000_000);
        for ts in [1, 60_000_000, 60_000_001, 59_999_999] {
            assert_eq!(minute.end_of(second.end_of(ts)), minute.end_of(ts));
        }
    }
}
