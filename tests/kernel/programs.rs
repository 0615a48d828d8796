//! What the profiler says of itself on this kernel.

use std::process::Command;

use e2e::setting;
use serde_json::Value;

/// Sources that every kernel can give.
const EVERYWHERE: &[&str] = &["process", "usage", "sched"];

#[test]
fn the_kernel_takes_the_programs_of_the_sources_that_work_everywhere() {
    let refused = |source: &&Value| {
        let name = source["source"].as_str().expect("a name");
        EVERYWHERE.contains(&name) && source["status"] != "works"
    };
    let sources = check(&[]);
    let Some(first) = sources.iter().find(refused) else {
        return;
    };
    // Once more, for what the verifier says. The end of it tells.
    let again = check(&[("PROFILER_VERIFIER_LOG", "1")]);
    let again = again.iter().find(refused).unwrap_or(first);
    let why = again["why"].as_str().unwrap_or("without a reason");
    let lines: Vec<&str> = why.lines().collect();
    let end = &lines[lines.len().saturating_sub(60)..];
    panic!("{}: {}", first["source"], end.join("\n"));
}

/// The sources that `profiler check` lists.
fn check(environment: &[(&str, &str)]) -> Vec<Value> {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["check", "--json"])
        .envs(environment.iter().copied())
        .output()
        .expect("the profiler starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let check: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check["sources"].as_array().expect("sources").clone()
}
