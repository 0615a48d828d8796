//! Verdicts that need another memory than this machine's, and counts that need its kernel.

use e2e::runs::{Finished, Profiler};

use super::commands::sh;
use crate::WORKLOAD;

/// Swap space on the disk, for the time of a test.
struct Swap;

impl Swap {
    const FILE: &str = "/srv/swap";

    fn on() -> Self {
        let file = Self::FILE;
        sh(&format!(
            "dd if=/dev/zero of={file} bs=1M count=160 status=none; chmod 600 {file}; mkswap {file}; swapon {file}"
        ));
        Self
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        sh(&format!("swapoff {file}; rm {file}", file = Self::FILE));
    }
}

/// Asserts that something bounds a run, and returns the sentence about it.
#[track_caller]
fn bound_by(run: &Finished, expected: &str) -> String {
    let findings = run.dataset().findings();
    let named = findings.iter().find(|finding| finding["name"] == expected);
    let named = named.unwrap_or_else(|| panic!("{expected} is not in {findings:#?}"));
    named["text"].as_str().expect("a text").to_owned()
}

/// A process that writes to 112 MiB again and again, of which 64 fit into its cgroup.
#[test]
fn swap_pressure_is_memory() {
    let _swap = Swap::on();
    let limited = [
        "systemd-run",
        "--scope",
        "--quiet",
        "--property=MemoryMax=64M",
    ];
    let sweep = [WORKLOAD, "sweep", "117440512", "10000"];
    let run = Profiler::new()
        .args(["-i", "500ms"])
        .command(&[&limited[..], &sweep].concat())
        .finish();
    let text = bound_by(&run, "memory");
    assert!(text.contains("page faults per second waited"), "{text}");
}

/// The kernel of the guest permits counting fsyncs.
#[test]
fn fsyncs_are_named() {
    let run = Profiler::new()
        .args(["-i", "500ms"])
        .command(&[WORKLOAD, "fsync", "/srv", "5000"])
        .finish();
    let text = bound_by(&run, "storage");
    assert!(text.contains("fsyncs per second force data"), "{text}");
}
