//! Crates for crates.io. That of the program contains the BPF objects, so that `cargo install` needs
//! no BPF toolchain.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{Dist, Source, VERSION};
use crate::{arch::Arch, bpf, shell, workspace::Workspace};

/// The program.
pub const PROGRAM: &str = "node-profiler";
/// Crates of the workspace, each after those that it needs.
const CRATES: [&str; 3] = ["perfevents", "profiler-ebpf", PROGRAM];
/// Marks for programs of users, in a workspace of its own.
const MARKS: [&str; 1] = ["profiler-mark"];
const MARKS_WORKSPACE: &str = "clients/rust/profiler-mark";
/// What the package of the program has beside its sources. Cargo takes it for changes of the commit, so
/// that it refuses to package without `--allow-dirty`.
const BUILT: &str = "profiler/bpf";

/// `cargo xtask publish`
#[derive(clap::Args)]
pub struct Args {
    /// Check the crates without uploading them
    #[arg(long)]
    dry_run: bool,
    /// Other arguments of `cargo publish`
    #[arg(last = true)]
    args: Vec<OsString>,
}

pub(super) fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    let workspace = dist.workspace;
    let _built = Built::place(workspace, dist.source)?;
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
pub fn publish(workspace: &Workspace, Args { dry_run, args }: &Args) -> Result<()> {
    let source = Source::of(workspace)?;
    ensure!(
        source.is_clean,
        "the checkout has changes or new files: commit or remove them first (`git status` lists them)"
    );
    let _built = Built::place(workspace, &source)?;
    // Cargo keeps the sources of crates that it verifies below its home, by the path of the directory and
    // the version. Those of another commit would be used.
    let target = workspace.target.join("publish");
    let _ = fs::remove_dir_all(&target);
    let target = target.join(&source.commit);
    for (directory, crates) in workspaces(workspace) {
        let mut cargo = workspace.cargo();
        cargo
            .current_dir(directory)
            .args(["publish", "--locked", "--allow-dirty"])
            .arg("--target-dir")
            .arg(&target)
            .args(crates.iter().flat_map(|name| ["--package", name]))
            .args(dry_run.then_some("--dry-run"))
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

/// The BPF objects, the hash of their sources and the commit, where the build script of the program
/// reads them. They are removed afterwards: they belong to one state of the sources.
struct Built(PathBuf);

impl Built {
    fn place(workspace: &Workspace, source: &Source) -> Result<Self> {
        let built = Self(workspace.root.join(BUILT));
        fs::create_dir_all(&built.0).with_context(|| format!("creating {}", built.0.display()))?;
        for arch in Arch::names() {
            let object = bpf::build_for(workspace, arch)?;
            built.write(&format!("{arch}.o"), &read(&object)?)?;
            built.write("sources", &read(&object.with_file_name("sources"))?)?;
        }
        built.write("commit", source.commit.as_bytes())?;
        Ok(built)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}
