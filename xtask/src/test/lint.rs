//! Warnings of clippy, rustdoc and the BPF compiler are errors, and so are misspellings and retired
//! terms.

use anyhow::Result;

use crate::{bpf, shell, words, workspace::Workspace};

pub fn run(workspace: &Workspace) -> Result<()> {
    words::run(workspace)?;
    bpf::build_strictly(workspace)?;
    shell::run(workspace.cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "--deny=warnings",
    ]))?;
    outside(
        workspace,
        "clients/rust/profiler-mark/Cargo.toml",
        "target/clients",
    )?;
    shell::run(
        workspace
            .cargo()
            .args(["doc", "--quiet", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "--deny=warnings"),
    )
}

/// Clippy on a package outside the workspace.
pub fn outside(workspace: &Workspace, manifest: &str, target: &str) -> Result<()> {
    shell::run(workspace.cargo().args([
        "clippy",
        "--quiet",
        "--locked",
        "--all-features",
        "--manifest-path",
        manifest,
        "--target-dir",
        target,
        "--",
        "--deny=warnings",
    ]))
}
