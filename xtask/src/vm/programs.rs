//! The programs of a guest.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    arch::Arch,
    bpf, cross, preparation,
    shell::{self, progress},
    workspace::Workspace,
};

pub struct Programs {
    pub profiler: PathBuf,
    /// Workloads of the tests.
    pub workloads: [PathBuf; 3],
    pub init: PathBuf,
    /// The test binary.
    pub tests: PathBuf,
}

/// Builds the programs and a test suite (`kernel` or `e2e`), with the whole workspace selected, so
/// that dependencies are compiled once.
pub fn build(workspace: &Workspace, arch: &Arch, suite: &str) -> Result<Programs> {
    let object = bpf::build_for(workspace, arch.name)?;
    let mut cargo = cross::cargo_build(workspace, arch)?;
    if !arch.is_host() {
        cargo.env("PROFILER_BPF_OBJECT", object);
    }
    progress("building the programs and their tests");
    cargo.args([
        "--quiet",
        "--release",
        "--workspace",
        "--message-format=json-render-diagnostics",
        "--bin=profiler",
        "--bin=workload",
        "--bin=workload-net",
        "--bin=workload-flops",
        "--bin=guest-init",
        "--test",
        suite,
    ]);
    let messages = preparation::timed(|| shell::stdout(&mut cargo))?;
    let built: Vec<Value> = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let find = |kind: &str, name: &str| {
        let matches = |message: &&Value| {
            let target = &message["target"];
            target["kind"][0] == kind && target["name"] == name
        };
        let executable = built.iter().filter(matches).find_map(|message| {
            let path = message["executable"].as_str()?;
            Some(PathBuf::from(path))
        });
        executable.with_context(|| format!("cargo built no {kind} `{name}`"))
    };
    Ok(Programs {
        profiler: find("bin", "profiler")?,
        workloads: [
            find("bin", "workload")?,
            find("bin", "workload-net")?,
            find("bin", "workload-flops")?,
        ],
        init: find("bin", "guest-init")?,
        tests: find("test", suite)?,
    })
}
