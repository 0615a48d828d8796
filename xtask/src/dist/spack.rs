//! A repository for Spack with one recipe, which installs the archive.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{DESCRIPTION, Dist, VERSION, files::Files, tarball};
use crate::{arch::Arch, shell};

const RECIPE: &str = "xtask/dist/spack/package.py";
/// Name of the directory in the archive.
const ROOT: &str = "profiler-spack";

pub fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    dist.archive()?;
    let mut archives = Vec::new();
    for arch in Arch::names() {
        let archive = dist.out.join(tarball::name(arch));
        // Of each machine for which packages have been made.
        if archive.is_file() {
            let sum = shell::stdout(Command::new("sha256sum").arg(&archive))?;
            let sum = sum.split_whitespace().next().context("a checksum")?;
            archives.push(format!("\"{arch}\": \"{sum}\","));
        }
    }
    let recipe = dist.workspace.root.join(RECIPE);
    let recipe = fs::read_to_string(&recipe).with_context(|| recipe.display().to_string())?;
    let recipe = recipe
        .replace("@ARCHIVES@", &archives.join("\n    "))
        .replace("@DESCRIPTION@", &DESCRIPTION.replace('\n', "\n    "))
        .replace("@VERSION@", VERSION);
    let root = Path::new("/").join(ROOT);
    let files = Files::of([
        (
            root.join("repo.yaml"),
            b"repo:\n  namespace: profiler\n".to_vec(),
        ),
        (
            root.join("packages/node-profiler/package.py"),
            recipe.into_bytes(),
        ),
    ]);
    let tree = dist.scratch.join("spack");
    files.write(&tree, dist.source)?;
    let repository = dist.out.join(format!("profiler-{VERSION}-spack.tar"));
    tarball::pack(dist.source, &tree, Path::new(ROOT), &repository, None)?;
    Ok(vec![repository])
}
