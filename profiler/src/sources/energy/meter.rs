//! What a provider finds: something that counts energy of a domain, or tells its power.

use std::{
    fs,
    io::{ErrorKind, Read as _},
    path::Path,
};

use anyhow::Result;

/// What energy is counted of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Domain {
    /// Number of the package; `None` for the whole node.
    pub(super) socket: Option<u32>,
    /// Number of the die within it, where there are several.
    pub(super) die: Option<u32>,
    /// package, core, dram, node and others.
    pub(super) name: String,
}

impl Domain {
    /// One of a package that is not divided.
    pub(super) fn of_socket(socket: u32, name: impl Into<String>) -> Self {
        Self {
            socket: Some(socket),
            die: None,
            name: name.into(),
        }
    }

    /// One of the whole node.
    pub(super) fn node_batches(name: impl Into<String>) -> Self {
        Self {
            socket: None,
            die: None,
            name: name.into(),
        }
    }

    /// Whether both hold some of the same energy: all packages together hold each of them.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: Option<u32>, b: Option<u32>| a.zip(b).is_none_or(|(a, b)| a == b);
        self.name == other.name && meet(self.socket, other.socket) && meet(self.die, other.die)
    }
}

/// A counter at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Energy since some moment in the past, µJ.
    pub(super) energy_uj: u64,
    /// When that was so, ns of the meter's own clock: one that goes on by itself shows a new value.
    pub(super) at: u64,
}

/// Something that counts energy. It is quick to read.
pub(super) trait Counter: Send {
    /// Reads it; `None` where the energy is not known at the moment, and that is no error.
    fn read(&mut self) -> Result<Option<Reading>>;
}

/// Something that tells power, and may take its time for it: firmware is asked, or a chip behind a slow bus.
pub(super) trait Gauge: Send {
    /// Power at this moment, W; `None` as for a counter.
    fn watts(&mut self) -> Result<Option<f64>>;
}

/// What a counter can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    /// Where it begins anew, µJ; `None` where it does not.
    pub(super) range: Option<u64>,
    /// The power that the domain can have for long, W; where somebody says.
    pub(super) max_power: Option<f64>,
}

/// How it is read.
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

/// A domain with what tells its energy.
pub(super) struct Meter {
    pub(super) domain: Domain,
    /// Who says so: the column `provider`.
    pub(super) provider: &'static str,
    pub(super) instrument: Instrument,
    pub(super) problem: Option<Problem>,
}

/// The meters that are read: each domain once.
#[derive(Default)]
pub(super) struct Meters {
    readable: Vec<Meter>,
    others: Vec<Meter>,
}

impl Meters {
    /// Takes what a provider has that the better ones before it have not.
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

    /// Whether nobody so far can tell the energy of this domain.
    pub(super) fn is_missing(&self, domain: &Domain) -> bool {
        !overlaps(&self.readable, domain)
    }

    /// All in the order of sockets. A domain that nobody can read is there as the best provider has it.
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

/// Why a file of a counter cannot be read.
pub(super) fn unreadable(file: &Path, remedy: &str) -> Option<Problem> {
    let read = || fs::File::open(file)?.read(&mut [0; 64]);
    problem(file, remedy, read().map(|_| ()))
}

/// Why a file of a gauge cannot be opened. It is not read, which may take long.
pub(super) fn locked(file: &Path) -> Option<Problem> {
    let remedy = format!("sudo, or: chmod a+r {}", file.display());
    problem(file, &remedy, fs::File::open(file).map(|_| ()))
}

fn problem(file: &Path, remedy: &str, result: std::io::Result<()>) -> Option<Problem> {
    let error = result.err()?;
    let helps = error.kind() == ErrorKind::PermissionDenied;
    Some(Problem {
        why: format!("{}: {error}", file.display()),
        remedy: if helps {
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
    fn the_best_that_can_be_read_has_the_domain() {
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
            meter("second", Domain::node_batches("node"), true),
        ]);
        meters.add(vec![meter("third", Domain::node_batches("package"), true)]);
        let found = meters.finish();
        let found: Vec<_> = found
            .iter()
            .map(|meter| (meter.domain.clone(), meter.provider))
            .collect();
        let expected = [
            (Domain::node_batches("node"), "second"),
            (package(0), "first"),
            (package(1), "second"),
            (of_die(0), "first"),
            (of_die(1), "second"),
            (package(3), "first"),
        ];
        assert_eq!(found, expected);
    }
}
