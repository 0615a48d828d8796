//! The built-in tables.

use std::collections::{HashMap, HashSet};

use perfevents::{Catalog, CpuId, Cpuid, Room, Uarch};

fn x86(vendor: &str, family: u32, model: u32, stepping: u32, pmu: Option<&str>) -> CpuId {
    CpuId::X86 {
        vendor: vendor.to_owned(),
        family,
        model,
        stepping,
        pmu: pmu.map(str::to_owned),
    }
}

/// Every CPU that an x86 entry matches.
fn cpus_of(entry: &Cpuid) -> impl Iterator<Item = CpuId> {
    let models = entry
        .models
        .0
        .iter()
        .flat_map(|&(first, last)| first..=last);
    let steppings = (0..16).filter(|&stepping| {
        let listed = entry.steppings.as_ref();
        listed.is_none_or(|listed| listed.contains(stepping))
    });
    let pmu = Some(entry.pmu.as_deref().unwrap_or("cpu"));
    models.flat_map(move |model| {
        let steppings = steppings.clone();
        steppings.map(move |stepping| x86(&entry.vendor, entry.family, model, stepping, pmu))
    })
}

/// Every CPU that a table matches.
fn cpus(uarch: &Uarch) -> Vec<CpuId> {
    let x86 = uarch.matches.cpuid.iter().flat_map(cpus_of);
    let arm = uarch.matches.midr.iter().flat_map(|entry| {
        let parts = entry.parts.0.iter().flat_map(|&(first, last)| first..=last);
        parts.map(|part| CpuId::Arm64 {
            midr: entry.implementer << 24 | 0x2f << 16 | part << 4 | 1,
        })
    });
    let power = uarch.matches.pvr.iter().flat_map(|entry| {
        let versions = entry
            .versions
            .0
            .iter()
            .flat_map(|&(first, last)| first..=last);
        versions.map(|version| CpuId::Power {
            pvr: version << 16 | 0x1202,
        })
    });
    x86.chain(arm).chain(power).collect()
}

#[test]
fn every_cpu_matches_exactly_one_table() {
    let catalog = Catalog::builtin();
    let mut seen = HashMap::new();
    for uarch in catalog.iter() {
        let cpus = cpus(uarch);
        // The table of the kernel's events matches no CPU.
        let is_generic = catalog
            .generic()
            .is_some_and(|generic| generic.id == uarch.id);
        assert_eq!(cpus.is_empty(), is_generic, "{}", uarch.id);
        for cpu in cpus {
            let found: Vec<_> = catalog.candidates(&cpu).map(|found| &found.id).collect();
            assert_eq!(found, [&uarch.id], "{cpu:?}");
            assert_eq!(
                seen.insert(cpu, &uarch.id),
                None,
                "{} matches a CPU twice",
                uarch.id
            );
        }
    }
}

#[test]
fn identification_is_complete_and_unique() {
    let catalog = Catalog::builtin();
    let mut names = HashMap::new();
    let mut ids = HashSet::new();
    for uarch in catalog.iter() {
        for text in [&uarch.name, &uarch.vendor, &uarch.source] {
            assert!(!text.trim().is_empty(), "{}", uarch.id);
        }
        assert!(
            uarch
                .id
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "{}",
            uarch.id
        );
        assert_eq!(names.insert(&uarch.name, &uarch.id), None, "{}", uarch.name);
        assert!(
            ids.insert(&uarch.id),
            "two files are called {}.toml",
            uarch.id
        );
    }
    assert!(names.len() >= 55, "{}", names.len());
}

