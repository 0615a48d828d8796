//! Dependencies: licences, sources, duplicates, known vulnerabilities.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    cargo_tool::CargoTool,
    shell::{self, progress},
    workspace::Workspace,
};

const TOOL: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    checksum: "e528dfcbe739af7ce37a77d3d6df1b29dd6887b1c701d888820c0f16b864f737",
};

const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

pub fn run(workspace: &Workspace) -> Result<String> {
    let program = obtain(workspace)?;
    let check = |checks: &[&str]| {
        shell::run(
            Command::new(&program)
                .args(["--all-features", "check"])
                .args(checks)
                .current_dir(&workspace.root),
        )
    };
    check(&["bans", "licenses", "sources"])?;
    if !is_reachable(ADVISORIES) {
        return Ok("advisories not checked: the database is not reachable".into());
    }
    check(&["advisories"])?;
    Ok(String::new())
}

/// The copy that xtask has built, otherwise the user's.
pub fn find(workspace: &Workspace) -> Option<PathBuf> {
    let own = TOOL.program(workspace, "");
    if shell::is_executable(&own) {
        Some(own)
    } else {
        shell::which("cargo-deny")
    }
}

fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(program) = find(workspace) {
        return Ok(program);
    }
    progress("building cargo-deny (one to two minutes)");
    // Unoptimised and without debug information: half the build time, and the checks take a second.
    let options = ["--debug", "--config", "profile.dev.debug=false"];
    TOOL.install(workspace, "", &options, &[])
}

fn is_reachable(repository: &str) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let child = Command::new("git")
        .args(["ls-remote", "--quiet", repository, "HEAD"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}
