//! LIKWID's formulas beside ours: the same counts must give the same result.

use std::{collections::BTreeMap, fs, path::Path};

use perfevents::{Catalog, Formula, Group, Uarch};

/// Our metric, LIKWID's group and name, and LIKWID's unit in ours.
const METRICS: [(&str, &str, &str, f64); 20] = [
    ("sp_flops", "FLOPS_SP", "SP [MFLOP/s]", 1e6),
    ("dp_flops", "FLOPS_DP", "DP [MFLOP/s]", 1e6),
    ("l2_load_bw", "L2", "L2D load bandwidth [MBytes/s]", 1e6),
    ("l2_evict_bw", "L2", "L2D evict bandwidth [MBytes/s]", 1e6),
    ("l2_bw", "L2", "L2 bandwidth [MBytes/s]", 1e6),
    ("l2_request_rate", "L2CACHE", "L2 request rate", 1.0),
    ("l2_miss_rate", "L2CACHE", "L2 miss rate", 1.0),
    ("l2_miss_ratio", "L2CACHE", "L2 miss ratio", 1.0),
    ("l3_request_rate", "L3CACHE", "L3 request rate", 1.0),
    ("l3_miss_rate", "L3CACHE", "L3 miss rate", 1.0),
    ("l3_miss_ratio", "L3CACHE", "L3 miss ratio", 1.0),
    ("l3_load_bw", "L3", "L3 load bandwidth [MBytes/s]", 1e6),
    ("l3_evict_bw", "L3", "L3 evict bandwidth [MBytes/s]", 1e6),
    ("l3_bw", "L3", "L3 bandwidth [MBytes/s]", 1e6),
    (
        "mem_read_bw",
        "MEM",
        "Memory read bandwidth [MBytes/s]",
        1e6,
    ),
    (
        "mem_write_bw",
        "MEM",
        "Memory write bandwidth [MBytes/s]",
        1e6,
    ),
    ("mem_bw", "MEM", "Memory bandwidth [MBytes/s]", 1e6),
    ("branch_rate", "BRANCH", "Branch rate", 1.0),
    (
        "branch_miss_rate",
        "BRANCH",
        "Branch misprediction rate",
        1.0,
    ),
    (
        "branch_miss_ratio",
        "BRANCH",
        "Branch misprediction ratio",
        1.0,
    ),
];

/// Result of comparing a formula.
#[derive(Debug, PartialEq)]
pub enum Comparison {
    /// Equal results.
    Same,
    /// The formulas use different events.
    OtherEvents,
    /// Different results: ours and LIKWID's.
    Differs(f64, f64),
}

/// A group of LIKWID.
struct Theirs {
    /// Events by counter.
    events: BTreeMap<String, String>,
    /// Formulas by name.
    metrics: BTreeMap<String, String>,
}

/// Compares all formulas that both have. LIKWID's source has a directory per microarchitecture with
/// a file per group.
pub fn compare(catalog: &Catalog, source: &Path) -> Vec<(String, Comparison)> {
    let mut comparisons = Vec::new();
    for uarch in catalog.iter() {
        let Some(directory) = directory(&uarch.id) else {
            continue;
        };
        for (metric, file, name, unit) in METRICS {
            let path = source.join(format!("groups/{directory}/{file}.txt"));
            let Some(theirs) = fs::read_to_string(path).ok().map(|text| parse(&text)) else {
                continue;
            };
            let ours = uarch.groups.values().find_map(|group| {
                let found = group.metrics.iter().find(|found| found.name == metric)?;
                Some((group, &found.formula))
            });
            let formula = theirs.metrics.get(name).and_then(|text| text.parse().ok());
            if let (Some((group, ours)), Some(formula)) = (ours, formula) {
                let comparison = compare_formulas(uarch, group, ours, &theirs, &formula, unit);
                comparisons.push((format!("{} {metric}", uarch.id), comparison));
            }
        }
    }
    comparisons
}

/// Why our result is right although LIKWID's differs.
pub fn reason(metric: &str) -> Option<&'static str> {
    let (uarch, metric) = metric.split_once(' ')?;
    match (uarch, metric) {
        ("thunderx2", "l3_load_bw" | "l3_bw") => {
            Some("LIKWID subtracts lines that L2 allocates without a fill from L3")
        }
        ("cortex-a72" | "neoverse-n1" | "thunderx2", "l2_load_bw") => {
            Some("LIKWID leaves out instruction fetches")
        }
        ("icx", "l3_bw") => {
            Some("LIKWID uses another event for L2 evictions than in its formula of l3_evict_bw")
        }
        (
            "bdw" | "bdwde" | "bdx" | "clx" | "hsw" | "hsx" | "icl" | "icx" | "skl" | "skx",
            "l2_bw",
        ) => Some("LIKWID adds misses of the instruction cache"),
        (_, "l3_request_rate" | "l3_miss_rate") => Some("LIKWID divides by micro-operations"),
        _ => None,
    }
}

