//! The Python package with the program beside it.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use super::Dist;
use crate::{python, shell};

/// The oldest C library of the program, as PEP 600 names it.
const PLATFORM: &str = "manylinux_2_28";

pub fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    let python = python::DIST.obtain(dist.workspace)?;
    let built = shell::stdout(
        Command::new(python)
            .args(["-m", "hatchling", "build", "--target", "wheel"])
            .arg("--directory")
            .arg(&dist.out)
            .current_dir(dist.workspace.root.join("python"))
            .env("SOURCE_DATE_EPOCH", dist.source.time.to_string())
            .env("PROFILER_BINARY", &dist.programs()?.binary.program)
            .env("PROFILER_BINARY_PLATFORM", PLATFORM)
            .env("PROFILER_BINARY_MACHINE", dist.arch.name),
    )?;
    Ok(built.lines().map(PathBuf::from).collect())
}
