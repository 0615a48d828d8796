//! The profiler with file capabilities, as an administrator installs it for users.

use std::process::Stdio;

use e2e::{
    attacker::{Installed, UID, command_as, directory_of},
    dataset::Dataset,
};

/// The installation that the attacks use works: an ordinary user profiles a command.
#[test]
fn file_capabilities_suffice() {
    let installed = Installed::with_file_capabilities();
    let home = directory_of(UID);
    let output = command_as(UID, installed.binary())
        .args(["run", "-q", "--run-id", "own", "--out"])
        .arg(home.path())
        .args(["--", "sleep", "0.2"])
        .stdin(Stdio::null())
        .output()
        .expect("the profiler starts");
    assert!(output.status.success(), "{output:?}");
    let data = Dataset::new(home.path().join("own"));
    data.assert_complete();
    let (switches,): (u64,) = data.row("SELECT sum(voluntary_switches) FROM sched");
    assert!(switches > 0, "accounted by BPF");
}