/// Evaluates both formulas with the same counts.
fn compare_formulas(
    uarch: &Uarch,
    group: &Group,
    ours: &Formula,
    theirs: &Theirs,
    formula: &Formula,
    unit: f64,
) -> Comparison {
    // Each counter of LIKWID has a different count. An event on several counters has their sum.
    let mut counts = BTreeMap::new();
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for (index, (counter, event)) in theirs.events.iter().enumerate() {
        let count = f64::from(u32::try_from(index).unwrap_or(0) * 7919 % 1009) + 1000.0;
        counts.insert(counter.as_str(), count);
        *sums.entry(plain(event)).or_default() += count;
    }
    let time = |name: &str| (name == "time").then_some(1.0);
    let of_ours = |name: &str| {
        let event = group
            .events
            .get(name)
            .filter(|event| uarch.events.contains_key(*event));
        let count = event.and_then(|event| sums.get(&plain(event)).copied());
        count.or_else(|| time(name))
    };
    if ours.names().into_iter().any(|name| of_ours(name).is_none()) {
        return Comparison::OtherEvents;
    }
    let of_theirs = |name: &str| counts.get(name).copied().or_else(|| time(name));
    match (ours.evaluate(of_ours), formula.evaluate(of_theirs)) {
        (Some(ours), Some(theirs)) if (ours - theirs * unit).abs() <= ours.abs() * 1e-9 => {
            Comparison::Same
        }
        (Some(ours), Some(theirs)) => Comparison::Differs(ours, theirs * unit),
        _ => Comparison::OtherEvents,
    }
}

/// `EVENTSET` and `METRICS` of a group file.
fn parse(text: &str) -> Theirs {
    let mut theirs = Theirs {
        events: BTreeMap::new(),
        metrics: BTreeMap::new(),
    };
    let mut section = "";
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line {
            "EVENTSET" | "METRICS" | "LONG" => section = line,
            _ if section == "EVENTSET" => {
                if let Some((counter, event)) = line.split_once(char::is_whitespace) {
                    // Options follow a colon.
                    let event = event.trim().split(':').next().unwrap_or_default();
                    theirs.events.insert(counter.to_owned(), event.to_owned());
                }
            }
            _ if section == "METRICS" => {
                if let Some((name, formula)) = line.rsplit_once(char::is_whitespace) {
                    theirs
                        .metrics
                        .insert(name.trim().to_owned(), formula.to_owned());
                }
            }
            _ => {}
        }
    }
    theirs
}

/// The name of an event in a common spelling.
fn plain(event: &str) -> String {
    let name = event.to_uppercase().replace('.', "_");
    let name = name.strip_prefix("UNC_M_").unwrap_or(&name);
    match name {
        "INSTR_RETIRED_ANY" => "INST_RETIRED_ANY",
        "RETIRED_INSTRUCTIONS" => "EX_RET_INSTR",
        "RETIRED_BRANCH_INSTR" => "EX_RET_BRN",
        "RETIRED_MISP_BRANCH_INSTR" => "EX_RET_BRN_MISP",
        "RETIRED_SSE_AVX_FLOPS_ALL" => "FP_RET_SSE_AVX_OPS_ALL",
        "RETIRED_SSE_AVX_FLOPS_SINGLE_ALL" => "FP_RET_SSE_AVX_OPS_SP_ALL",
        "RETIRED_SSE_AVX_FLOPS_DOUBLE_ALL" => "FP_RET_SSE_AVX_OPS_DP_ALL",
        other => other,
    }
    .to_owned()
}

/// LIKWID's name of the microarchitecture.
fn directory(uarch: &str) -> Option<&'static str> {
    Some(match uarch {
        "snb" => "sandybridge",
        "snbep" => "sandybridgeEP",
        "ivb" => "ivybridge",
        "ivt" => "ivybridgeEP",
        "hsw" => "haswell",
        "hsx" => "haswellEP",
        "bdw" => "broadwell",
        "bdwde" => "broadwellD",
        "bdx" => "broadwellEP",
        "skl" => "skylake",
        "skx" => "skylakeX",
        "clx" => "CLX",
        "icl" => "ICL",
        "rkl" => "RKL",
        "tgl" => "TGL",
        "icx" => "ICX",
        "knl" => "knl",
        "glm" => "goldmont",
        "zen1" => "zen",
        "zen2" => "zen2",
        "zen3" => "zen3",
        "neoverse-n1" => "arm8_n1",
        "thunderx2" => "arm8_tx2",
        "cortex-a72" => "arm8",
        "a64fx" => "arm64fx",
        "power9" => "power9",
        _ => return None,
    })
}
