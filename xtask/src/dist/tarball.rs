//! An archive that runs from any directory, for module systems and users without root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{Dist, Source, VERSION};
use crate::shell;

const MODULE: &str = "xtask/dist/modulefile";

/// File name of the archive for an architecture.
pub fn name(arch: &str) -> String {
    directory(arch) + ".tar.xz"
}

/// Name of its only directory.
fn directory(arch: &str) -> String {
    format!("profiler-{VERSION}-{arch}-linux")
}

pub fn make(dist: &Dist) -> Result<PathBuf> {
    let name = directory(dist.arch.name);
    let module = dist.workspace.root.join(MODULE);
    let module = fs::read_to_string(&module).with_context(|| module.display().to_string())?;
    let module = module.replace("@VERSION@", VERSION);
    let (_, symbols) = dist.symbols()?;
    let files = dist
        .files()?
        .placed(|path| {
            // Directories of the system have another place below a prefix.
            let below = path.strip_prefix("/usr").unwrap_or(path);
            Some(
                Path::new("/")
                    .join(&name)
                    .join(below.strip_prefix("/").unwrap_or(below)),
            )
        })
        .with(
            format!("/{name}/share/modulefiles/profiler/{VERSION}"),
            module.into_bytes(),
        )
        .with(format!("/{name}/lib/debug/profiler.debug"), symbols);
    let root = dist.scratch.join("tar");
    files.write(&root, dist.source)?;
    let archive = dist.out.join(self::name(dist.arch.name));
    pack(
        dist.source,
        &root,
        Path::new(&name),
        &archive,
        Some("xz -6 -T1"),
    )?;
    Ok(archive)
}

/// Makes an archive of `below` in `root`: sorted, of root, with the time of the source.
pub fn pack(
    source: &Source,
    root: &Path,
    below: &Path,
    archive: &Path,
    compressor: Option<&str>,
) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg("--format=ustar")
        .arg(format!("--mtime=@{}", source.time))
        .args(compressor.map(|program| format!("--use-compress-program={program}")))
        .arg("--create")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(root)
        .arg(below);
    shell::run_slowly(&mut tar, "writing the archive")
}
