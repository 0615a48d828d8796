//! The vendors' event files, which perf has compiled in (tools/perf/pmu-events/jevents.py). They
//! are read from the executable, because perf lists only the events of the running processor.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use perfevents::{CORE_PMU, CpuId, Device, Event, Uarch, WORDS};
use regex::Regex;

use super::image::Image;

/// perf's names of the core's PMU.
const CORE_PMUS: [&str; 3] = ["default_core", "cpu_core", "cpu_atom"];
/// Name of the PMU at the start of `big_c_string`.
const FIRST: &[u8] = b"default_core\0";
/// Codes of off-core events, one for each of the two registers. The files have the first.
const OFFCORE: [u64; 2] = [0xb7, 0xbb];
/// Bits of MIDR_EL1 without the revision.
const MIDR: u32 = 0xff0f_fff0;

type Terms = BTreeMap<String, u64>;

/// The processors of one line of `mapfile.csv`.
pub struct Cpus {
    /// The pattern in `mapfile.csv`.
    pub pattern: String,
    kind: Kind,
    /// PMU and terms of events by name, in lower case.
    events: HashMap<String, Vec<(String, Terms)>>,
}

enum Kind {
    /// `GenuineIntel-6-55-4`, `0x004e1202`.
    Text(Regex),
    Midr(u32),
}

/// The event files of all processors.
pub struct Perf {
    cpus: Vec<Cpus>,
}

impl Cpus {
    /// Whether the line matches the processor.
    pub fn matches(&self, cpu: &CpuId) -> bool {
        match (&self.kind, cpu) {
            (Kind::Midr(own), CpuId::Arm64 { midr }) => own & MIDR == midr & MIDR,
            (Kind::Text(regex), CpuId::Power { pvr }) => regex.is_match(&format!("{pvr:#010x}")),
            (
                Kind::Text(regex),
                CpuId::X86 {
                    vendor,
                    family,
                    model,
                    stepping,
                    ..
                },
            ) => regex.is_match(&format!("{vendor}-{family}-{model:X}-{stepping:X}")),
            _ => false,
        }
    }

    /// MIDR_EL1 of an Arm core.
    pub fn midr(&self) -> Option<u32> {
        match self.kind {
            Kind::Midr(midr) => Some(midr),
            Kind::Text(_) => None,
        }
    }

    /// The PMUs of the cores, one for each kind of core.
    pub fn cores(&self) -> BTreeSet<&str> {
        let events = self.events.values().flatten();
        let pmus = events.map(|(pmu, _)| pmu.as_str());
        pmus.filter(|pmu| CORE_PMUS.contains(pmu)).collect()
    }
}

impl Perf {
    /// Reads the event files in several builds of perf.
    pub fn read(programs: &[impl AsRef<Path>]) -> Result<Self> {
        let mut cpus = Vec::new();
        for program in programs {
            let program = program.as_ref();
            let data =
                fs::read(program).with_context(|| format!("reading {}", program.display()))?;
            let found = Image::new(&data).and_then(|image| Layout(image).cpus());
            cpus.extend(found.with_context(|| {
                format!(
                    "{}: unexpected layout of the event tables",
                    program.display()
                )
            })?);
        }
        Ok(Self { cpus })
    }

    /// The lines of `mapfile.csv`.
    pub fn cpus(&self) -> impl Iterator<Item = &Cpus> {
        self.cpus.iter()
    }

    /// The words for the event in the files of each processor of the microarchitecture.
    pub fn words(&self, uarch: &Uarch, name: &str, event: &Event) -> Vec<[u64; WORDS]> {
        let Some(device) = Device::known(uarch, &event.pmu) else {
            return Vec::new();
        };
        let name = name.to_lowercase();
        let mut words = BTreeSet::new();
        for cpu in cpus_of(uarch) {
            // As in perf, the first matching line decides.
            let Some(cpus) = self.cpus.iter().find(|cpus| cpus.matches(&cpu)) else {
                continue;
            };
            for (pmu, terms) in cpus.events.get(&name).into_iter().flatten() {
                if is_same(pmu, &cpu, event) {
                    // An unknown field counts as a different encoding.
                    let encoding = device.encode_fields(&adapted(terms, event));
                    words.insert(encoding.map_or([u64::MAX; WORDS], |encoding| encoding.config));
                }
            }
        }
        words.into_iter().collect()
    }
}

