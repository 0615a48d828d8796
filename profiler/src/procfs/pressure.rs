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
    some: Counter,
    full: Counter,
}

impl Pressure {
    /// `resource` is `cpu`, `memory` or `io`.
    pub(crate) fn new(procfs: &Path, resource: &str) -> Self {
        Self {
            file: KernelFile::new(procfs.join("pressure").join(resource)),
            some: Counter::default(),
            full: Counter::default(),
        }
    }

    /// Reads once. All values are null if the kernel has no PSI, or if it is disabled.
    pub(crate) fn sample(&mut self) -> Stalled {
        let reading = self.file.read().map(Reading::parse).unwrap_or_default();
        let ns =
            |counter: &mut Counter, stall: Stall| counter.increase(stall.total)?.checked_mul(1000);
        Stalled {
            some_avg10: reading.some.avg10,
            some_ns: ns(&mut self.some, reading.some),
            full_avg10: reading.full.avg10,
            full_ns: ns(&mut self.full, reading.full),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
