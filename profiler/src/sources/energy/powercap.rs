//! Energy counters of RAPL domains in the powercap framework of the kernel
//! (Documentation/ABI/testing/sysfs-class-powercap, Documentation/power/powercap/powercap.rst).

use std::path::Path;

use super::{
    files::Energies,
    meter::{Domain, Instrument, Limits, Meter, unreadable},
};
use crate::host::{Host, cpuinfo, names, number, text};

/// Since kernel 5.10 only root can read the counters (CVE-2020-8694).
const REMEDY: &str = "sudo, or: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj";

/// Control types of RAPL domains in order of preference. A processor with both counts the same
/// packages in both.
const TYPES: [&str; 2] = ["intel-rapl", "intel-rapl-mmio"];

/// Largest plausible long-term power of a node, W.
const PLATFORM_POWER: f64 = 10_000.0;

/// Meters of all zones. A domain of both control types has two.
pub(super) fn meters(host: &Host) -> Vec<Meter> {
    let directory = host.sysfs.join("class/powercap");
    let all = names(&directory, TYPES[0]);
    let mut meters = Vec::new();
    for kind in TYPES {
        let of_kind = all.iter().filter(|name| {
            name.split_once(':')
                .is_some_and(|(control, _)| control == kind)
        });
        meters.extend(of_kind.filter_map(|name| zone(&directory, name)));
    }
    if has_counters_of_each_core(host) {
        // The counter for all cores is that of the first core.
        meters.retain(|meter| meter.domain.name != "core");
    }
    meters
}

/// Processors of AMD have no counter for all cores of a package; the kernel reads that of one core
/// instead (`MSR_AMD_CORE_ENERGY_STATUS` in drivers/powercap/intel_rapl_msr.c).
fn has_counters_of_each_core(host: &Host) -> bool {
    let cpus = cpuinfo(&host.procfs);
    let vendor = cpus.first().and_then(|fields| fields.get("vendor_id"));
    vendor.is_some_and(|vendor| ["AuthenticAMD", "HygonGenuine"].contains(&vendor.as_str()))
}

fn zone(directory: &Path, name: &str) -> Option<Meter> {
    let zone = directory.join(name);
    let own = text(&zone.join("name"))?;
    // Part of a package has the numbers of its parent; a separate zone (psys) has none.
    let numbers = package(&own).or_else(|| {
        let (parent, _) = name.rsplit_once(':')?;
        package(&text(&directory.join(parent).join("name"))?)
    });
    let domain = Domain {
        socket: numbers.map(|(socket, _)| socket),
        die: numbers.and_then(|(_, die)| die),
        name: if package(&own).is_some() {
            "package".to_owned()
        } else {
            own
        },
    };
    let file = zone.join("energy_uj");
    let max_power: Option<f64> = number(&zone.join("constraint_0_max_power_uw"));
    let limits = Limits {
        range: number(&zone.join("max_energy_range_uj")).filter(|range| *range > 0),
        max_power: (max_power.map(|microwatts| microwatts / 1e6))
            .or(domain.socket.is_none().then_some(PLATFORM_POWER)),
        rises: true,
    };
    Some(Meter {
        domain,
        provider: "powercap",
        problem: unreadable(&file, REMEDY),
        instrument: Instrument::Counter(Box::new(Energies::new([file])), limits),
    })
}

/// Socket and die of `package-1` or `package-0-die-1`.
fn package(name: &str) -> Option<(u32, Option<u32>)> {
    let rest = name.strip_prefix("package-")?;
    match rest.split_once("-die-") {
        Some((socket, die)) => Some((socket.parse().ok()?, Some(die.parse().ok()?))),
        None => Some((rest.parse().ok()?, None)),
    }
}