#[test]
fn known_cpus_are_identified() {
    let intel = |model, stepping| x86("GenuineIntel", 6, model, stepping, Some("cpu"));
    let amd = |family, model| x86("AuthenticAMD", family, model, 1, None);
    for (cpu, name) in [
        (intel(0x2c, 2), "Westmere-EP"),
        (intel(0x55, 4), "Skylake-SP"),
        (intel(0x55, 7), "Cascade Lake-SP / Cooper Lake"),
        (intel(0x6a, 6), "Ice Lake-SP"),
        (intel(0x8f, 8), "Sapphire Rapids"),
        (intel(0xad, 1), "Granite Rapids"),
        (amd(0x17, 0x31), "Zen 2"),
        (amd(0x19, 0x01), "Zen 3"),
        (amd(0x19, 0x11), "Zen 4"),
        (amd(0x1a, 0x02), "Zen 5"),
        (CpuId::arm64(0x41, 3, 0xd0c, 1), "Neoverse N1"),
        (CpuId::arm64(0x41, 0, 0xd4f, 0), "Neoverse V2"),
        (CpuId::arm64(0x46, 1, 0x001, 0), "A64FX"),
        (CpuId::Power { pvr: 0x004e_1202 }, "POWER9"),
    ] {
        let found = Catalog::builtin().lookup(&cpu);
        assert_eq!(found.map(|found| &found.name[..]), Some(name), "{cpu:?}");
    }
}

#[test]
fn kinds_of_cores_are_distinguished_by_their_pmu() {
    let catalog = Catalog::builtin();
    let core = |model, pmu| x86("GenuineIntel", 6, model, 0, pmu);
    let name = |cpu| catalog.lookup(&cpu).map(|found| found.id.clone());
    assert_eq!(name(core(0xb7, Some("cpu_core"))).as_deref(), Some("adl-p"));
    assert_eq!(name(core(0xb7, Some("cpu_atom"))).as_deref(), Some("adl-e"));
    assert_eq!(name(core(0xbe, Some("cpu"))).as_deref(), Some("adl-e"));
    assert_eq!(name(core(0xb7, None)), None);
    assert_eq!(catalog.candidates(&core(0xb7, None)).count(), 2);
}

#[test]
fn unknown_cpus_match_no_table() {
    for cpu in [
        x86("GenuineIntel", 6, 0x00, 0, None),
        x86("GenuineIntel", 15, 0x55, 4, None),
        x86("AuthenticAMD", 6, 0x55, 4, None),
        x86("", u32::MAX, u32::MAX, u32::MAX, None),
        CpuId::Arm64 { midr: 0 },
        CpuId::Arm64 { midr: u32::MAX },
        CpuId::Power { pvr: 0 },
    ] {
        assert!(Catalog::builtin().lookup(&cpu).is_none(), "{cpu:?}");
    }
}

#[test]
fn errors_name_file_and_line() {
    let error = Catalog::parse([("x", "name = \"X\"\nvendro = \"Y\"\n")]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("x.toml: ") && text.contains("line 2") && text.contains("vendro"),
        "{text}"
    );
}

fn problems_of_all(problems: impl Fn(&Uarch) -> Vec<String>) -> String {
    let catalog = Catalog::builtin();
    let problems = catalog.iter().flat_map(|uarch| {
        let problems = problems(uarch).into_iter();
        problems.map(|problem| format!("{}: {problem}", uarch.id))
    });
    problems.collect::<Vec<_>>().join("\n")
}

