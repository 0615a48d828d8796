//! Tiers that run in parallel with the others, at a lower priority.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{Tier, failures::Failures};
use crate::{shell, workspace::Workspace};

/// Gives a twentieth of the CPU time of normal priority (`sched_prio_to_weight` in
/// kernel/sched/core.c).
const NICENESS: &str = "14";

/// Runs a tier in a separate process and prints its output when it ends; returns the remark of its
/// report.
pub fn run(workspace: &Workspace, tier: Tier, filter: &[String]) -> Result<String> {
    let name = tier.name();
    let path = workspace.target.join(format!("test-{name}.log"));
    let log = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let again = log.try_clone().context("duplicating a file descriptor")?;
    let mut command = Command::new("nice");
    command
        .args(["-n", NICENESS])
        .arg(shell::this_program()?)
        .args(["test", &name, "--"])
        .args(filter)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again);
    let status = command
        .status()
        .with_context(|| format!("starting `{}`", shell::display(&command)))?;
    let output = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let output = String::from_utf8_lossy(&output);
    // A single write, so that the output of other tiers is not interleaved.
    print!("{output}");
    if !status.success() {
        let failures = Failures::of(output.lines()).text();
        bail!("`{}` failed ({status}){failures}", shell::display(&command));
    }
    let report = output.lines().rev().find_map(|line| remark(line, &name));
    Ok(report.unwrap_or_default().to_owned())
}

/// The remark of a line such as `kernels passed   312.4 s  110 tests on 6.1, 6.12`.
fn remark<'a>(line: &'a str, tier: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(tier)?.trim_start();
    let (_, remark) = rest.strip_prefix("passed")?.split_once(" s")?;
    Some(remark.trim())
}

#[cfg(test)]
mod tests {
    use super::remark;

    #[test]
    fn remark_of_a_report() {
        let line = "kernels passed   312.4 s  110 tests on 6.1, 6.12";
        assert_eq!(remark(line, "kernels"), Some("110 tests on 6.1, 6.12"));
        assert_eq!(remark("deny    passed     1.0 s  ", "deny"), Some(""));
        assert_eq!(remark("deny    FAILED     1.0 s  ", "deny"), None);
        assert_eq!(remark(line, "deny"), None);
    }
}
