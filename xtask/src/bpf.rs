//! The BPF object: built apart from the workspace, because target, compiler and flags differ.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    shell::{self, progress},
    toolchain::{self, Toolchain},
    workspace::Workspace,
};

#[path = "../../profiler/build/source_hash.rs"]
mod source_hash;

const TARGET: &str = "bpfel-unknown-none";
const PACKAGE: &str = "profiler-ebpf";

/// `cargo xtask build`
#[derive(clap::Args)]
pub struct Args {
    /// Build the controller too, optimised
    #[arg(long, conflicts_with = "debug")]
    release: bool,
    /// Build the controller too, unoptimised
    #[arg(long)]
    debug: bool,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let object = build(workspace)?;
    if args.release || args.debug {
        build_controller(workspace, args.release)?;
    } else {
        println!("{}", object.display());
    }
    Ok(())
}

/// Builds the object with what [`toolchain::obtain`] finds. Without a toolchain, an object that was
/// built from the same sources serves as well.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let object = workspace.target.join("bpf/profiler.bpf.o");
    let recorded = object.with_file_name("sources");
    let package = workspace.root.join(PACKAGE);
    let sources = source_hash::source_hash(&package)
        .with_context(|| format!("reading {}", package.display()))?;
    let is_current =
        object.is_file() && fs::read_to_string(&recorded).is_ok_and(|hash| hash.trim() == sources);
    let toolchain = match toolchain::obtain(workspace) {
        Ok(toolchain) => toolchain,
        Err(error) if is_current => {
            progress(&format!("taking the BPF object as it is ({error:#})"));
            return Ok(object);
        }
        Err(error) => return Err(error),
    };
    let built = compile(workspace, &toolchain)?;
    let bytes = fs::read(&built).with_context(|| format!("reading {}", built.display()))?;
    replace(&object, &bytes)?;
    replace(&recorded, sources.as_bytes())?;
    Ok(object)
}

pub fn build_controller(workspace: &Workspace, release: bool) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package=profiler", "--bins"]);
    if release {
        cargo.arg("--release");
    }
    shell::run(&mut cargo)
}

fn compile(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    let target_dir = workspace.target.join("bpf/build");
    let built = target_dir.join(TARGET).join("release").join(PACKAGE);
    if !built.exists() {
        progress("building the BPF programs");
    }
    shell::run(
        toolchain
            .compiler
            .cargo_command()
            .args([
                "build",
                "--quiet",
                "--release",
                "-Zbuild-std=core",
                "--package",
                PACKAGE,
            ])
            .args(["--bin", PACKAGE, "--target", TARGET, "--target-dir"])
            .arg(&target_dir)
            .current_dir(&workspace.root)
            .env("CARGO_ENCODED_RUSTFLAGS", flags().join("\x1f"))
            .env(
                "CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER",
                &toolchain.linker.path,
            )
            // One unit: bpf-linker sees whole functions, and the object is the same on every machine.
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    )?;
    Ok(built)
}

fn flags() -> [String; 4] {
    [
        // The layout of `pt_regs`, and so of a probe's arguments, is that of the machine.
        format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        // Atomic operations that return the old value came with v3; every kernel since 5.12 runs it.
        "-Ctarget-cpu=v3".into(),
    ]
}

/// Writes the file in one step, and only if that changes it: what depends on it is not rebuilt.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let temporary = path.with_extension("tmp");
    fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| fs::write(&temporary, bytes))
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("writing {}", path.display()))
}
