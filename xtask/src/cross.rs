//! Builds programs for another architecture.
//!
//! The standard library is that of rustup's toolchain, if it is installed. Otherwise it is
//! Debian's, like the compiler of the BPF programs, so that only the package mirror is needed and
//! the user's toolchain is not changed. The linker is Debian's cross compiler. Programs are linked
//! dynamically with the guest's libraries.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{self, Lists},
    arch::Arch,
    shell,
    toolchain::{self, Package},
    workspace::Workspace,
};

/// `cargo build` for the architecture, after its prerequisites have been installed.
pub fn cargo_build(workspace: &Workspace, arch: &Arch) -> Result<Command> {
    let mut cargo = workspace.cargo();
    cargo.arg("build");
    if arch.is_host() {
        return Ok(cargo);
    }
    let linker = obtain_linker(arch)?;
    let variable = format!("CARGO_TARGET_{}_LINKER", arch.target.replace('-', "_"));
    cargo
        .args(["--target", arch.target])
        // A separate directory, because the compiler may differ, and cargo locks the directory.
        .arg("--target-dir")
        .arg(workspace.target.join("cross"))
        // The programs run only a few times in emulation, which does not justify optimisation.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env(variable.to_uppercase(), linker);
    let flags = standard_library(workspace, arch, &mut cargo)?;
    if !flags.is_empty() {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    }
    Ok(cargo)
}

/// Lets cargo use a compiler that has the standard library for the architecture; returns the flags
/// of that compiler. With `--target`, they do not apply to build scripts and macros.
pub fn standard_library(
    workspace: &Workspace,
    arch: &Arch,
    cargo: &mut Command,
) -> Result<Vec<String>> {
    if arch.is_host() || has_library(workspace, arch) {
        return Ok(Vec::new());
    }
    let package = toolchain::packaged(workspace)
        .with_context(|| format!("or run `rustup target add {}`", arch.target))?;
    let sysroot = obtain_library(workspace, arch, &package)?;
    cargo.env("RUSTC", &package.compiler.rustc);
    Ok(vec![format!("--sysroot={}", sysroot.display())])
}

/// The C compiler, which finds the C library.
fn obtain_linker(arch: &Arch) -> Result<String> {
    let linker = arch.tool("gcc");
    if shell::which(&linker).is_none() {
        let packages = arch.cross.map(str::to_owned);
        if !apt::available() {
            bail!("no {linker}: run `{}`", apt::command(&packages));
        }
        let purpose = format!("links programs for {}", arch.name);
        apt::install(&packages, &purpose)?;
    }
    Ok(linker)
}

/// Whether cargo's compiler has a standard library for the architecture.
fn has_library(workspace: &Workspace, arch: &Arch) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut ask = Command::new(rustc);
    ask.args(["--print", "target-libdir", "--target", arch.target])
        .current_dir(&workspace.root);
    shell::stdout(&mut ask).is_ok_and(|directory| PathBuf::from(directory.trim()).is_dir())
}

/// Unpacks the standard library of exactly this compiler; returns the sysroot.
fn obtain_library(workspace: &Workspace, arch: &Arch, package: &Package) -> Result<PathBuf> {
    let name = format!("libstd-rust{}-dev", package.suffix);
    let directory = format!("{name}_{}_{}", package.version, arch.debian);
    let directory = workspace.tools().join(directory);
    if !directory.is_dir() {
        let lists = Lists::of(workspace, arch)?;
        lists.unpack(&[format!("{name}={}", package.version)], &directory)?;
    }
    let sysroot = &package.compiler.sysroot;
    Ok(directory.join(sysroot.strip_prefix("/").unwrap_or(sysroot)))
}