/// One processor for each model in the table.
fn cpus_of(uarch: &Uarch) -> Vec<CpuId> {
    let numbers = |ranges: &[(u32, u32)]| -> Vec<u32> {
        ranges
            .iter()
            .flat_map(|&(first, last)| first..=last)
            .collect()
    };
    let mut cpus = Vec::new();
    for entry in &uarch.matches.cpuid {
        let stepping = entry
            .steppings
            .as_ref()
            .map_or(0, |steppings| steppings.0[0].0);
        cpus.extend(
            numbers(&entry.models.0)
                .into_iter()
                .map(|model| CpuId::X86 {
                    vendor: entry.vendor.clone(),
                    family: entry.family,
                    model,
                    stepping,
                    pmu: entry.pmu.clone(),
                }),
        );
    }
    for entry in &uarch.matches.midr {
        let parts = numbers(&entry.parts.0).into_iter();
        cpus.extend(parts.map(|part| CpuId::Arm64 {
            midr: entry.implementer << 24 | 0xf << 16 | part << 4,
        }));
    }
    for entry in &uarch.matches.pvr {
        let versions = numbers(&entry.versions.0).into_iter();
        cpus.extend(versions.map(|version| CpuId::Power {
            pvr: version << 16 | 0x1202,
        }));
    }
    cpus
}

/// Whether an event of perf's PMU is on the same PMU as ours. Names of uncore events are unique to
/// a kind of PMU.
fn is_same(pmu: &str, cpu: &CpuId, event: &Event) -> bool {
    let kind = match cpu {
        CpuId::X86 {
            pmu: Some(kind), ..
        } if pmu != "default_core" => Some(kind),
        _ => None,
    };
    let is_core = CORE_PMUS.contains(&pmu);
    is_core == (event.pmu == CORE_PMU) && (!is_core || kind.is_none_or(|kind| kind == pmu))
}

/// perf's terms in our fields.
fn adapted(terms: &Terms, event: &Event) -> Terms {
    let mut terms = terms.clone();
    // The sampling period.
    terms.remove("period");
    let [first, second] = OFFCORE;
    if terms.contains_key("offcore_rsp")
        && terms.get("event") == Some(&first)
        && event.code.get("event") == Some(&second)
    {
        terms.insert("event".to_owned(), second);
    }
    terms
}

/// The tables in memory.
struct Layout<'a>(Image<'a>);

/// `struct pmu_table_entry` of one PMU.
struct Table {
    name: u32,
    events: Vec<u32>,
}

impl<'a> Layout<'a> {
    /// `pmu_events_map`: pointers to architecture, processor and tables, and the number of tables.
    fn cpus(&self) -> Result<Vec<Cpus>> {
        let mut lines = Vec::new();
        for (&place, &arch) in &self.0.pointers {
            let pointer = |offset| self.0.pointers.get(&(place + offset)).copied();
            let (Some(pattern), Some(tables)) = (pointer(8), pointer(16)) else {
                continue;
            };
            let arch = self
                .0
                .text(arch)
                .filter(|arch| ["x86", "arm64", "powerpc"].contains(arch));
            let pattern = self.0.text(pattern).filter(|pattern| is_cpu(pattern));
            if let (Some(arch), Some(pattern)) = (arch, pattern) {
                let count = self.0.number(place + 24).context("truncated map")?;
                let tables = (0..u64::from(count)).map(|index| self.table(tables + 16 * index));
                let tables: Option<Vec<Table>> = tables.collect();
                lines.push((arch, pattern, tables.context("truncated table")?));
            }
        }
        ensure!(!lines.is_empty(), "pmu_events_map not found");
        let tables: Vec<&Table> = lines.iter().flat_map(|(_, _, tables)| tables).collect();
        let strings = self.strings(&tables).context("big_c_string not found")?;
        let line = |(arch, pattern, tables): &(&str, &str, Vec<Table>)| {
            let mut events: HashMap<_, Vec<_>> = HashMap::new();
            for table in tables {
                let pmu = self
                    .0
                    .text(strings + u64::from(table.name))
                    .context("PMU without name")?;
                for event in &table.events {
                    let (name, terms) = self
                        .event(strings + u64::from(*event))
                        .context("event without terms")?;
                    let event = events.entry(name.to_lowercase()).or_default();
                    event.push((pmu.to_owned(), terms));
                }
            }
            let kind = match (*arch, pattern.strip_prefix("0x")) {
                ("arm64", Some(digits)) => Kind::Midr(u32::from_str_radix(digits, 16)?),
                // A pattern without stepping matches all steppings.
                _ => Kind::Text(Regex::new(&format!("^(?:{pattern})(?:-[0-9A-F]+)?$"))?),
            };
            Ok(Cpus {
                pattern: (*pattern).to_owned(),
                kind,
                events,
            })
        };
        lines.iter().map(line).collect()
    }

