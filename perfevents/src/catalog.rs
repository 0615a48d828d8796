//! All microarchitectures.

use std::{collections::BTreeMap, fs, io, mem, path::Path, sync::OnceLock};

use serde::Deserialize;

use crate::{CpuId, EventTable, EventTableError, Match, Meaning, Uarch};

/// File names without extension, and their content.
static DATA: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/data.rs"));

/// A data file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not TOML, or has a wrong key or value.
    #[error("{id}.toml: {source}")]
    Content {
        /// Name of the file without its extension.
        id: String,
        /// The problem, with line and column.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// An entry contradicts the base of the table, or is incomplete.
    #[error("{id}.toml: {source}")]
    Table {
        /// Name of the file without its extension.
        id: String,
        /// The problem.
        #[source]
        source: EventTableError,
    },
}

/// The table of the kernel's generic events.
const GENERIC: &str = "generic";

/// Unit and meaning of each metric.
static MEANINGS: &str = include_str!("../data/metrics.toml");

/// The first keys of a data file, before its PMUs, events and groups.
#[derive(Debug, Deserialize)]
struct Head {
    base: Option<String>,
    #[serde(rename = "match")]
    matches: Match,
}

impl Head {
    fn of(text: &str) -> Result<Self, toml::de::Error> {
        let is_table = |line: &str| line.starts_with('[') && !line.contains("[match");
        let mut length = 0;
        for line in text.split_inclusive('\n') {
            if is_table(line) {
                break;
            }
            length += line.len();
        }
        toml::from_str(&text[..length])
    }
}

/// Every known microarchitecture.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    uarchs: Vec<Uarch>,
}

impl Catalog {
    /// The built-in tables.
    ///
    /// # Panics
    ///
    /// When an embedded file is wrong, which the tests of this crate exclude.
    pub fn builtin() -> &'static Self {
        static BUILTIN: OnceLock<Catalog> = OnceLock::new();
        BUILTIN
            .get_or_init(|| Self::parse(DATA.iter().copied()).expect("the embedded data is valid"))
    }

    /// The built-in tables of these CPUs and of the kernel's generic events, with those on which
    /// they are based. The others are not parsed: all together take tens of milliseconds.
    ///
    /// # Panics
    ///
    /// When an embedded file is wrong, which the tests of this crate exclude.
    pub fn builtin_of(cpus: &[CpuId]) -> Self {
        let heads: Vec<_> = DATA
            .iter()
            .map(|(id, text)| (*id, Head::of(text).expect("the embedded data is valid")))
            .collect();
        let mut wanted: Vec<&str> = vec![GENERIC];
        let matching = heads
            .iter()
            .filter(|(_, head)| cpus.iter().any(|cpu| head.matches.contains(cpu)));
        wanted.extend(matching.map(|(id, _)| *id));
        let mut next = 0;
        while let Some(id) = wanted.get(next) {
            next += 1;
            let head = heads.iter().find(|(known, _)| known == id);
            let base = head.and_then(|(_, head)| head.base.as_deref());
            wanted.extend(base.filter(|base| !wanted.contains(base)));
        }
        let files = DATA.iter().filter(|(id, _)| wanted.contains(id));
        Self::parse(files.copied()).expect("the embedded data is valid")
    }

    /// Reads data files, given as names without extension and content. Each may have another one as
    /// its base.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        Self::resolve(files, &Self::default())
    }

    /// Reads the data files (`*.toml`) of a directory. Their bases are other files of the directory
    /// or built-in tables; a file that has its own name as base amends the built-in table.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or is wrong.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let is_data = path
                .extension()
                .is_some_and(|extension| extension == "toml");
            if let (true, Some(id)) = (is_data, path.file_stem().and_then(|id| id.to_str())) {
                files.push((id.to_owned(), fs::read_to_string(&path)?));
            }
        }
        files.sort();
        let files = files.iter().map(|(id, text)| (id.as_str(), text.as_str()));
        Self::resolve(files, Self::builtin())
    }

    /// Completes each file with its base: another of the files or, failing that, one of `others`.
    fn resolve<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        others: &Self,
    ) -> Result<Self, Error> {
        let mut tables = Vec::new();
        for (index, (id, text)) in files.into_iter().enumerate() {
            let table: EventTable = toml::from_str(text).map_err(|source| Error::Content {
                id: id.to_owned(),
                source: source.into(),
            })?;
            tables.push((index, id, table));
        }
        let mut uarchs: BTreeMap<usize, Uarch> = BTreeMap::new();
        // Each pass completes the tables whose base the passes before have completed.
        while !tables.is_empty() {
            let waiting: Vec<(&str, Option<String>)> = tables
                .iter()
                .map(|(_, id, table)| (*id, table.base.clone()))
                .collect();
            let is_waiting = |base: &str| waiting.iter().any(|(id, _)| *id == base);
            let before = tables.len();
            for (index, id, table) in mem::take(&mut tables) {
                let error = |source| Error::Table {
                    id: id.to_owned(),
                    source,
                };
                let base = match &table.base {
                    Some(base) if base != id && is_waiting(base) => {
                        tables.push((index, id, table));
                        continue;
                    }
                    Some(base) => {
                        let mut own = uarchs.values().filter(|_| base != id);
                        let found = own.find(|uarch| uarch.id == *base);
                        let found = found.or_else(|| others.get(base));
                        let unknown = || {
                            error(if base == id {
                                EventTableError::Cycle(vec![id.to_owned(), base.clone()])
                            } else {
                                EventTableError::UnknownBase(base.clone())
                            })
                        };
                        Some(found.ok_or_else(unknown)?)
                    }
                    None => None,
                };
                let uarch = table.into_uarch(id, base).map_err(error)?;
                uarchs.insert(index, uarch);
            }
            if tables.len() == before {
                return Err(cycle(&waiting));
            }
        }
        Ok(Self {
            uarchs: uarchs.into_values().collect(),
        })
    }

    /// Adds the microarchitectures of `other`, in place of those with the same id.
    #[must_use]
    pub fn overridden_by(mut self, other: Self) -> Self {
        self.uarchs
            .retain(|uarch| other.iter().all(|own| own.id != uarch.id));
        self.uarchs.extend(other.uarchs);
        self
    }

    /// The microarchitecture with this id.
    pub fn get(&self, id: &str) -> Option<&Uarch> {
        self.iter().find(|uarch| uarch.id == id)
    }

    /// Unit and meaning of each metric, by name.
    ///
    /// # Panics
    ///
    /// When the embedded file is wrong, which the tests of this crate exclude.
    pub fn meanings() -> &'static BTreeMap<String, Meaning> {
        static READ: OnceLock<BTreeMap<String, Meaning>> = OnceLock::new();
        READ.get_or_init(|| toml::from_str(MEANINGS).expect("the embedded data is valid"))
    }

    /// The kernel's events, available on every CPU.
    pub fn generic(&self) -> Option<&Uarch> {
        self.get(GENERIC)
    }

    /// All microarchitectures.
    pub fn iter(&self) -> impl Iterator<Item = &Uarch> {
        self.uarchs.iter()
    }

    /// The microarchitectures that match the CPU: several if its processor has several kinds of
    /// cores and the PMU is unknown.
    pub fn candidates(&self, id: &CpuId) -> impl Iterator<Item = &Uarch> {
        self.iter().filter(move |uarch| uarch.matches.contains(id))
    }

    /// The microarchitecture of the CPU. `None` for an unknown CPU and for several
    /// [`candidates`](Self::candidates).
    pub fn lookup(&self, id: &CpuId) -> Option<&Uarch> {
        let mut candidates = self.candidates(id);
        candidates.next().filter(|_| candidates.next().is_none())
    }
}

