//! All microarchitectures.

use std::{collections::BTreeMap, fs, io, mem, path::Path, sync::OnceLock};

use crate::{CpuId, EventTable, EventTableError, Meaning, Uarch};

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
        self.iter().filter(move |uarch| uarch.matches(id))
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
