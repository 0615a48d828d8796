//! Sources of encodings: tables and documents that publish them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de};

/// A publisher of encodings, independent of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The maker of the processor.
    Vendor,
    /// Drivers of the Linux kernel.
    Kernel,
    /// libpfm4, the library of perfmon2.
    Libpfm4,
    /// LIKWID.
    Likwid,
}

/// A table or document of a [`Source`], by its name in `sources`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Manuals of the vendor.
    Vendor,
    /// Intel's event files, github.com/intel/perfmon.
    Perfmon,
    /// The vendors' event files in the kernel, tools/perf/pmu-events.
    Linux,
    /// Arm's event files.
    Arm,
    /// The event lists of Intel's PerfSpect.
    Perfspect,
    /// Drivers of the kernel.
    Kernel,
    /// Tables of libpfm4.
    Libpfm4,
    /// Tables of LIKWID.
    Likwid,
}

/// The origins of one encoding, each with its own name of the event where that differs; the name
/// `+` stands for several events that together make the encoding.
pub type Origins = BTreeMap<Origin, Option<String>>;

const NAMES: [(&str, Origin); 8] = [
    ("vendor", Origin::Vendor),
    ("perfmon", Origin::Perfmon),
    ("linux", Origin::Linux),
    ("arm", Origin::Arm),
    ("perfspect", Origin::Perfspect),
    ("kernel", Origin::Kernel),
    ("libpfm4", Origin::Libpfm4),
    ("likwid", Origin::Likwid),
];

impl Origin {
    /// The publisher. Origins of one publisher do not confirm one another.
    pub fn source(self) -> Source {
        match self {
            Self::Vendor | Self::Perfmon | Self::Linux | Self::Arm | Self::Perfspect => {
                Source::Vendor
            }
            Self::Kernel => Source::Kernel,
            Self::Libpfm4 => Source::Libpfm4,
            Self::Likwid => Source::Likwid,
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, origin)| *origin).ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            format!("unknown source {text:?}; known are {names}")
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(_, origin)| origin == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Reads `["perfmon", "libpfm4=NAME"]`.
pub fn origins<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Origins>, D::Error> {
    let mut origins = Origins::new();
    for text in Vec::<String>::deserialize(deserializer)? {
        let (origin, name) = match text.split_once('=') {
            Some((origin, name)) => (origin, Some(name.to_owned())),
            None => (text.as_str(), None),
        };
        let origin = origin.parse().map_err(de::Error::custom)?;
        if origins.insert(origin, name).is_some() {
            return Err(de::Error::custom(format!(
                "source {origin} is listed twice"
            )));
        }
    }
    Ok(Some(origins))
}

/// The publishers of these origins, each once.
pub fn sources(origins: &Origins) -> Vec<Source> {
    let mut sources: Vec<Source> = origins.keys().map(|origin| origin.source()).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}
