//! The vendors' event files, as tools/perf has them compiled in (tools/perf/pmu-events/jevents.py): read from the program,
//! which lists those of its own processor only.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use perfevents::{CORE_PMU, CpuId, Device, Event, Uarch, WORDS};
use regex::Regex;

use super::image::Image;

/// Its names of the core's PMU.
const CORE_PMUS: [&str; 3] = ["default_core", "cpu_core", "cpu_atom"];
/// Name of the PMU that its string of all strings begins with.
const FIRST: &[u8] = b"default_core\0";
/// Off-core events have one code for each of the two registers; the files have the first.
const OFFCORE: [u64; 2] = [0xb7, 0xbb];
/// Bits of MIDR_EL1 that are not a revision.
const MIDR: u32 = 0xff0f_fff0;

type Terms = BTreeMap<String, u64>;

/// The processors of one line of `mapfile.csv`.
pub struct Cpus {
    /// As `mapfile.csv` has them.
    pub pattern: String,
    kind: Kind,
    /// PMU and terms of events by name, in small letters.
    events: HashMap<String, Vec<(String, Terms)>>,
}

enum Kind {
    /// `GenuineIntel-6-55-4`, `0x004e1202`.
    Text(Regex),
    Midr(u32),
}

/// All of them.
pub struct Perf {
    cpus: Vec<Cpus>,
}

impl Cpus {
    /// Whether the processor is one of them.
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

    /// The register of an Arm core.
    pub fn midr(&self) -> Option<u32> {
        match self.kind {
            Kind::Midr(midr) => Some(midr),
            Kind::Text(_) => None,
        }
    }

    /// The PMUs of its cores: one where all are of a kind.
    pub fn cores(&self) -> BTreeSet<&str> {
        let events = self.events.values().flatten();
        let pmus = events.map(|(pmu, _)| pmu.as_str());
        pmus.filter(|pmu| CORE_PMUS.contains(pmu)).collect()
    }
}

impl Perf {
    /// Those of several programs.
    pub fn read(programs: &[impl AsRef<Path>]) -> Result<Self> {
        let mut cpus = Vec::new();
        for program in programs {
            let program = program.as_ref();
            let data =
                fs::read(program).with_context(|| format!("reading {}", program.display()))?;
            let found = Image::new(&data).and_then(|image| Layout(image).cpus());
            cpus.extend(found.with_context(|| {
                format!(
                    "{}: its event tables are laid out in another way",
                    program.display()
                )
            })?);
        }
        Ok(Self { cpus })
    }

    /// All lines of `mapfile.csv`.
    pub fn cpus(&self) -> impl Iterator<Item = &Cpus> {
        self.cpus.iter()
    }

    /// The words that the files of each processor of the microarchitecture have for the event.
    pub fn words(&self, uarch: &Uarch, name: &str, event: &Event) -> Vec<[u64; WORDS]> {
        let Some(device) = Device::known(uarch, &event.pmu) else {
            return Vec::new();
        };
        let name = name.to_lowercase();
        let mut words = BTreeSet::new();
        for cpu in cpus_of(uarch) {
            // As in perf, the first line that fits is the one.
            let Some(cpus) = self.cpus.iter().find(|cpus| cpus.matches(&cpu)) else {
                continue;
            };
            for (pmu, terms) in cpus.events.get(&name).into_iter().flatten() {
                if is_same(pmu, &cpu, event) {
                    // A field that the PMU does not have is another encoding, whichever.
                    let encoding = device.encode_fields(&adapted(terms, event));
                    words.insert(encoding.map_or([u64::MAX; WORDS], |encoding| encoding.config));
                }
            }
        }
        words.into_iter().collect()
    }
}

/// One processor for each that the table names.
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

/// Whether an event of its PMU is one of the event's. Names of uncore events are of one kind of PMU each.
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

/// Its terms as we would write them.
fn adapted(terms: &Terms, event: &Event) -> Terms {
    let mut terms = terms.clone();
    // How often to sample.
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

/// Its tables, as they lie in memory.
struct Layout<'a>(Image<'a>);

/// `struct pmu_table_entry` of one PMU.
struct Table {
    name: u32,
    events: Vec<u32>,
}

impl<'a> Layout<'a> {
    /// `pmu_events_map`: pointers to architecture, processor and tables, and how many tables.
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
                let count = self.0.number(place + 24).context("a map that ends")?;
                let tables = (0..u64::from(count)).map(|index| self.table(tables + 16 * index));
                let tables: Option<Vec<Table>> = tables.collect();
                lines.push((arch, pattern, tables.context("a table that ends")?));
            }
        }
        ensure!(!lines.is_empty(), "no map of processors");
        let tables: Vec<&Table> = lines.iter().flat_map(|(_, _, tables)| tables).collect();
        let strings = self.strings(&tables).context("no string of all strings")?;
        let line = |(arch, pattern, tables): &(&str, &str, Vec<Table>)| {
            let mut events: HashMap<_, Vec<_>> = HashMap::new();
            for table in tables {
                let pmu = self
                    .0
                    .text(strings + u64::from(table.name))
                    .context("no name")?;
                for event in &table.events {
                    let (name, terms) = self
                        .event(strings + u64::from(*event))
                        .context("no event")?;
                    let event = events.entry(name.to_lowercase()).or_default();
                    event.push((pmu.to_owned(), terms));
                }
            }
            let kind = match (*arch, pattern.strip_prefix("0x")) {
                ("arm64", Some(digits)) => Kind::Midr(u32::from_str_radix(digits, 16)?),
                // A pattern without stepping is for all of them.
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

    /// Where the string of all strings begins: the place from which every offset is that of an event.
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

    /// Name and terms of an event: strings one after the other, the name the first of them.
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
    // What the program that wrote them did not know.
    let written = text.split(',').filter(|term| !term.ends_with("=None"));
    written.map(term).collect()
}

/// Why its files are not to be believed about an event.
pub fn fault(uarch: &Uarch, name: &str) -> Option<&'static str> {
    match (uarch.id.as_str(), name) {
        ("clx" | "skx", "FP_ARITH_INST_RETIRED.8_FLOPS") => {
            Some("it has the code of 4_FLOPS, which is no union of vectors of 8 elements")
        }
        ("zen2" | "zen3", "fp_ret_sse_avx_ops.all") => {
            Some("it sets bits that are reserved there, and takes one Zen 3 for a Zen 4")
        }
        (
            "zen5",
            "fp_ret_sse_avx_ops.scalar_single_flops"
            | "fp_ret_sse_avx_ops.packed_single_flops"
            | "fp_ret_sse_avx_ops.scalar_double_flops"
            | "fp_ret_sse_avx_ops.packed_double_flops",
        ) => Some("it has the type without the operations, of which it then counts none"),
        ("power9", "PM_RUN_CYC" | "PM_RUN_INST_CMPL") => {
            Some("it takes a programmable counter; ours is the one of the fixed counter")
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