/// Follows bases, each of which waits for the next, until one comes again.
fn cycle(waiting: &[(&str, Option<String>)]) -> Error {
    let mut chain: Vec<&str> = Vec::new();
    let mut next = waiting.first().map(|(id, _)| *id);
    while let Some(id) = next {
        if let Some(start) = chain.iter().position(|seen| *seen == id) {
            chain.drain(..start);
            chain.push(id);
            break;
        }
        chain.push(id);
        let found = waiting.iter().find(|(waiting, _)| *waiting == id);
        next = found.and_then(|(_, base)| base.as_deref());
    }
    Error::Table {
        id: chain.first().copied().unwrap_or_default().to_owned(),
        source: EventTableError::Cycle(chain.iter().map(|&id| id.to_owned()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU of a microarchitecture; none if no CPU matches.
    fn cpu_of(matches: &Match) -> Option<CpuId> {
        let x86 = matches.cpuid.first().map(|entry| CpuId::X86 {
            vendor: entry.vendor.clone(),
            family: entry.family,
            model: entry.models.0[0].0,
            stepping: entry.steppings.as_ref().map_or(0, |all| all.0[0].0),
            pmu: entry.pmu.clone(),
        });
        let arm64 = matches.midr.first().map(|entry| CpuId::Arm64 {
            midr: entry.implementer << 24 | entry.parts.0[0].0 << 4,
        });
        let power = matches.pvr.first().map(|entry| CpuId::Power {
            pvr: entry.versions.0[0].0 << 16,
        });
        x86.or(arm64).or(power)
    }

    #[test]
    fn tables_of_single_cpus_are_those_of_the_catalog() {
        let all = Catalog::builtin();
        let mut cpus = 0;
        for uarch in all.iter() {
            let Some(cpu) = cpu_of(&uarch.matches) else {
                continue;
            };
            cpus += 1;
            let own = Catalog::builtin_of(std::slice::from_ref(&cpu));
            let found = own.lookup(&cpu).expect("known");
            assert_eq!(format!("{found:?}"), format!("{uarch:?}"));
            assert!(own.generic().is_some());
            assert!(own.iter().count() < all.iter().count() / 2, "{}", uarch.id);
        }
        // All but the generic events.
        assert_eq!(cpus, all.iter().count() - 1);
        assert_eq!(Catalog::builtin_of(&[]).iter().count(), 1);
    }
}
