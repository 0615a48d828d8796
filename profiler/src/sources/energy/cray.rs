//! Counters of the node's board in HPE Cray systems: `/sys/cray/pm_counters`, with ten updates per
//! second, in whole joules ("User Access to Compute Node Power Data" in the documentation of HPE
//! Cray EX). A file contains `12345 J 1700061210920464 us`.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

use super::{
    files::read_number,
    integral::SILENCE,
    meter::{Counter, Domain, Instrument, Limits, Meter, Reading, unreadable},
};
use crate::{
    host::{Host, names},
    procfs::file::{KernelFile, number, words},
    support::clock::monotonic_ns,
};

/// Meters of all counters.
pub(super) fn meters(host: &Host) -> Vec<Meter> {
    let directory = host.sysfs.join("cray/pm_counters");
    let files = names(&directory, "");
    let mut found: Vec<(Domain, &str)> = files
        .iter()
        .filter_map(|file| Some((domain(file)?, file.as_str())))
        .collect();
    if found.iter().any(|(domain, _)| is_one_accelerator(domain)) {
        found.retain(|(domain, _)| domain.name != "accel");
    }
    // Counters of single packages are preferred to those of all packages.
    found.sort_by_key(|(domain, _)| domain.socket.is_none());
    let meters = found.into_iter().map(|(domain, name)| {
        let file = directory.join(name);
        let remedy = format!("sudo, or: chmod a+r {}/*", directory.display());
        Meter {
            domain,
            provider: "cray",
            problem: unreadable(&file, &remedy),
            instrument: Instrument::Counter(
                Box::new(PmCounter::new(&directory, name)),
                Limits::default(),
            ),
        }
    });
    meters.collect()
}

/// Domain of a file: `energy` is the node, which includes the others.
fn domain(file: &str) -> Option<Domain> {
    if file == "energy" {
        return Some(Domain::of_node("node"));
    }
    let name = file.strip_suffix("_energy")?;
    let number = |part: &str| name.strip_prefix(part)?.parse().ok();
    Some(match name {
        "cpu" => Domain::of_node("package"),
        "memory" => Domain::of_node("dram"),
        _ => match (number("cpu"), number("memory")) {
            (Some(socket), _) => Domain::of_socket(socket, "package"),
            (_, Some(socket)) => Domain::of_socket(socket, "dram"),
            _ => Domain::of_node(name),
        },
    })
}

fn is_one_accelerator(domain: &Domain) -> bool {
    let number = domain.name.strip_prefix("accel");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

struct PmCounter {
    file: KernelFile,
    /// Changes when all counters are reset.
    startup: KernelFile,
    started: Option<u64>,
    /// Last time in the file, µs, and when the profiler first read it, ns.
    fresh: Option<(u64, u64)>,
}

impl PmCounter {
    fn new(directory: &Path, name: &str) -> Self {
        Self {
            file: KernelFile::new(directory.join(name)),
            startup: KernelFile::new(directory.join("startup")),
            started: None,
            fresh: None,
        }
    }
}

impl Counter for PmCounter {
    fn read(&mut self) -> Result<Option<Reading>> {
        let now = monotonic_ns();
        let started = read_number(&mut self.startup).ok();
        let path = self.file.path().display().to_string();
        let text = self.file.read().with_context(|| path.clone())?;
        let (joules, time) = parse(text).with_context(|| format!("{path}: malformed"))?;
        let before = std::mem::replace(&mut self.started, started);
        if before.is_some() && before != started {
            return Ok(None);
        }
        let energy_uj = joules
            .checked_mul(1_000_000)
            .with_context(|| format!("{path}: too large"))?;
        let Some(time) = time else {
            let at = now;
            return Ok(Some(Reading { energy_uj, at }));
        };
        let seen = match self.fresh {
            Some((known, seen)) if known == time => seen,
            _ => now,
        };
        self.fresh = Some((time, seen));
        let silent = now.saturating_sub(seen);
        if silent > SILENCE {
            return Err(anyhow!(
                "{path}: no update for {} s",
                silent / 1_000_000_000
            ));
        }
        Ok(Some(Reading {
            energy_uj,
            at: time.saturating_mul(1000),
        }))
    }
}

/// Energy in J, and the time of its measurement in µs, which the oldest systems do not report.
fn parse(text: &[u8]) -> Option<(u64, Option<u64>)> {
    let mut words = words(text);
    let joules = number(words.next()?)?;
    if words.next()? != b"J" {
        return None;
    }
    let time = match (words.next(), words.next(), words.next()) {
        (None, ..) => None,
        (Some(time), Some(b"us"), None) => Some(number(time)?),
        _ => return None,
    };
    Some((joules, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_energy_and_time() {
        let time = Some(1_700_061_210_920_464);
        assert_eq!(
            parse(b"81147367 J 1700061210920464 us\n"),
            Some((81_147_367, time))
        );
        assert_eq!(parse(b"5 J\n"), Some((5, None)));
        for bad in [
            "",
            "5",
            "J",
            "5 W 1 us",
            "-5 J 1 us",
            "5 J 1",
            "5 J x us",
            "5 J 1 ms",
            "5 J 1 us 2",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn files_are_mapped_to_domains() {
        let of = |file| domain(file).map(|domain| (domain.socket, domain.name));
        let named = |name: &str| Some((None, name.to_owned()));
        assert_eq!(of("energy"), named("node"));
        assert_eq!(of("cpu_energy"), named("package"));
        assert_eq!(of("cpu1_energy"), Some((Some(1), "package".to_owned())));
        assert_eq!(of("memory_energy"), named("dram"));
        assert_eq!(of("accel3_energy"), named("accel3"));
        assert_eq!(of("power"), None);
        assert_eq!(of("cpu0_temp"), None);
    }
}
