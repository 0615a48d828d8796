//! Pressure stall information: `/proc/pressure/*` (`kernel/sched/psi.c`,
//! Documentation/accounting/psi.rst).
//!
//! This parser replaces that of the `procfs` crate, which rejects `some` if a kernel before 5.13
//! has no `full` of the CPU, and can panic on a truncated line.

use std::path::Path;

use super::file::{KernelFile, fraction, lines, number, words};
use crate::support::delta::Counter;

/// One line of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stall {
    /// Average of the kernel over the last 10 s, percent.
    pub(crate) avg10: Option<f64>,
    /// µs since boot.
    total: Option<u64>,
}

/// Both lines of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    some: Stall,
    full: Stall,
}

impl Reading {
    fn parse(text: &[u8]) -> Self {
        let mut reading = Self::default();
        for line in lines(text) {
            let mut words = words(line);
            let stall = match words.next() {
                Some(b"some") => &mut reading.some,
                Some(b"full") => &mut reading.full,
                _ => continue,
            };
            for word in words {
                if let Some(value) = word.strip_prefix(b"avg10=") {
                    stall.avg10 = fraction(value);
                } else if let Some(value) = word.strip_prefix(b"total=") {
                    stall.total = number(value);
                }
            }
        }
        reading
    }
}

/// Stalls on one resource over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stalled {
    /// Share of the last 10 s in which a task was stalled, percent.
    pub(crate) some_avg10: Option<f64>,
    /// Time in which a task was stalled.
    pub(crate) some_ns: Option<u64>,
    /// Share of the last 10 s in which all tasks were stalled, percent.
    pub(crate) full_avg10: Option<f64>,
    /// Time in which all tasks were stalled.
    pub(crate) full_ns: Option<u64>,
}

/// Stalls on one resource: CPU, memory or I/O.
#[derive(Debug)]
pub(crate) struct Pressure {
    file: KernelFile,
    some: Time,
    full: Time,
}

/// The time of one line. The kernel adds up times of the CPUs that it reads one after the other, so that
/// some of one interval slips into the next, which then has more than its length (`update_averages` in
/// `kernel/sched/psi.c`). As the kernel does for its averages, the surplus counts in later intervals.
#[derive(Debug, Default)]
struct Time {
    total: Counter,
    /// ns.
    surplus: u64,
}

impl Time {
    /// Takes a reading; the time since the one before, ns.
    fn increase(&mut self, total: Option<u64>, interval_ns: Option<u64>) -> Option<u64> {
        let increase = self.total.increase(total);
        let Some(ns) = increase.and_then(|us| us.checked_mul(1000)) else {
            self.surplus = 0;
            return None;
        };
        let ns = ns.saturating_add(self.surplus);
        let within = ns.min(interval_ns?);
        self.surplus = ns - within;
        Some(within)
    }
}

impl Pressure {
    /// `resource` is `cpu`, `memory` or `io`.
    pub(crate) fn new(procfs: &Path, resource: &str) -> Self {
        Self {
            file: KernelFile::new(procfs.join("pressure").join(resource)),
            some: Time::default(),
            full: Time::default(),
        }
    }

    /// Reads at the end of an interval of this length. All values are null if the kernel has no PSI, or
    /// if it is disabled.
    pub(crate) fn sample(&mut self, interval_ns: Option<u64>) -> Stalled {
        let reading = self.file.read().map(Reading::parse).unwrap_or_default();
        Stalled {
            some_avg10: reading.some.avg10,
            some_ns: self.some.increase(reading.some.total, interval_ns),
            full_avg10: reading.full.avg10,
            full_ns: self.full.increase(reading.full.total, interval_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surplus_of_an_interval_counts_in_the_next() {
        let mut time = Time::default();
        let mut at = |total, interval_us: u64| time.increase(total, Some(interval_us * 1000));
        assert_eq!(at(Some(500), 0), None);
        assert_eq!(at(Some(600), 100), Some(100_000));
        assert_eq!(at(Some(703), 100), Some(100_000));
        assert_eq!(at(Some(801), 100), Some(100_000));
        assert_eq!(at(Some(821), 100), Some(21_000));
        assert_eq!(at(Some(930), 100), Some(100_000));
        // What is before a failed reading does not count.
        assert_eq!(at(None, 100), None);
        assert_eq!(at(Some(990), 100), None);
        assert_eq!(at(Some(1000), 100), Some(10_000));
    }

    #[test]
    fn one_line_may_be_missing() {
        let old = Reading::parse(b"some avg10=2.04 avg60=0.75 avg300=0.40 total=157622151\n");
        assert_eq!(old.some.avg10, Some(2.04));
        assert_eq!(old.some.total, Some(157_622_151));
        assert_eq!(old.full, Stall::default());
        for bad in [
            &b"some"[..],
            b"full\n",
            b"some avg10=nan total=-1\nfull avg10",
            b"\xff\n",
        ] {
            assert_eq!(Reading::parse(bad), Reading::default());
        }
    }
}
