//! Meters: counters of the energy, or gauges of the power, of a domain.

use std::{
    fmt, fs,
    io::{ErrorKind, Read as _},
    path::Path,
};

use anyhow::Result;

use crate::failure::os_error::without_code;

/// A power domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Domain {
    /// Number of the package; `None` for the whole node.
    pub(super) socket: Option<u32>,
    /// Number of the die in the package, if there are several.
    pub(super) die: Option<u32>,
    /// package, core, dram, node and others.
    pub(super) name: String,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(socket) = self.socket {
            write!(f, " of socket {socket}")?;
        }
        if let Some(die) = self.die {
            write!(f, " die {die}")?;
        }
        Ok(())
    }
}

impl Domain {
    /// A domain of a package that is not divided into dies.
    pub(super) fn of_socket(socket: u32, name: impl Into<String>) -> Self {
        Self {
            socket: Some(socket),
            die: None,
            name: name.into(),
        }
    }

    /// A domain of the whole node.
    pub(super) fn of_node(name: impl Into<String>) -> Self {
        Self {
            socket: None,
            die: None,
            name: name.into(),
        }
    }

    /// Whether both include the same energy. A domain of all packages overlaps that of each.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: Option<u32>, b: Option<u32>| a.zip(b).is_none_or(|(a, b)| a == b);
        self.name == other.name && meet(self.socket, other.socket) && meet(self.die, other.die)
    }
}

/// Value of a counter at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Energy since an arbitrary time, µJ.
    pub(super) energy_uj: u64,
    /// Time of the value, ns. A meter that updates on its own schedule has its own clock.
    pub(super) at: u64,
}

/// A counter of energy, which is read at the sample.
pub(super) trait Counter: Send {
    /// Reads the counter; `None` if the energy is unknown at the moment without an error.
    fn read(&mut self) -> Result<Option<Reading>>;
}

/// A gauge of power, which is read in a separate thread: firmware, or a chip on a slow bus, may
/// take long.
pub(super) trait Gauge: Send {
    /// Present power, W; `None` if it is unknown at the moment without an error.
    fn watts(&mut self) -> Result<Option<f64>>;
}

/// Limits of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    /// Value after which it wraps, µJ; `None` if it does not wrap.
    pub(super) range: Option<u64>,
    /// Long-term power limit of the domain, W, if it is known.
    pub(super) max_power: Option<f64>,
    /// Whether it rises as long as the machine runs, every few milliseconds. One that does not is not
    /// connected: RAPL in virtual machines, psys without a sensor, the GPU of a CPU without one.
    pub(super) rises: bool,
}

/// How a meter is read.
pub(super) enum Instrument {
    Counter(Box<dyn Counter>, Limits),
    Gauge(Box<dyn Gauge>),
}

/// Why a meter cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) why: String,
    pub(super) remedy: String,
}

/// A meter of one domain.
pub(super) struct Meter {
    pub(super) domain: Domain,
    /// Value of the column `provider`.
    pub(super) provider: &'static str,
    pub(super) instrument: Instrument,
    pub(super) problem: Option<Problem>,
}

impl Meter {
    /// Whether it is a counter that rises as long as the machine runs.
    pub(super) fn rises(&self) -> bool {
        matches!(self.instrument, Instrument::Counter(_, limits) if limits.rises)
    }

    /// Present value of a counter, µJ.
    pub(super) fn count(&mut self) -> Option<u64> {
        match &mut self.instrument {
            Instrument::Counter(counter, _) => Some(counter.read().ok()??.energy_uj),
            Instrument::Gauge(_) => None,
        }
    }
}

/// Meters of all domains, with one meter per domain.
#[derive(Default)]
pub(super) struct Meters {
    readable: Vec<Meter>,
    others: Vec<Meter>,
}

impl Meters {
    /// Adds the meters of a provider, except for domains that a better provider already measures.
    pub(super) fn add(&mut self, found: Vec<Meter>) {
        for meter in found {
            if !self.is_missing(&meter.domain) {
                continue;
            }
            if meter.problem.is_none() {
                self.readable.push(meter);
            } else {
                self.others.push(meter);
            }
        }
    }

    /// Whether no readable meter measures this domain so far.
    pub(super) fn is_missing(&self, domain: &Domain) -> bool {
        !overlaps(&self.readable, domain)
    }

    /// All meters in the order of their domains. A domain without a readable meter has that of the
    /// best provider.
    pub(super) fn finish(self) -> Vec<Meter> {
        let mut meters = self.readable;
        for meter in self.others {
            if !overlaps(&meters, &meter.domain) {
                meters.push(meter);
            }
        }
        meters.sort_by(|a, b| a.domain.cmp(&b.domain));
        meters
    }
}

fn overlaps(meters: &[Meter], domain: &Domain) -> bool {
    meters.iter().any(|meter| meter.domain.overlaps(domain))
}

/// Why the file of a counter cannot be read.
pub(super) fn unreadable(file: &Path, remedy: &str) -> Option<Problem> {
    let read = || fs::File::open(file)?.read(&mut [0; 64]);
    problem(file, remedy, read().map(|_| ()))
}

/// Why the file of a gauge cannot be opened. It is not read, because that may take long.
pub(super) fn locked(file: &Path) -> Option<Problem> {
    let remedy = format!("sudo, or: chmod a+r {}", file.display());
    problem(file, &remedy, fs::File::open(file).map(|_| ()))
}

fn problem(file: &Path, remedy: &str, result: std::io::Result<()>) -> Option<Problem> {
    let error = result.err()?;
    let is_denied = error.kind() == ErrorKind::PermissionDenied;
    Some(Problem {
        why: without_code(&format!("{}: {error}", file.display())).into_owned(),
        remedy: if is_denied {
            remedy.to_owned()
        } else {
            String::new()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Gauge for Nothing {
        fn watts(&mut self) -> Result<Option<f64>> {
            Ok(None)
        }
    }

    fn meter(provider: &'static str, domain: Domain, readable: bool) -> Meter {
        let problem = Problem {
            why: String::new(),
            remedy: String::new(),
        };
        Meter {
            domain,
            provider,
            instrument: Instrument::Gauge(Box::new(Nothing)),
            problem: (!readable).then_some(problem),
        }
    }

    #[test]
    fn the_best_readable_meter_has_the_domain() {
        let package = |socket| Domain::of_socket(socket, "package");
        let of_die = |die| Domain {
            die: Some(die),
            ..package(2)
        };
        let mut meters = Meters::default();
        meters.add(vec![
            meter("first", package(0), true),
            meter("first", package(1), false),
            meter("first", of_die(0), true),
            meter("first", package(3), false),
        ]);
        meters.add(vec![
            meter("second", package(0), true),
            meter("second", package(1), true),
            meter("second", package(2), true),
            meter("second", of_die(1), true),
            meter("second", package(3), false),
            meter("second", Domain::of_node("node"), true),
        ]);
        meters.add(vec![meter("third", Domain::of_node("package"), true)]);
        let found = meters.finish();
        let found: Vec<_> = found
            .iter()
            .map(|meter| (meter.domain.clone(), meter.provider))
            .collect();
        let expected = [
            (Domain::of_node("node"), "second"),
            (package(0), "first"),
            (package(1), "second"),
            (of_die(0), "first"),
            (of_die(1), "second"),
            (package(3), "first"),
        ];
        assert_eq!(found, expected);
    }
}
