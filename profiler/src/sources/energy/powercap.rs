//! Energy counters of RAPL domains, as the kernel's powercap framework has them
//! (Documentation/ABI/testing/sysfs-class-powercap, Documentation/power/powercap/powercap.rst).

use std::path::Path;

use super::{
    files::Energies,
    meter::{Domain, Instrument, Limits, Meter, unreadable},
};
use crate::host::{Host, cpuinfo, names, number, text};

/// Since kernel 5.10 only root reads the counters (CVE-2020-8694).
const REMEDY: &str = "sudo, or: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj";

/// The control types that count RAPL domains, best first: both count the same packages where a processor has both.
const TYPES: [&str; 2] = ["intel-rapl", "intel-rapl-mmio"];

/// More than a node uses for long, W.
const PLATFORM_POWER: f64 = 10_000.0;

/// All zones; a domain that both control types have is there twice.
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
        // Of all cores it is the counter of the first.
        meters.retain(|meter| meter.domain.name != "core");
    }
    meters
}

/// AMD's processors have no counter of all cores of a package; the kernel takes one core's for it
/// (`MSR_AMD_CORE_ENERGY_STATUS` in drivers/powercap/intel_rapl_msr.c).
fn has_counters_of_each_core(host: &Host) -> bool {
    let info = cpuinfo(&host.procfs);
    let first = info.as_ref().and_then(|info| info.get_info(0));
    let vendor = first.as_ref().and_then(|fields| fields.get("vendor_id"));
    vendor.is_some_and(|vendor| ["AuthenticAMD", "HygonGenuine"].contains(vendor))
}

fn zone(directory: &Path, name: &str) -> Option<Meter> {
    let zone = directory.join(name);
    let own = text(&zone.join("name"))?;
    // A part of a package has its parent's numbers; a zone of its own (psys) none.
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
    };
    Some(Meter {
        domain,
        provider: "powercap",
        problem: unreadable(&file, REMEDY),
        instrument: Instrument::Counter(Box::new(Energies::new([file])), limits),
    })
}

/// `package-1`, `package-0-die-1`.
fn package(name: &str) -> Option<(u32, Option<u32>)> {
    let rest = name.strip_prefix("package-")?;
    match rest.split_once("-die-") {
        Some((socket, die)) => Some((socket.parse().ok()?, Some(die.parse().ok()?))),
        None => Some((rest.parse().ok()?, None)),
    }
}
