//! Processes with the same pid are distinguished by their start time.

use e2e::runs::Profiler;

use crate::process::assert_sound;

/// Executes a command in a pid namespace with 400 pids.
const FEW_PIDS: [&str; 8] = [
    "unshare",
    "--pid",
    "--fork",
    "--mount-proc",
    "sh",
    "-c",
    "echo 400 >/proc/sys/kernel/pid_max && exec \"$@\"",
    "sh",
];

#[test]
fn processes_with_the_same_pid_are_not_merged() {
    let script = "i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done";
    let finished = Profiler::wrapped_in(&FEW_PIDS)
        .args(["-i", "100ms"])
        .command(&["sh", "-c", script])
        .finish();
    let data = finished.dataset();
    assert_sound(&data);
    let (rows, pids, identities, highest): (u64, u64, u64, u32) = data.row(
        "SELECT count(*), count(DISTINCT pid), count(DISTINCT (pid, start_ts)), max(pid) \
         FROM process WHERE comm = 'true' AND exit_code = 0 AND oncpu_ns > 0 AND cmdline = '/bin/true'",
    );
    assert_eq!((rows, identities), (1500, 1500));
    assert!(highest < 400 && pids < 400, "{pids} pids up to {highest}");
    let all: u64 = data.value("SELECT count(*) FROM process");
    assert_eq!(all, 1501);
}
