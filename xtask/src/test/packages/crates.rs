//! The crates of crates.io: objects that equal new ones, and a program built from them alone.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{
    arch::Arch,
    bpf,
    dist::{Source, crates::PROGRAM},
    run::privileged,
    shell::{self, progress},
    workspace::Workspace,
};

/// Checks packages of crates, using `directory` for builds.
pub fn check(workspace: &Workspace, packages: &[&Path], directory: &Path) -> Result<()> {
    // Not below the workspace, to which a package does not belong.
    let unpacked = tempfile::tempdir()?;
    let unpacked = unpacked.path();
    let mut patches = Vec::new();
    let mut program = None;
    for package in packages {
        let mut tar = Command::new("tar");
        shell::run_quietly(
            tar.args(["--extract", "--file"])
                .arg(package)
                .arg("--directory")
                .arg(unpacked),
        )?;
        let stem = package.file_stem().unwrap_or_default();
        let (name, _) = stem
            .to_str()
            .and_then(|stem| stem.rsplit_once('-'))
            .context("a version")?;
        let place = unpacked.join(stem);
        if name == PROGRAM {
            program = Some(place);
        } else {
            // As if they had been published.
            patches.push(format!(
                "patch.crates-io.{name}.path={:?}",
                place.display().to_string()
            ));
        }
    }
    let program = program.context("no crate of the program")?;
    objects(workspace, &program.join("bpf"), &directory.join("rebuilt"))?;
    installs(workspace, &program, &patches, directory)
}

/// Builds the BPF objects again and compares them with those of a package.
fn objects(workspace: &Workspace, packaged: &Path, directory: &Path) -> Result<()> {
    progress("building the BPF programs of the crate again");
    let _ = fs::remove_dir_all(directory);
    let elsewhere = Workspace {
        root: workspace.root.clone(),
        target: directory.to_owned(),
        rust_version: workspace.rust_version,
    };
    for arch in Arch::names() {
        let built = fs::read(bpf::build_for(&elsewhere, arch)?)?;
        let path = packaged.join(format!("{arch}.o"));
        let object = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            object == built,
            "{} is not what its sources give",
            path.display()
        );
    }
    fs::remove_dir_all(directory).context("removing the objects")
}

/// Installs the program from the crates, without a BPF toolchain, and profiles a command.
fn installs(
    workspace: &Workspace,
    program: &Path,
    patches: &[String],
    directory: &Path,
) -> Result<()> {
    let with_patches = |command: &str| {
        let mut cargo = workspace.cargo();
        cargo.current_dir(program).arg(command);
        for patch in patches {
            cargo.args(["--config", patch]);
        }
        cargo.env("CARGO_TARGET_DIR", directory.join("build"));
        cargo
    };
    // Takes the other crates into the lock file that the package contains.
    let mut lock = with_patches("metadata");
    shell::stdout(lock.arg("--format-version=1"))?;
    let root = directory.join("root");
    let _ = fs::remove_dir_all(&root);
    let mut install = with_patches("install");
    install
        .args(["--locked", "--debug", "--path", ".", "--root"])
        .arg(&root);
    shell::run_slowly(
        install.arg("--quiet"),
        "installing the crate (minutes the first time)",
    )?;

    let installed = root.join("bin/profiler");
    let version = shell::stdout(Command::new(&installed).arg("--version"))?;
    let source = Source::of(workspace)?;
    for line in [
        format!("commit    {}", source.commit()),
        format!("programs  {}", bpf::source_hash(workspace)?),
    ] {
        ensure!(
            version.lines().any(|written| written == line),
            "`profiler --version` of the crate should say:\n{line}\nbut says:\n{version}"
        );
    }
    let runs = directory.join("runs");
    let _ = fs::remove_dir_all(&runs);
    let mut run = privileged(&installed);
    shell::run_quietly(
        run.args(["run", "--strict", "--source", "sched", "--out"])
            .arg(&runs)
            .args(["--", "true"]),
    )
}
