//! Durations, sizes and times: parsing what users write, formatting for people.

use std::time::Duration;

use arrow::temporal_conversions::timestamp_ns_to_datetime;
use thiserror::Error;

/// Why a text is not a duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DurationError {
    /// No number with a unit.
    #[error("`{0}` is not a duration: write 100ms, 1s, 1m30s or 1h")]
    Malformed(String),
    /// A unit that is not supported.
    #[error("unknown unit `{0}`: use ms, s, m, h, d or y")]
    Unit(String),
    /// More than the type can hold.
    #[error("`{0}` is too long")]
    TooLong(String),
    /// Outside the limits of the sampling interval.
    #[error("`{0}` is not between 1ms and 1h")]
    Interval(String),
    /// Zero where only a positive duration makes sense.
    #[error("must be longer than 0")]
    Zero,
}

/// Why a text is not a size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SizeError {
    /// No integer.
    #[error("`{0}` is not a size: write 500M, 20G or 2T")]
    Malformed(String),
    /// A unit that is not supported.
    #[error("unknown unit `{0}`: use K, M, G or T")]
    Unit(String),
    /// More than the type can hold.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

/// Reads `100ms`, `1s`, `1.5s`, `10m`, `1m30s`, `1h`, `1d`, `1y` (365 days) or a plain number of
/// seconds.
///
/// # Errors
///
/// When it is no duration.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    let too_long = || DurationError::TooLong(text.to_owned());
    let mut rest = text;
    let mut sum = Duration::ZERO;
    loop {
        let split = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(split);
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let number: f64 = number.parse().map_err(|_| malformed())?;
        let seconds = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            // Seconds only as the whole text: 1m30 is ambiguous.
            "" if rest.len() == text.len() => 1.0,
            "" => return Err(malformed()),
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "y" => 365.0 * 86_400.0,
            _ => return Err(DurationError::Unit(unit.to_owned())),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| too_long())?;
        sum = sum.checked_add(part).ok_or_else(too_long)?;
        if after.is_empty() {
            return Ok(sum);
        }
        rest = after;
    }
}

/// Reads a sampling interval: 1 ms to 1 h.
///
/// # Errors
///
/// When it is no duration, or out of range.
pub fn interval(text: &str) -> Result<Duration, DurationError> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(1) || interval > Duration::from_secs(3600) {
        return Err(DurationError::Interval(text.to_owned()));
    }
    Ok(interval)
}

/// Reads a duration above 0.
///
/// # Errors
///
/// When it is no duration, or 0.
pub fn positive(text: &str) -> Result<Duration, DurationError> {
    match duration(text)? {
        Duration::ZERO => Err(DurationError::Zero),
        duration => Ok(duration),
    }
}

/// Reads a size: `500M`, `20G`, `2T` (powers of 1024; `20GiB` is the same) or a number of bytes.
///
/// # Errors
///
/// When it is no size.
pub fn size(text: &str) -> Result<u64, SizeError> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number
        .parse()
        .map_err(|_| SizeError::Malformed(text.to_owned()))?;
    let power = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" if unit.is_empty() => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return Err(SizeError::Unit(unit.to_owned())),
    };
    let bytes = number.checked_mul(1024_u64.pow(power));
    bytes.ok_or_else(|| SizeError::TooLarge(text.to_owned()))
}

/// `2026-01-31T12:00:00.123456789Z` for ns since 1970-01-01 UTC.
pub fn rfc3339(ns: i64) -> String {
    timestamp_ns_to_datetime(ns).map_or_else(String::new, |time| {
        time.format("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
    })
}

/// `2026-01-31 12:00:00 UTC` for ns since 1970-01-01 UTC.
pub fn wall_clock(ns: i64) -> String {
    timestamp_ns_to_datetime(ns).map_or_else(String::new, |time| {
        time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
    })
}

/// A duration in the unit that suits it: `1.2 s`, `340.0 ms`, `2 h 5 min`.
pub fn format_ns(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", seconds * 1e3),
        1_000_000_000..120_000_000_000 => format!("{seconds:.2} s"),
        _ => {
            let minutes = ns / 60_000_000_000;
            if minutes < 120 {
                format!("{minutes} min {} s", ns / 1_000_000_000 % 60)
            } else {
                format!("{} h {} min", minutes / 60, minutes % 60)
            }
        }
    }
}

/// Formats a size with a binary unit: `1.5 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            return if unit == "B" {
                format!("{bytes} B")
            } else {
                format!("{size:.1} {unit}")
            };
        }
        size /= 1024.0;
    }
    format!("{size:.1} PiB")
}

/// A number of things: `1 process`, `2 processes`.
pub fn counted(count: u64, one: &str) -> String {
    let plural = if one.ends_with('s') { "es" } else { "s" };
    format!("{count} {one}{}", if count == 1 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("500M", 500 << 20),
            ("20GiB", 20 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1.5G", "1iB", "1GB", "1 G", "99999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h2m3.5s"), Ok(Duration::from_millis(3_723_500)));
        assert_eq!(duration("2y"), Ok(Duration::from_secs(730 * 86_400)));
        for wrong in [
            "",
            "s",
            "-1s",
            "1 s",
            "1x",
            "1m30",
            "30 1m",
            "1ms5",
            "1m30s-5s",
            "1e400s",
            "..",
            "99999999999999999999h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(interval("999us").is_err() && interval("61m").is_err() && positive("0s").is_err());
        assert_eq!(interval("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn times() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(
            rfc3339(1_782_907_200_000_000_001),
            "2026-07-01T12:00:00.000000001Z"
        );
    }

    #[test]
    fn formatted_for_people() {
        assert_eq!(format_ns(1_230_000), "1.2 ms");
        assert_eq!(format_ns(7_500_000_000_000), "2 h 5 min");
        assert_eq!(format_bytes(1536), "1.5 KiB");
    }
}
