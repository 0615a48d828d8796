//! Verdicts about workloads of known bottleneck. Those that need other memory or counters than this
//! machine's are in `system/bounds.rs` and `kernel/pmu/verdict.rs`.

use e2e::{
    dataset::{Dataset, script},
    setting,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    WORKLOAD,
    report::{profiler, record},
    summary::gpu_run,
};

/// The findings of the run of a script, the one that explains most first.
///
/// Its processes have the highest priority of normal ones, so that they hardly wait for those of other
/// tests.
fn findings(options: &[&str], script: &str) -> Vec<Value> {
    let directory = TempDir::new().expect("a directory");
    let script = format!("renice -n -20 $$ >/dev/null; {script}");
    let run = record(directory.path(), options, &script);
    Dataset::new(run.into()).findings()
}

/// A script with real-time priority, which does not wait for other tests. If it used all CPUs, it would
/// stop the profiler.
fn realtime(script: &str) -> String {
    format!("chrt --fifo --pid 1 $$; {script}")
}

/// Asserts what bounds the run of a script, and returns the sentence about it.
#[track_caller]
fn assert_bound_with(options: &[&str], expected: &str, script: &str) -> String {
    let found = findings(options, script);
    let first = found.first().unwrap_or_else(|| panic!("nothing found"));
    assert_eq!(first["name"], expected, "{found:#?}");
    first["text"].as_str().expect("a text").to_owned()
}

#[track_caller]
fn assert_bound_by(expected: &str, script: &str) -> String {
    assert_bound_with(&[], expected, script)
}

/// Uses a CPU for the given CPU seconds.
const BURN: &str = "burn() { (ulimit -t $1; while :; do :; done) 2>/dev/null; }; ";

#[test]
fn compute() {
    assert_bound_by("compute", &realtime(&format!("{BURN} burn 2")));
}

#[test]
fn run_queue() {
    let more = "for i in $(seq $((3 * $(nproc)))); do burn 1 & done; wait";
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], &format!("{BURN} {more}"));
    let found = Dataset::new(run.into()).findings();
    assert_eq!(found[0]["name"], "run queue", "{found:#?}");
}

#[test]
fn storage() {
    let script = "dd if=/dev/zero of=file bs=1M count=200 2>/dev/null; sync
        for i in 1 2 3 4 5 6; do dd if=file of=/dev/null bs=64k iflag=direct 2>/dev/null; done";
    assert_bound_by("storage", script);
}

#[test]
fn process_creation() {
    let script = "end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do /bin/true; done";
    let found = findings(&[], script);
    // Beside other work, the processes also wait for a CPU.
    let of_target = found.iter().find(|finding| finding["name"] != "run queue");
    let name = of_target.map(|finding| finding["name"].clone());
    assert_eq!(name, Some("process creation".into()), "{found:#?}");
}

#[test]
fn imbalance() {
    let ranks = "for rank in $(seq 0 15); do
            SLURM_JOB_ID=77 SLURM_PROCID=$rank SLURM_STEP_ID=0 bash -c \
                'burn() { (ulimit -t $1; while :; do :; done) 2>/dev/null; }
                 if [ $SLURM_PROCID = 5 ]; then burn 3; else timeout 0.05 sh -c \"while :; do :; done\"; fi' &
        done; wait; true";
    assert_bound_by("imbalance", ranks);
}

#[test]
fn asleep() {
    assert_bound_by("asleep", "sleep 2");
}

/// 25 %, 45 % and 60 % on average.
#[test]
fn gpu_busy_and_idle() {
    let first = |utilization| {
        let finished = gpu_run(utilization);
        let found = finished.dataset().findings();
        found.first().map(|finding| finding["name"].clone())
    };
    assert_eq!(first([30, 20]), Some("GPU idle".into()));
    let between = first([60, 30]);
    assert!(between != Some("GPU idle".into()) && between != Some("GPU".into()));
    assert_eq!(first([80, 40]), Some("GPU".into()));
}

#[test]
fn quiet_node_has_no_verdict() {
    let directory = TempDir::new().expect("a directory");
    // A cgroup without work, in which only a shell waits for a moment.
    let run = record(directory.path(), &["--source", "system"], "sleep 0.5");
    assert_eq!(
        Dataset::new(run.clone().into()).findings(),
        [Value::Null; 0]
    );
    let html = profiler(&["report", "-o", "-", &run]);
    assert!(
        html.contains("Not known: no resource was used so much"),
        "{html}"
    );
}

