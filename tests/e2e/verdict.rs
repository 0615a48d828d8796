//! Verdicts about workloads of known bottleneck. Those that need other memory or counters than this
//! machine's are in `system/bounds.rs` and `kernel/pmu/verdict.rs`.

use e2e::{
    dataset::{Dataset, script},
    mounts::{self, LoopDevice, Mounted},
    setting,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    WORKLOAD,
    report::{profiler, record},
    sched::slow_group,
    summary::gpu_run,
};

/// The findings of the run of a script. Their order depends on the other load of the machine:
/// `findings_are_in_the_order_of_what_they_explain` tests it.
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

/// Asserts that something bounds the run of a script, and returns the sentence about it.
#[track_caller]
fn assert_bound_with(options: &[&str], expected: &str, script: &str) -> String {
    let found = findings(options, script);
    let named = found.iter().find(|finding| finding["name"] == expected);
    let named = named.unwrap_or_else(|| panic!("{expected} is not in {found:#?}"));
    named["text"].as_str().expect("a text").to_owned()
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
    assert_bound_by("run queue", &format!("{BURN} {more}"));
}

/// A disk with a limit of operations per second: however fast this machine's is, the process waits.
#[test]
fn storage() {
    let place = mounts::directory();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 16);
    let group = slow_group(disk.name(), "read");
    let script = format!(
        "echo $$ > {}/cgroup.procs; dd if={} of=/dev/null bs=4k count=100 iflag=direct status=none",
        group.outer().display(),
        disk.path()
    );
    assert_bound_by("storage", &script);
}

/// Waits for asynchronous I/O are interruptible.
#[test]
fn asynchronous_io_is_storage() {
    let place = mounts::directory();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let disk = LoopDevice::new(&place.path().join("memory/image"), 16);
    let script = format!("exec {WORKLOAD} aio {} 2000", disk.path());
    let text = assert_bound_by("storage", &realtime(&script));
    let expected = format!("Disk {} was busy ", disk.name());
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains(" reads/s of the target (median "), "{text}");
}

#[test]
fn process_creation() {
    let script = "end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do /bin/true; done";
    assert_bound_by("process creation", script);
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

/// Two ranks that live equally long, of which one waits for the other, by its own marks.
pub fn marked_ranks() -> (TempDir, Dataset) {
    let directory = TempDir::new().expect("a directory");
    let ranks = "for rank in 0 1; do
            SLURM_JOB_ID=77 SLURM_PROCID=$rank SLURM_STEP_ID=0 bash -c \
                'sleep 1.5
                 if [ $SLURM_PROCID = 0 ]; then time=0.2; else time=1.1; fi
                 \"$PROFILER\" mark phase MPI_Wait $time --kind mpi; true' &
        done; wait; true";
    let run = record(directory.path(), &[], ranks);
    (directory, Dataset::new(run.into()))
}

#[test]
fn imbalance_by_the_time_outside_mpi() {
    let (_directory, data) = marked_ranks();
    let found = data.findings();
    let named = found.iter().find(|finding| finding["name"] == "imbalance");
    let text = named.unwrap_or_else(|| panic!("{found:#?}"))["text"].as_str();
    assert!(
        text.is_some_and(|text| text.starts_with("Rank 0 was outside MPI for ")),
        "{text:?}"
    );
}

#[test]
fn asleep() {
    assert_bound_by("asleep", "sleep 2");
}

/// 25 %, 45 % and 60 % on average.
#[test]
fn gpu_busy_and_idle() {
    for (utilization, expected) in [([30, 20], "GPU idle"), ([60, 30], ""), ([80, 40], "GPU")] {
        let found = gpu_run(utilization).dataset().findings();
        for name in ["GPU idle", "GPU"] {
            let is_found = found.iter().any(|finding| finding["name"] == name);
            assert_eq!(is_found, name == expected, "{utilization:?}: {found:#?}");
        }
    }
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
        html.contains("No bottleneck found: no rule matched."),
        "{html}"
    );
}

/// Runs a Python program, which the shell becomes.
fn python(program: &str) -> String {
    format!("exec {} -c '{program}'", setting("PROFILER_TEST_PYTHON"))
}

