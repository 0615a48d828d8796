//! Whatever a compiler warns about is an error here.

use anyhow::Result;

use crate::{bpf, shell, workspace::Workspace};

pub fn run(workspace: &Workspace) -> Result<()> {
    bpf::build_strictly(workspace)?;
    shell::run(workspace.cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "--deny=warnings",
    ]))?;
    shell::run(
        workspace
            .cargo()
            .args(["doc", "--quiet", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "--deny=warnings"),
    )
}
