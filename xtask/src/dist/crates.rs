//! Crates for crates.io. That of the program contains the BPF objects, so that `cargo install` needs
//! no BPF toolchain.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{Dist, VERSION};
use crate::{arch::Arch, bpf, shell, workspace::Workspace};

/// The program.
pub const PROGRAM: &str = "node-profiler";
/// Crates of the workspace, each after those that it needs.
const CRATES: [&str; 3] = ["perfevents", "profiler-ebpf", PROGRAM];
/// Marks for programs of users, in a workspace of its own.
const MARKS: [&str; 1] = ["profiler-mark"];
const MARKS_WORKSPACE: &str = "clients/rust/profiler-mark";
/// Where the build script of the program looks for the objects.
const OBJECTS: &str = "profiler/bpf";

/// `cargo xtask publish`
#[derive(clap::Args)]
pub struct Args {
    /// Arguments of `cargo publish`, such as --dry-run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(super) fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    let workspace = dist.workspace;
    let _objects = Objects::place(workspace)?;
    let target = dist.scratch.join("crates");
    let mut packages = Vec::new();
    for (directory, crates) in workspaces(workspace) {
        let mut cargo = workspace.cargo();
        cargo
            .current_dir(directory)
            .args([
                "package",
                "--quiet",
                "--locked",
                "--no-verify",
                "--allow-dirty",
            ])
            .args(crates.iter().flat_map(|name| ["--package", name]))
            .arg("--target-dir")
            .arg(&target);
        shell::run_slowly(&mut cargo, "packaging the crates")?;
        packages.extend(crates.iter().map(|name| format!("{name}-{VERSION}.crate")));
    }
    let copy = |name: &String| {
        let to = dist.out.join(name);
        fs::copy(target.join("package").join(name), &to)
            .with_context(|| format!("writing {}", to.display()))?;
        Ok(to)
    };
    packages.iter().map(copy).collect()
}

/// Uploads all crates: `cargo publish` alone would leave out the BPF objects.
pub fn publish(workspace: &Workspace, Args { args }: &Args) -> Result<()> {
    let _objects = Objects::place(workspace)?;
    for (directory, crates) in workspaces(workspace) {
        let mut cargo = workspace.cargo();
        cargo
            .current_dir(directory)
            .args(["publish", "--locked"])
            .args(crates.iter().flat_map(|name| ["--package", name]))
            .args(args);
        shell::run(&mut cargo)?;
    }
    Ok(())
}

/// Directories of workspaces and their crates.
fn workspaces(workspace: &Workspace) -> [(PathBuf, &'static [&'static str]); 2] {
    [
        (workspace.root.clone(), &CRATES),
        (workspace.root.join(MARKS_WORKSPACE), &MARKS),
    ]
}

/// The BPF objects in the package of the program, which are removed afterwards: they belong to one
/// state of the sources.
struct Objects(PathBuf);

impl Objects {
    fn place(workspace: &Workspace) -> Result<Self> {
        let objects = Self(workspace.root.join(OBJECTS));
        fs::create_dir_all(&objects.0)
            .with_context(|| format!("creating {}", objects.0.display()))?;
        for arch in Arch::names() {
            let built = bpf::build_for(workspace, arch)?;
            objects.copy(&built, &format!("{arch}.o"))?;
            objects.copy(&built.with_file_name("sources"), "sources")?;
        }
        Ok(objects)
    }

    fn copy(&self, from: &Path, name: &str) -> Result<()> {
        let to = self.0.join(name);
        fs::copy(from, &to).with_context(|| format!("writing {}", to.display()))?;
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