#[test]
fn fsyncs_are_storage() {
    let place = mounts::directory();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let image = place.path().join("memory/image");
    let disk = Mounted::ext4(&place.path().join("disk"), &image, 64);
    let group = slow_group(disk.source().trim_start_matches("/dev/"), "write");
    let script = format!(
        "echo $$ > {}/cgroup.procs; exec {WORKLOAD} fsync {} 2000",
        group.outer().display(),
        disk.point()
    );
    assert_bound_by("storage", &script);
}

/// On a file system in memory, because the kernel slows down those who write faster than a disk.
#[test]
fn page_cache() {
    let place = mounts::directory();
    let _memory = Mounted::tmpfs(&place.path().join("memory"));
    let image = place.path().join("memory/image");
    let disk = Mounted::ext4(&place.path().join("disk"), &image, 192);
    // Removed before the kernel writes them back.
    let writer = format!(
        "end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do
         dd if=/dev/zero of={0}/file bs=1M count=100 2>/dev/null; rm {0}/file; done",
        disk.point()
    );
    assert_bound_by("page cache", &realtime(&writer));
}

/// The receiver drops every tenth segment, with a filter on its socket that the kernel runs. It ends
/// when enough segments were retransmitted, or none of many.
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
sent, resent = 0, 0
while sent < 1000 and resent < 30:
    sender.sendall(b\"x\" * 65536)
    time.sleep(0.002)
    sent += 1
    resent, = struct.unpack_from(\"I\", sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 100)";

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
    // On average over the run, which starts and ends without them.
    assert!((4.0..=7.1).contains(&threads.expect("a number")), "{text}");
}

/// With futex calls, which tell locks from timers.
#[test]
fn lock_contention_with_system_calls() {
    assert_bound_with(&["--source", "+syscalls"], "lock contention", &locking());
}

/// Threads that sleep as often and as short, but wait for each other's messages.
#[test]
fn message_waits_are_not_lock_contention() {
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

/// The findings of a stored run with other numbers: instructions per cycle, bytes per second from
/// memory, and the CPU time, waits for a CPU and blocked time in parts of the time.
fn with_numbers(run: &str, numbers: [f64; 5]) -> Vec<Value> {
    let numbers = numbers.map(|number| number.to_string());
    let arguments = [&[run][..], &numbers.each_ref().map(String::as_str)].concat();
    script("PROFILER_TEST_PYTHON", "set_numbers.py", &arguments);
    Dataset::new(run.into()).findings()
}

/// The numbers of this run are made up. No guest and no emulated PMU counts the waits for memory.
#[test]
fn findings_are_in_the_order_of_what_they_explain() {
    let directory = TempDir::new().expect("a directory");
    let run = record(directory.path(), &[], "sleep 0.5");
    for (numbers, expected) in [
        ([2.0, 0.0, 1.0, 1.5, 1.0], &["run queue", "storage"][..]),
        ([2.0, 0.0, 1.0, 1.0, 1.5], &["storage", "run queue"]),
        ([2.0, 0.0, 2.0, 0.1, 0.1], &["compute"]),
        ([0.4, 9e9, 2.0, 0.1, 0.1], &["memory access", "compute"]),
        // Few instructions for another reason, and much traffic without waits.
        ([0.4, 1e8, 2.0, 0.1, 0.1], &["compute"]),
        ([2.0, 9e9, 2.0, 0.1, 0.1], &["compute"]),
        ([0.4, 9e9, 2.0, 1.0, 0.1], &["run queue"]),
    ] {
        let found = with_numbers(&run, numbers);
        let names: Vec<_> = found.iter().map(|one| one["name"].as_str()).collect();
        let expected: Vec<_> = expected.iter().copied().map(Some).collect();
        assert_eq!(names, expected, "{numbers:?}: {found:#?}");
        let text = found[0]["text"].as_str().expect("a text");
        assert!(
            names[0] != Some("memory access")
                || text.contains("executed 0.40 instructions per cycle"),
            "{text}"
        );
    }
}
