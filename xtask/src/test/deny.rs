//! What the dependencies bring along: licences, sources, duplicates, known holes.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    shell::{self, progress},
    workspace::Workspace,
};

/// The version that is built. Its own Cargo.lock pins what it depends on.
const VERSION: &str = "0.20.2";

const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

pub fn run(workspace: &Workspace) -> Result<String> {
    let program = obtain(workspace)?;
    let check = |what: &[&str]| {
        shell::run(
            Command::new(&program)
                .args(["--all-features", "check"])
                .args(what)
                .current_dir(&workspace.root),
        )
    };
    check(&["bans", "licenses", "sources"])?;
    if !is_reachable(ADVISORIES) {
        return Ok("advisories not checked: their database is out of reach".into());
    }
    check(&["advisories"])?;
    Ok(String::new())
}

/// The project's own copy, otherwise the user's.
pub fn find(workspace: &Workspace) -> Option<PathBuf> {
    let own = root(workspace).join("bin/cargo-deny");
    if shell::is_executable(&own) {
        Some(own)
    } else {
        shell::which("cargo-deny")
    }
}

/// One directory per version.
fn root(workspace: &Workspace) -> PathBuf {
    workspace.tools().join(format!("cargo-deny-{VERSION}"))
}

fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(program) = find(workspace) {
        return Ok(program);
    }
    progress("building cargo-deny (one to two minutes)");
    let (root, build) = (root(workspace), workspace.tools().join("build"));
    for directory in [&root, &build] {
        shell::make_unprivileged(directory)?;
    }
    // Unoptimised: it takes half the time, and the checks are a matter of a second.
    shell::run_quietly(
        shell::unprivileged(&mut workspace.cargo())
            .args([
                "install",
                "cargo-deny",
                "--version",
                VERSION,
                "--locked",
                "--quiet",
                "--debug",
                "--root",
            ])
            .arg(&root)
            .arg("--target-dir")
            .arg(&build)
            .env("CARGO_PROFILE_DEV_DEBUG", "false"),
    )?;
    let _ = std::fs::remove_dir_all(build);
    Ok(root.join("bin/cargo-deny"))
}

fn is_reachable(repository: &str) -> bool {
    const PATIENCE: Duration = Duration::from_secs(20);
    let child = Command::new("git")
        .args(["ls-remote", "--quiet", repository, "HEAD"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}
