//! The oldest supported compiler (`rust-version`) accepts the crates that users build.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{bpf, shell, workspace::Workspace};

/// Installs the compiler by rustup, and checks the crates. The remark is its version.
pub fn run(workspace: &Workspace) -> Result<String> {
    let object = bpf::build(workspace)?;
    let (major, minor) = workspace.rust_version;
    let version = format!("{major}.{minor}");
    let install = [
        "toolchain",
        "install",
        "--profile",
        "minimal",
        "--no-self-update",
    ];
    let mut rustup = Command::new("rustup");
    shell::run_quietly(rustup.args(install).arg(&version))
        .context("rustup, which installs old compilers (https://rustup.rs)")?;
    let mut cargo = Command::new("rustup");
    cargo
        .args(["run", &version, "cargo", "check", "--quiet", "--locked"])
        .args(["--package=node-profiler", "--package=perfevents"])
        .arg("--target-dir")
        .arg(workspace.target.join("msrv"))
        .env("PROFILER_BPF_OBJECT", object)
        .env_remove("RUSTC")
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(&workspace.root);
    shell::run_slowly(&mut cargo, "checking with the oldest compiler")?;
    Ok(format!("Rust {version}"))
}
