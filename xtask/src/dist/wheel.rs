//! The Python package: alone for all machines, and with the program beside it for one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::Dist;
use crate::{python, shell};

pub fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    let python = python::DIST.obtain(dist.workspace)?;
    let program = &dist.programs()?.binary.program;
    // hatchling prints the names of the wheels for people.
    let built = dist.scratch.join("wheels");
    let _ = fs::remove_dir_all(&built);
    let hatchling = || {
        let mut command = Command::new(&python);
        command
            .args(["-m", "hatchling", "build", "--target", "wheel"])
            .arg("--directory")
            .arg(&built)
            .current_dir(dist.workspace.root.join("python"))
            .env("SOURCE_DATE_EPOCH", dist.source.time.to_string());
        command
    };
    shell::run_quietly(hatchling().env_remove("PROFILER_BINARY"))?;
    shell::run_quietly(
        hatchling()
            .env("PROFILER_BINARY", program)
            .env("PROFILER_BINARY_PLATFORM", platform(dist, program)?)
            .env("PROFILER_BINARY_MACHINE", dist.arch.name),
    )?;
    let mut wheels = Vec::new();
    for wheel in fs::read_dir(&built)? {
        let wheel = wheel?;
        let to = dist.out.join(wheel.file_name());
        fs::copy(wheel.path(), &to).with_context(|| format!("writing {}", to.display()))?;
        wheels.push(to);
    }
    wheels.sort();
    Ok(wheels)
}

/// The oldest C library on which a program runs, as PEP 600 names it: `manylinux_2_28`.
fn platform(dist: &Dist, program: &Path) -> Result<String> {
    let readelf = dist.arch.tool("readelf");
    let versions = shell::stdout(Command::new(readelf).arg("--version-info").arg(program))?;
    let newest = newest_glibc(&versions).context("the program needs no version of glibc")?;
    Ok(format!("manylinux_2_{newest}"))
}

/// The largest N of the versions `GLIBC_2.N` that `readelf` lists.
fn newest_glibc(versions: &str) -> Option<u32> {
    let found = versions.split("Name: GLIBC_2.").skip(1);
    let minor = |rest: &str| {
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    found.filter_map(minor).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_of_glibc_is_found() {
        let listed = "  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 4\n  \
                      0x0020:   Name: GLIBC_2.17  Flags: none  Version: 3\n  \
                      0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 2\n  \
                      0x0040:   Name: GCC_4.2.0  Flags: none  Version: 5\n";
        assert_eq!(newest_glibc(listed), Some(17));
        assert_eq!(newest_glibc("No version information found"), None);
    }
}