#[test]
fn tables_have_no_contradictions() {
    let problems = problems_of_all(|uarch| uarch.problems(Catalog::meanings()));
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn codes_make_the_recorded_words() {
    let problems = problems_of_all(Uarch::encoding_problems);
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn a_wrong_code_is_detected() {
    let problems = |event: &str| {
        let text = format!(
            "name = \"X\"\nvendor = \"Intel\"\nsource = \"\"\n\
             [[match.cpuid]]\nvendor = \"GenuineIntel\"\nfamily = 6\nmodels = [1]\n\
             [pmu.cpu]\n[pmu.unheard_of]\n[pmu.software]\n\
             [event.E]\nhelp = \"\"\nsources = [\"perfmon\"]\n{event}\n"
        );
        let catalog = Catalog::parse([("x", text.as_str())]).expect("valid");
        let problems = catalog.iter().flat_map(Uarch::encoding_problems);
        problems.collect::<Vec<_>>().join("\n")
    };
    for (event, problem) in [
        ("code = { event = 0xc7, umask = 1 }\nconfig = 0x1c7", ""),
        (
            "code = { event = 0xb7, umask = 1, offcore_rsp = 0x3f }\nconfig = 0x1b7\nconfig1 = 0x3f",
            "",
        ),
        (
            "code = { event = 0xc7, umask = 3 }\nconfig = 0x1c7",
            "[3c7, 0, 0, 0]",
        ),
        (
            "code = { event = 0xc7, umask = 1 }\nconfig = 0x1c7\nconfig1 = 1",
            "[1c7, 1, 0, 0]",
        ),
        (
            "code = { event = 0x1c7, umask = 1 }\nconfig = 0x1c7",
            "too large for field event",
        ),
        (
            "code = { event = 0xc7, umsak = 1 }\nconfig = 0x1c7",
            "no field umsak",
        ),
        ("code = { event = 0xc7, umask = 1 }", "`config` is missing"),
        (
            "code = { event = 1 }\nconfig = 1\npmu = \"unheard_of\"",
            "PMU unheard_of",
        ),
        // Numbers of the kernel's interface are in no table of a processor.
        ("code = { config = 1 }\npmu = \"software\"", ""),
        ("alias = \"e\"", ""),
    ] {
        let found = problems(event);
        assert_eq!(found.is_empty(), problem.is_empty(), "{event}: {found}");
        assert!(found.contains(problem), "{event}: {found}");
    }
}

/// The exceptions: floating point of any precision, five events on four counters of a thread; eight
/// memory channels on a data fabric with four counters.
#[test]
fn groups_fit_the_counters() {
    let multiplexed: Vec<String> = Catalog::builtin()
        .iter()
        .flat_map(|uarch| {
            let large = uarch
                .groups
                .iter()
                .filter(|(_, group)| !group.fits(uarch, Room::WITH_SMT));
            large.map(|(name, _)| format!("{} {name}", uarch.id))
        })
        .collect();
    assert_eq!(
        multiplexed,
        ["zen2 MEM", "zen3 MEM", "clx FLOPS", "skx FLOPS"]
    );
}

/// A ratio above 1 would mean that more requests missed than were made.
#[test]
fn misses_of_a_cache_are_requests_to_it() {
    let mut checked = 0;
    for uarch in Catalog::builtin().iter() {
        for (group, metric) in [("L2CACHE", "l2_miss_ratio"), ("L3CACHE", "l3_miss_ratio")] {
            let Some(group) = uarch.groups.get(group) else {
                continue;
            };
            let mut metrics = group.metrics.iter();
            let ratio = metrics.find(|found| found.name == metric).expect("a ratio");
            // Every request misses: each event of hits is 0, the others are equal.
            let hits = |name: &str| name.contains("HIT") || name.contains("hit_l2");
            let count = |name: &str| {
                let event = group.events.get(name)?;
                Some(if hits(event) { 0.0 } else { 1000.0 })
            };
            let value = ratio.formula.evaluate(count).expect("a value");
            assert!((value - 1.0).abs() < 1e-9, "{} {metric}: {value}", uarch.id);
            // On Intel, the mask of the misses is a part of the mask of the requests.
            let mask = |name: &str| Some(*uarch.events.get(name)?.code.get("umask")?);
            for [misses, requests] in [
                ["L2_RQSTS.MISS", "L2_RQSTS.REFERENCES"],
                ["LONGEST_LAT_CACHE.MISS", "LONGEST_LAT_CACHE.REFERENCE"],
            ] {
                if let (Some(misses), Some(requests)) = (mask(misses), mask(requests)) {
                    assert_eq!(misses & !requests, 0, "{}", uarch.id);
                }
            }
            checked += 1;
        }
    }
    assert!(checked >= 60, "{checked}");
}
