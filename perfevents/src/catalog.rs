//! All microarchitectures.

use std::sync::OnceLock;

use crate::{CpuId, Uarch};

/// File names without extension, and their content.
static DATA: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/data.rs"));

/// A data file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{id}.toml: {source}")]
pub struct Error {
    /// Name of the file without its extension.
    pub id: String,
    /// What is wrong, with line and column.
    #[source]
    pub source: Box<toml::de::Error>,
}

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
            let uarch: Uarch = toml::from_str(text).map_err(|source| Error {
                id: id.to_owned(),
                source: source.into(),
            })?;
            Ok(Uarch {
                id: id.to_owned(),
                ..uarch
            })
        });
        Ok(Self {
            uarchs: uarchs.collect::<Result<_, _>>()?,
        })
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
