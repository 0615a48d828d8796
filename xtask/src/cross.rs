//! Building programs for another architecture.
//!
//! The standard library for it is taken from rustup's toolchain if somebody has added it there. Otherwise it comes from
//! Debian, like the compiler that builds the BPF programs: no server but the mirror of the packages is needed, which the
//! kernels are from as well, and the user's toolchain stays as it is. The linker is Debian's C compiler for that
//! architecture. The programs are linked with the libraries that the guest has, as they are where they are installed.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{self, Lists},
    arch::Arch,
    shell,
    toolchain::{self, Package},
    workspace::Workspace,
};

/// `cargo build` for the architecture, with what that needs installed.
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
        // Of its own: another compiler makes it, and cargo locks a directory for as long as it builds.
        .arg("--target-dir")
        .arg(workspace.target.join("cross"))
        // Emulated a few times: what optimisation would save there is less than it costs here.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env(variable.to_uppercase(), linker);
    if !has_library(workspace, arch) {
        let package = toolchain::packaged(workspace)
            .with_context(|| format!("or run `rustup target add {}`", arch.target))?;
        let sysroot = obtain_library(workspace, arch, &package)?;
        cargo
            .env("RUSTC", &package.compiler.rustc)
            // Not for build scripts and macros, which are this machine's.
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                format!("--sysroot={}", sysroot.display()),
            );
    }
    Ok(cargo)
}

/// The C compiler knows where the C library is.
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

/// Whether the compiler that cargo takes has a standard library for the architecture.
fn has_library(workspace: &Workspace, arch: &Arch) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut ask = Command::new(rustc);
    ask.args(["--print", "target-libdir", "--target", arch.target])
        .current_dir(&workspace.root);
    shell::stdout(&mut ask).is_ok_and(|directory| PathBuf::from(directory.trim()).is_dir())
}

/// The library that the compiler of this package takes, down to the version; returns the sysroot.
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
