//! All microarchitectures.

use std::{collections::BTreeMap, fs, io, path::Path, sync::OnceLock};

use crate::{CpuId, Meaning, Uarch};

/// File names without extension, and their content.
static DATA: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/data.rs"));

/// A data file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not what it should be.
    #[error("{id}.toml: {source}")]
    Content {
        /// Name of the file without its extension.
        id: String,
        /// What is wrong, with line and column.
        #[source]
        source: Box<toml::de::Error>,
    },
}

/// The table of the kernel's generic events.
const GENERIC: &str = "generic";

/// What each metric is.
static MEANINGS: &str = include_str!("../data/metrics.toml");

/// Every known microarchitecture.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    uarchs: Vec<Uarch>,
}

impl Catalog {
    /// Those the crate was built with.
    ///
    /// # Panics
    ///
    /// When one of the embedded files is wrong, which the tests of this crate exclude.
    pub fn builtin() -> &'static Self {
        static BUILTIN: OnceLock<Catalog> = OnceLock::new();
        BUILTIN
            .get_or_init(|| Self::parse(DATA.iter().copied()).expect("the embedded data is valid"))
    }

    /// Reads data files, given as names without extension and content.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        let uarchs = files.into_iter().map(|(id, text)| {
            let uarch: Uarch = toml::from_str(text).map_err(|source| Error::Content {
                id: id.to_owned(),
                source: source.into(),
            })?;
            Ok::<_, Error>(Uarch {
                id: id.to_owned(),
                ..uarch
            })
        });
        Ok(Self {
            uarchs: uarchs.collect::<Result<_, _>>()?,
        })
    }

    /// Reads the data files (`*.toml`) of a folder.
    ///
    /// # Errors
    ///
    /// When one of them cannot be read, or is wrong.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_data = path
                .extension()
                .is_some_and(|extension| extension == "toml");
            if let (true, Some(id)) = (is_data, path.file_stem().and_then(|id| id.to_str())) {
                files.push((id.to_owned(), fs::read_to_string(&path)?));
            }
        }
        files.sort();
        Self::parse(files.iter().map(|(id, text)| (id.as_str(), text.as_str())))
    }

    /// With those of `other` added, or in place of those with the same id.
    #[must_use]
    pub fn overridden_by(mut self, other: Self) -> Self {
        self.uarchs
            .retain(|uarch| other.iter().all(|own| own.id != uarch.id));
        self.uarchs.extend(other.uarchs);
        self
    }

    /// What each metric is, by name.
    ///
    /// # Panics
    ///
    /// When the embedded file is wrong, which the tests of this crate exclude.
    pub fn meanings() -> &'static BTreeMap<String, Meaning> {
        static READ: OnceLock<BTreeMap<String, Meaning>> = OnceLock::new();
        READ.get_or_init(|| toml::from_str(MEANINGS).expect("the embedded data is valid"))
    }

    /// What the kernel can count on every CPU; `None` when a folder's file has taken its place and its name.
    pub fn generic(&self) -> Option<&Uarch> {
        self.iter().find(|uarch| uarch.id == GENERIC)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Uarch> {
        self.uarchs.iter()
    }

    /// Those the CPU can be: several when its processor has several kinds of cores and the PMU is not known.
    pub fn candidates(&self, id: &CpuId) -> impl Iterator<Item = &Uarch> {
        self.iter().filter(move |uarch| uarch.matches(id))
    }

    /// The one the CPU is; `None` for an unknown CPU, and where [`candidates`](Self::candidates) has several.
    pub fn lookup(&self, id: &CpuId) -> Option<&Uarch> {
        let mut candidates = self.candidates(id);
        candidates.next().filter(|_| candidates.next().is_none())
    }
}
