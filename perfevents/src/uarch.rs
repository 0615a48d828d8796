//! Microarchitectures and the CPUs that they match.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, de};

use crate::{CpuId, Event, Group, Pmu};

/// A microarchitecture, with everything it inherits. Its file in `data/` begins like this:
///
/// ```toml
/// name = "Cascade Lake-SP / Cooper Lake"
/// vendor = "Intel"
/// source = "github.com/intel/perfmon mapfile.csv (CLX)"
/// base = "skx"
/// inherit_sources = ["perfmon", "linux", "kernel", "libpfm4", "likwid"]
///
/// [[match.cpuid]]
/// vendor = "GenuineIntel"
/// family = 0x06
/// models = [0x55]
/// steppings = ["5-15"]
/// ```
///
/// [PMUs](Pmu), [events](Event) and [groups](Group) follow.
#[derive(Clone, Debug)]
pub struct Uarch {
    /// Name of the file without its extension: short, unique, stable.
    pub id: String,
    /// Common name.
    pub name: String,
    /// Maker.
    pub vendor: String,
    /// Where the identification comes from.
    pub source: String,
    /// The CPUs of this microarchitecture.
    pub matches: Match,
    /// The PMUs by their names in sysfs, as [`Event::pmu`] has them.
    pub pmus: BTreeMap<String, Pmu>,
    /// The events by the names that their vendor gives them.
    pub events: BTreeMap<String, Event>,
    /// The groups.
    pub groups: BTreeMap<String, Group>,
}

/// The CPUs of a microarchitecture: those that match one of the entries.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// Entries for x86.
    pub cpuid: Vec<Cpuid>,
    /// Entries for arm64.
    pub midr: Vec<Midr>,
    /// Entries for POWER.
    pub pvr: Vec<Pvr>,
}

impl Match {
    /// Whether no CPU matches.
    pub fn is_empty(&self) -> bool {
        self.cpuid.is_empty() && self.midr.is_empty() && self.pvr.is_empty()
    }

    /// Whether the CPU is one of them. A CPU with an unknown PMU matches all kinds of cores of its
    /// processor.
    pub fn contains(&self, id: &CpuId) -> bool {
        match id {
            CpuId::X86 {
                vendor,
                family,
                model,
                stepping,
                pmu,
            } => self.cpuid.iter().any(|entry| {
                let pmus = entry.pmu.as_deref().zip(pmu.as_deref());
                entry.vendor == *vendor
                    && entry.family == *family
                    && entry.models.contains(*model)
                    && entry
                        .steppings
                        .as_ref()
                        .is_none_or(|all| all.contains(*stepping))
                    && pmus.is_none_or(|(entry, found)| entry == found)
            }),
            CpuId::Arm64 { midr } => self.midr.iter().any(|entry| {
                entry.implementer == midr >> 24 && entry.parts.contains(midr >> 4 & 0xfff)
            }),
            CpuId::Power { pvr } => {
                let version = pvr >> 16;
                self.pvr
                    .iter()
                    .any(|entry| entry.versions.contains(version))
            }
        }
    }
}

/// x86 processors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpuid {
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// Family, with the extended family added.
    pub family: u32,
    /// Models, with the extended model.
    pub models: Numbers,
    /// Steppings; all when absent.
    pub steppings: Option<Numbers>,
    /// The core PMU in sysfs, on a processor with several kinds of cores.
    pub pmu: Option<String>,
}

/// arm64 cores.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Midr {
    /// Bits 31–24 of `MIDR_EL1`.
    pub implementer: u32,
    /// Bits 15–4.
    pub parts: Numbers,
}

/// POWER processors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pvr {
    /// The upper half of the processor version register.
    pub versions: Numbers,
}

/// Numbers and ranges of numbers: `[0x2a, "0x30-0x4f"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<(u32, u32)>);

impl Numbers {
    /// Whether the number is in one of the ranges.
    pub fn contains(&self, number: u32) -> bool {
        let within = |&(first, last): &(u32, u32)| (first..=last).contains(&number);
        self.0.iter().any(within)
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            if first == last {
                write!(f, "{comma}{first:#x}")?;
            } else {
                write!(f, "{comma}{first:#x}-{last:#x}")?;
            }
        }
        Ok(())
    }
}

/// One element of a list in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Element {
    Number(u32),
    Range(String),
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let elements = Vec::<Element>::deserialize(deserializer)?;
        let ranges: Result<Vec<_>, _> = elements.into_iter().map(range).collect();
        let ranges = ranges.map_err(de::Error::custom)?;
        if ranges.is_empty() {
            return Err(de::Error::custom("no number"));
        }
        Ok(Self(ranges))
    }
}

/// First and last number.
fn range(element: Element) -> Result<(u32, u32), String> {
    let text = match element {
        Element::Number(number) => return Ok((number, number)),
        Element::Range(text) => text,
    };
    let number = |text: &str| match text.trim().strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.trim().parse().ok(),
    };
    let range = text
        .split_once('-')
        .and_then(|(first, last)| Some((number(first)?, number(last)?)));
    match range {
        Some((first, last)) if first <= last => Ok((first, last)),
        _ => Err(format!("{text:?} is not a range such as \"0x30-0x4f\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Result<Numbers, toml::de::Error> {
        #[derive(Deserialize)]
        struct File {
            n: Numbers,
        }
        toml::from_str::<File>(&format!("n = {text}")).map(|file| file.n)
    }

    #[test]
    fn numbers_and_ranges_are_parsed() {
        let all = numbers("[0x2a, \"0x30-0x4f\", \"5-7\"]").unwrap();
        assert_eq!(all, Numbers(vec![(0x2a, 0x2a), (0x30, 0x4f), (5, 7)]));
        assert!(all.contains(0x4f) && !all.contains(0x50));
        assert_eq!(all.to_string(), "0x2a, 0x30-0x4f, 0x5-0x7");
        for bad in [
            "[]",
            "[-1]",
            "[\"7-5\"]",
            "[\"x\"]",
            "[\"0x1\"]",
            "[1.5]",
            "7",
        ] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }
}
