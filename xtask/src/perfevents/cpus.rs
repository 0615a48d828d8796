//! Checks that every processor with event files in perf is in one table.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use perfevents::{Catalog, CpuId};

use super::perf::{Cpus, Perf};

/// Lines of perf's `mapfile.csv` without a table: Atoms before Goldmont, cores of phones and small
/// boards, POWER8, and POWER in compatibility modes.
const UNSUPPORTED: [&str; 23] = [
    "0x00000000410fd020",
    "0x00000000410fd030",
    "0x00000000410fd040",
    "0x00000000410fd050",
    "0x00000000410fd060",
    "0x00000000410fd090",
    "0x00000000410fd0a0",
    "0x00000000410fd0d0",
    "0x00000000410fd410",
    "0x00000000410fd440",
    "0x00000000410fd460",
    "0x00000000410fd470",
    "0x00000000410fd480",
    "0x00000000410fd4a0",
    "0x00000000410fd4b0",
    "0x00000000410fd4c0",
    "0x00000000420f1000",
    "0x00000000500f0000",
    "0x004[bcd][[:xdigit:]]{4}",
    "0x00ffffff",
    "0x0066[[:xdigit:]]{4}",
    "GenuineIntel-6-(1C|26|27|35|36)",
    "GenuineIntel-6-(37|4A|4C|4D|5A)",
];

/// Fails unless each kind of core is in exactly one table.
pub fn check(perf: &Perf, catalog: &Catalog) -> Result<()> {
    let (mut known, mut wrong) = (0, Vec::new());
    for line in perf.cpus() {
        let expected = usize::from(!UNSUPPORTED.contains(&line.pattern.as_str()));
        let cpus = cpus(line);
        ensure!(
            !cpus.is_empty() || expected == 0,
            "{}: matches no processor",
            line.pattern
        );
        for cpu in &cpus {
            let found: Vec<_> = catalog.candidates(cpu).map(|uarch| &uarch.id).collect();
            // AMD's lines match whole families, including models that do not exist.
            let is_family = line.pattern.contains("[[:xdigit:]]+");
            if found.len() > expected || found.len() < expected && !is_family {
                wrong.push(format!("{}: {cpu:?} is in {found:?}", line.pattern));
            }
            known += found.len();
        }
        if expected == 1 && cpus.iter().all(|cpu| catalog.lookup(cpu).is_none()) {
            wrong.push(format!("{}: not in any table", line.pattern));
        }
    }
    println!(
        "perf: {known} processors by model, stepping and kind of core are in exactly one table each"
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// All processors of a line, once for each kind of core.
fn cpus(line: &Cpus) -> Vec<CpuId> {
    let cores: BTreeSet<_> = line.cores();
    let mut cpus = Vec::new();
    for (vendor, families) in [
        ("GenuineIntel", vec![6]),
        ("AuthenticAMD", (0x17..=0x1a).collect()),
    ] {
        let all = families.iter().flat_map(|family| {
            (0..=0xff)
                .flat_map(move |model| (0..=0xf).map(move |stepping| (*family, model, stepping)))
        });
        for (family, model, stepping) in all {
            let cpu = |core: Option<&&str>| CpuId::X86 {
                vendor: vendor.to_owned(),
                family,
                model,
                stepping,
                pmu: core
                    .filter(|core| **core != "default_core")
                    .map(|core| (*core).to_owned()),
            };
            if line.matches(&cpu(None)) {
                cpus.extend(cores.iter().map(|core| cpu(Some(core))));
            }
        }
    }
    cpus.extend(line.midr().map(|midr| CpuId::Arm64 { midr }));
    let versions = (0..=0xff_u32).map(|version| CpuId::Power {
        pvr: version << 16 | 0x1202,
    });
    cpus.extend(versions.filter(|cpu| line.matches(cpu)));
    cpus
}