    fn table(&self, place: u64) -> Option<Table> {
        let events = *self.0.pointers.get(&place)?;
        let count = u64::from(self.0.number(place + 8)?);
        Some(Table {
            name: self.0.number(place + 12)?,
            events: (0..count)
                .map(|index| self.0.number(events + 4 * index))
                .collect::<Option<_>>()?,
        })
    }

    /// The address of `big_c_string`: from there, every offset in the tables leads to an event.
    fn strings(&self, tables: &[&Table]) -> Option<u64> {
        let places = self.0.segments.iter().flat_map(|(start, data)| {
            let all = data.windows(FIRST.len()).enumerate();
            all.filter(|(_, window)| *window == FIRST)
                .map(move |(offset, _)| start + offset as u64)
        });
        places.into_iter().find(|place| {
            tables.iter().all(|table| {
                let mut events = table.events.iter();
                events.all(|event| self.event(place + u64::from(*event)).is_some())
            })
        })
    }

    /// Name and terms of an event. Its strings follow one another; the name is the first.
    fn event(&self, place: u64) -> Option<(&'a str, Terms)> {
        let mut texts = self.0.from(place)?.split(|byte| *byte == 0).take(6);
        let name = str::from_utf8(texts.next()?).ok()?;
        let terms = texts.find_map(|text| terms(str::from_utf8(text).ok()?))?;
        Some((name, terms))
    }
}

fn is_cpu(pattern: &str) -> bool {
    ["GenuineIntel-", "AuthenticAMD-", "0x"]
        .iter()
        .any(|start| pattern.starts_with(start))
}

/// `event=0xc7,period=100003,umask=1`.
fn terms(text: &str) -> Option<Terms> {
    let term = |term: &str| {
        let (field, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => value.parse().ok()?,
        };
        Some((field.to_owned(), value))
    };
    if !text.contains('=') {
        return None;
    }
    // jevents.py writes `None` for unknown values.
    let written = text.split(',').filter(|term| !term.ends_with("=None"));
    written.map(term).collect()
}

/// Why the files' encoding of an event is wrong, or differs.
pub fn fault(uarch: &Uarch, name: &str) -> Option<&'static str> {
    match (uarch.id.as_str(), name) {
        ("clx" | "skx", "FP_ARITH_INST_RETIRED.8_FLOPS") => {
            Some("the code of 4_FLOPS, not the union of vectors of 8 elements")
        }
        ("zen2" | "zen3", "fp_ret_sse_avx_ops.all") => {
            Some("sets reserved bits; one Zen 3 is listed as Zen 4")
        }
        (
            "zen5",
            "fp_ret_sse_avx_ops.scalar_single_flops"
            | "fp_ret_sse_avx_ops.packed_single_flops"
            | "fp_ret_sse_avx_ops.scalar_double_flops"
            | "fp_ret_sse_avx_ops.packed_double_flops",
        ) => Some("selects the type without operations, which counts nothing"),
        ("power9", "PM_RUN_CYC" | "PM_RUN_INST_CMPL") => {
            Some("the code of a programmable counter; ours is that of the fixed counter")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_fields_and_values() {
        let read = terms("event=0xb7,period=100003,umask=1,inv").expect("terms");
        let read: Vec<_> = read
            .iter()
            .map(|(field, value)| (field.as_str(), *value))
            .collect();
        assert_eq!(
            read,
            [
                ("event", 0xb7),
                ("inv", 1),
                ("period", 100_003),
                ("umask", 1)
            ]
        );
        for text in ["", "floating point", "a text, with = signs", "event=x"] {
            assert_eq!(terms(text), None, "{text}");
        }
    }

    #[test]
    fn patterns_are_those_of_mapfile() {
        let cpus = |pattern: &str| Cpus {
            pattern: pattern.to_owned(),
            kind: Kind::Text(
                Regex::new(&format!("^(?:{pattern})(?:-[0-9A-F]+)?$")).expect("valid"),
            ),
            events: HashMap::new(),
        };
        let intel = |model, stepping| CpuId::X86 {
            vendor: "GenuineIntel".to_owned(),
            family: 6,
            model,
            stepping,
            pmu: None,
        };
        let skx = cpus("GenuineIntel-6-55-[01234]");
        assert!(skx.matches(&intel(0x55, 4)) && !skx.matches(&intel(0x55, 7)));
        let hsw = cpus("GenuineIntel-6-(3C|45|46)");
        assert!(hsw.matches(&intel(0x45, 11)) && !hsw.matches(&intel(0x4, 5)));
        let power9 = cpus("0x004e[[:xdigit:]]{4}");
        assert!(power9.matches(&CpuId::Power { pvr: 0x004e_1202 }));
    }
}
