//! The kernel's statistics of BPF programs.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Enables the statistics until it is dropped.
///
/// A shell that waits for the end of its stdin restores the setting. It outlives this process even
/// if SIGKILL ends it.
pub struct BpfStats(Child);

impl BpfStats {
    pub fn start() -> Result<Self> {
        let old = fs::read_to_string(SWITCH).with_context(|| format!("reading {SWITCH}"))?;
        let guard = Command::new("sh")
            .args([
                "-c",
                "trap '' INT TERM HUP; cat >/dev/null; echo \"$1\" > \"$2\"",
                "sh",
            ])
            .args([old.trim(), SWITCH])
            .stdin(Stdio::piped())
            .spawn()
            .context("starting the shell that restores the setting")?;
        let this = Self(guard);
        fs::write(SWITCH, "1").with_context(|| format!("writing {SWITCH}"))?;
        Ok(this)
    }
}

impl Drop for BpfStats {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
