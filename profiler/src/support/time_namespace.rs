//! The time namespace of this process (`time_namespaces(7)`), as containers have it.
//!
//! In a time namespace, `clock_gettime(2)`, timers and the start times in `/proc` have offsets. BPF
//! programs and `perf_event` records have the times of the initial namespace, so all times in the
//! profiler are those.

use std::{fs, sync::OnceLock};

use rustix::fs::stat;

/// Offsets of the clocks from those of the initial namespace, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offsets {
    pub(super) monotonic: i64,
    pub(super) boottime: i64,
}

impl Offsets {
    /// Those of this process, which cannot change any more.
    pub(super) fn current() -> Self {
        static OFFSETS: OnceLock<Offsets> = OnceLock::new();
        *OFFSETS.get_or_init(|| {
            if is_initial() {
                return Self::default();
            }
            let text = fs::read_to_string("/proc/self/timens_offsets");
            text.map(|text| Self::parse(&text)).unwrap_or_default()
        })
    }

    /// Parses lines of a clock, seconds and nanoseconds.
    fn parse(text: &str) -> Self {
        let of = |clock: &str| {
            let mut lines = text.lines().map(str::split_whitespace);
            let mut fields =
                lines.find_map(|mut fields| (fields.next() == Some(clock)).then_some(fields))?;
            let seconds: i64 = fields.next()?.parse().ok()?;
            let ns: i64 = fields.next()?.parse().ok()?;
            seconds.checked_mul(1_000_000_000)?.checked_add(ns)
        };
        Self {
            monotonic: of("monotonic").unwrap_or(0),
            boottime: of("boottime").unwrap_or(0),
        }
    }
}

/// Whether there is no other time namespace. The file with the offsets is about that of new processes,
/// which is another one until the first exec(2) after unshare(2), before Linux 6.0 until the first fork(2).
fn is_initial() -> bool {
    /// `PROC_TIME_INIT_INO`.
    const INITIAL: u64 = 0xefff_fffa;
    stat("/proc/self/ns/time").is_ok_and(|namespace| namespace.st_ino == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_signs_and_nanoseconds() {
        let text = "monotonic      100000         0\nboottime       -30000 500000001\n";
        let offsets = Offsets {
            monotonic: 100_000_000_000_000,
            boottime: -29_999_499_999_999,
        };
        assert_eq!(Offsets::parse(text), offsets);
        for unknown in ["", "realtime 1 1\n", "monotonic\n", "monotonic x 0\n"] {
            assert_eq!(Offsets::parse(unknown), Offsets::default(), "{unknown}");
        }
    }
}
