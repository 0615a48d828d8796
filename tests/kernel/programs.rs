//! What the profiler says of itself on this kernel.

use std::process::Command;

use e2e::setting;
use serde_json::Value;

#[test]
fn the_kernel_takes_all_programs() {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["check", "--json"])
        .output()
        .expect("the profiler starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let check: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for source in check["sources"].as_array().expect("sources") {
        let uses_bpf =
            ["process", "usage", "sched"].contains(&source["source"].as_str().expect("a name"));
        assert!(!uses_bpf || source["status"] == "works", "{source:#}");
    }
}