/// Runs a Python program, which the shell becomes.
fn python(program: &str) -> String {
    format!("exec {} -c '{program}'", setting("PROFILER_TEST_PYTHON"))
}

#[test]
fn fsyncs_are_storage() {
    assert_bound_by(
        "storage",
        &realtime(&format!("exec {WORKLOAD} fsync . 3000")),
    );
}

#[test]
fn page_cache() {
    // Removed before the kernel writes them back.
    let writer = "end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do
        dd if=/dev/zero of=file bs=1M count=200 2>/dev/null; rm file; done";
    assert_bound_by("page cache", &realtime(writer));
}

/// The receiver drops every tenth segment, with a filter on its socket that the kernel runs.
const LOSSY: &str = "import ctypes, socket, struct, threading, time
listener = socket.create_server((\"127.0.0.1\", 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
RANDOM, NEVER, ALL = 0xfffff000 + 56, 0, 0xffffffff
filter = b\"\".join(struct.pack(\"HBBI\", *step) for step in [
    (0x20, 0, 0, RANDOM), (0x35, 0, 1, 0xffffffff // 10 * 9), (0x06, 0, 0, NEVER), (0x06, 0, 0, ALL)])
steps = ctypes.create_string_buffer(filter)
receiver.setsockopt(socket.SOL_SOCKET, 26, struct.pack(\"HL\", 4, ctypes.addressof(steps)))
def drain():
    while receiver.recv(65536):
        pass
thread = threading.Thread(target=drain, daemon=True)
thread.start()
end = time.monotonic() + 4
while time.monotonic() < end:
    sender.sendall(b\"x\" * 65536)
    time.sleep(0.002)";

#[test]
fn lossy_network() {
    assert_bound_by("network", &realtime(&python(LOSSY)));
}

#[test]
fn lossless_network_is_no_loss() {
    let lossless = LOSSY.replace("0xffffffff // 10 * 9", "0xffffffff");
    let found = findings(&[], &python(&lossless));
    assert!(
        found.iter().all(|one| one["name"] != "network"),
        "{found:#?}"
    );
}

/// Threads that share a lock; each wakeup would wait for other tests.
fn locking() -> String {
    realtime(&format!("exec {WORKLOAD} lock 6 3000"))
}

#[test]
fn lock_contention() {
    let text = assert_bound_by("lock contention", &locking());
    // The main thread, which waits for the six others, is one of them.
    let threads = text.strip_prefix("The threads of workload (");
    let threads = threads.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!((6.0..=7.1).contains(&threads.expect("a number")), "{text}");
}

/// With futex calls, which tell locks from timers.
#[test]
fn lock_contention_with_system_calls() {
    assert_bound_with(&["--source", "+syscalls"], "lock contention", &locking());
}

/// Threads that sleep as often and as short, but wait for each other's messages.
#[test]
fn messages_are_no_lock_contention() {
    let exchange = python(
        "import socket, threading, time
end = time.monotonic() + 3
def exchange(end_point, starts):
    if starts:
        end_point.send(b\"x\")
    while end_point.recv(1) and time.monotonic() < end:
        end_point.send(b\"x\")
    end_point.close()
for one, other in [socket.socketpair() for _ in range(3)]:
    threading.Thread(target=exchange, args=(one, True)).start()
    threading.Thread(target=exchange, args=(other, False)).start()",
    );
    let found = findings(&[], &exchange);
    assert!(
        found.iter().all(|one| one["name"] != "lock contention"),
        "{found:#?}"
    );
}

/// A run that computes, with counters of another machine.
fn with_counters(run: &str, ipc: f64, memory: f64) -> Vec<Value> {
    let [ipc, memory] = [ipc, memory].map(|number| number.to_string());
    script(
        "PROFILER_TEST_PYTHON",
        "set_counters.py",
        &[run, &ipc, &memory],
    );
    Dataset::new(run.into()).findings()
}

/// No guest and no emulated PMU counts the waits for memory: the counts of this run are made up.
#[test]
fn memory_access() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], &realtime(&format!("{BURN} burn 2")));
    let found = with_counters(&run, 0.4, 9e9);
    assert_eq!(found[0]["name"], "memory access", "{found:#?}");
    let text = found[0]["text"].as_str().expect("a text");
    assert!(
        text.contains("executed 0.40 instructions per cycle"),
        "{text}"
    );
    // Few instructions for another reason, and much traffic without waits.
    for (ipc, memory) in [(0.4, 1e8), (2.0, 9e9)] {
        let found = with_counters(&run, ipc, memory);
        assert_eq!(found[0]["name"], "compute", "{found:#?}");
    }
}
