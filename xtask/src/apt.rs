//! Debian and Ubuntu packages.

use std::{process::Command, sync::Once};

use anyhow::{Context as _, Result};

use crate::shell::{self, progress};

/// Whether packages can be installed without asking anybody.
pub fn available() -> bool {
    shell::is_root() && shell::which("apt-get").is_some()
}

/// The command that a user with the right to do so would type.
pub fn command(packages: &[String]) -> String {
    let sudo = if shell::is_root() { "" } else { "sudo " };
    format!(
        "{sudo}apt-get install --no-install-recommends {}",
        packages.join(" ")
    )
}

/// The version that an installation would bring.
pub fn candidate(package: &str) -> Option<String> {
    let policy = shell::stdout(Command::new("apt-cache").args(["policy", package])).ok()?;
    let version = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_owned())
}

/// Names of the known packages that match the regular expression.
pub fn names(pattern: &str) -> Vec<String> {
    shell::stdout(Command::new("apt-cache").args(["search", "--names-only", pattern]))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Brings the package lists up to date, once.
pub fn update() {
    static UPDATED: Once = Once::new();
    UPDATED.call_once(|| {
        progress("bringing the package lists up to date");
        // One unreachable repository among several is no reason to stop: the installation tells.
        let _ = shell::run_quietly(Command::new("apt-get").args(["update", "-q"]));
    });
}

/// Installs what is missing; `purpose` tells the user why.
pub fn install(packages: &[String], purpose: &str) -> Result<()> {
    if packages.iter().any(|package| candidate(package).is_none()) {
        update();
    }
    progress(&format!("installing {} ({purpose})", packages.join(" ")));
    if install_now(packages).is_ok() {
        return Ok(());
    }
    // Package lists that are weeks old name files that the mirror no longer has.
    update();
    install_now(packages).with_context(|| format!("installing {}", packages.join(" ")))
}

fn install_now(packages: &[String]) -> Result<()> {
    shell::run_quietly(
        Command::new("apt-get")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}
