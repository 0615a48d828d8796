//! Counters and gauges that are files with one number, as in most drivers.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};

use super::meter::{Counter, Gauge, Reading};
use crate::{
    procfs::file::{KernelFile, number},
    support::clock::monotonic_ns,
};

/// The sum of files in µJ.
pub(super) struct Energies(Vec<KernelFile>);

impl Energies {
    pub(super) fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(files.into_iter().map(KernelFile::new).collect())
    }
}

impl Counter for Energies {
    fn read(&mut self) -> Result<Option<Reading>> {
        let at = monotonic_ns();
        let mut energy_uj = 0u64;
        for file in &mut self.0 {
            let value = read_number(file)?;
            energy_uj = energy_uj
                .checked_add(value)
                .with_context(|| format!("{}: too large", file.path().display()))?;
        }
        Ok(Some(Reading { energy_uj, at }))
    }
}

/// One file in µW.
pub(super) struct Power(KernelFile);

impl Power {
    pub(super) fn new(file: PathBuf) -> Self {
        Self(KernelFile::new(file))
    }
}

impl Gauge for Power {
    fn watts(&mut self) -> Result<Option<f64>> {
        Ok(Some(read_number(&mut self.0)? as f64 / 1e6))
    }
}

pub(super) fn read_number(file: &mut KernelFile) -> Result<u64> {
    let value = match file.read() {
        Ok(text) => number(text.trim_ascii()),
        Err(error) => return Err(anyhow!("{}: {error}", file.path().display())),
    };
    value.with_context(|| format!("{}: no number", file.path().display()))
}
