//! Time namespaces (`time_namespaces(7)`), in which the clocks of containers and restored processes have
//! offsets.

use std::process::Command;

use e2e::{
    dataset::Dataset, procfs::wall_ns, runs::Profiler, setting, workload_driver::WorkloadDriver,
};
use serde_json::Value;

use crate::{WORKLOAD, errors::WITHOUT_BTF, regions::MARKS};

/// Executes a command in a time namespace with these offsets, s.
fn with_offsets(monotonic: &str, boottime: &str) -> [String; 4] {
    [
        "unshare".to_owned(),
        "--time".to_owned(),
        format!("--monotonic={monotonic}"),
        format!("--boottime={boottime}"),
    ]
}

/// Two readings of the clocks, from which the offset between them is known.
const PRECISION_NS: i64 = 1_000_000;
/// Clock tick of `/proc`.
const TICK_NS: i64 = 10_000_000;

/// What a run has of the process `pid` and of its only child.
#[derive(Debug)]
struct Recorded {
    /// Start, ns since 1970.
    start: i64,
    /// CPU time in ns, and calls to write(2).
    sums: (u64, u64),
    /// Start and end of the child, ns since 1970.
    child: (i64, i64),
    /// Rows with an interval that begins before the run.
    too_long: u64,
}

impl Recorded {
    fn of(data: &Dataset, pid: u32) -> Self {
        let of_process = format!("process WHERE pid = {pid}");
        Self {
            start: data.value(&format!("SELECT epoch_ns(start_ts) FROM {of_process}")),
            sums: data.row(&format!(
                "SELECT sum(user_ns + system_ns), sum(write_syscalls) FROM usage WHERE pid = {pid}"
            )),
            child: data.row(&format!(
                "SELECT epoch_ns(start_ts), epoch_ns(ts) FROM process WHERE ppid = {pid}"
            )),
            too_long: data.value(
                "SELECT count(*) FROM usage, run \
                 WHERE epoch_ns(usage.ts) - usage.interval_ns < epoch_ns(run.start_ts)",
            ),
        }
    }
}

/// Profilers in time namespaces record the same as one outside of them. The process is idle while they
/// start and stop.
#[test]
fn profilers_in_time_namespaces_have_the_times_of_the_node() {
    let [later, earlier] = [("100000", "100000"), ("-5", "-3")]
        .map(|(monotonic, boottime)| with_offsets(monotonic, boottime));
    let [later, earlier] = [&later, &earlier].map(|words| words.each_ref().map(String::as_str));
    let without_bpf = [&WITHOUT_BTF[..], &later].concat();
    let wrappers: [&[&str]; 5] = [&[], &later, &earlier, &WITHOUT_BTF, &without_bpf];
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    let profilers = wrappers.map(|wrapper| {
        let profiler = Profiler::wrapped_in(wrapper).args(["-i", "100ms"]);
        let profiler = profiler.args(["--source", "usage,process"]);
        profiler.pid(workload.pid()).start()
    });
    let before = wall_ns();
    workload.run("burn 300");
    workload.run("write 700");
    workload.run("spin-child 1000");
    let runs = profilers.map(|profiler| {
        let finished = profiler.interrupt();
        Recorded::of(&finished.dataset(), workload.pid())
    });
    let after = wall_ns();
    let [outside, ..] = &runs;
    assert!(outside.sums.0 != 0 && outside.sums.1 >= 700, "{runs:#?}");
    for (number, run) in runs.iter().enumerate() {
        assert_eq!(
            (run.sums, run.too_long),
            (outside.sums, 0),
            "{number}: {runs:#?}"
        );
        // Start times in /proc are rounded down to clock ticks.
        let rounded = if number < 3 { 0 } else { TICK_NS };
        let starts = outside.start - rounded - PRECISION_NS..=outside.start + PRECISION_NS;
        assert!(starts.contains(&run.start), "{number}: {runs:#?}");
        let (start, end) = run.child;
        let range = before - rounded - PRECISION_NS..=after;
        assert!(
            range.contains(&start) && start <= end && range.contains(&end),
            "{number}: {runs:#?}"
        );
    }
}

/// Whichever of the profiler and the application is in the namespace.
#[test]
fn marks_from_time_namespaces_have_the_time_of_their_sending() {
    let namespace = with_offsets("100000", "200000");
    let namespace = namespace.each_ref().map(String::as_str);
    let python = setting("PROFILER_TEST_PYTHON");
    let script =
        format!("{MARKS}print(json.dumps([*mark(\"start\", \"work\"), *mark(\"end\", \"work\")]))");
    let application = [&python[..], "-c", &script];
    let in_namespace = [&namespace[..], &application].concat();
    for (wrapper, command) in [(&[][..], &in_namespace[..]), (&namespace, &application)] {
        let finished = Profiler::wrapped_in(wrapper).command(command).finish();
        let [begin, started, ending, end]: [i64; 4] =
            serde_json::from_str(&finished.stdout).expect("four times");
        let data = finished.dataset();
        let (start, stop): (i64, i64) = data.row(
            "SELECT epoch_ns(region_start_ts), epoch_ns(region_end_ts) FROM region WHERE name = 'work'",
        );
        let around = |range: (i64, i64)| range.0 - PRECISION_NS..=range.1 + PRECISION_NS;
        assert!(
            around((begin, started)).contains(&start),
            "{start} {begin} {started}"
        );
        assert!(
            around((ending, end)).contains(&stop),
            "{stop} {ending} {end}"
        );
    }
}

/// A profiler in another time namespace is recognized by its start.
#[test]
fn runs_of_profilers_in_time_namespaces_are_known_to_be_written() {
    let [here, there] = [("100000", "100000"), ("7", "3")]
        .map(|(monotonic, boottime)| with_offsets(monotonic, boottime));
    let [here, there] = [&here, &there].map(|words| words.each_ref().map(String::as_str));
    let running = Profiler::wrapped_in(&here)
        .args(["--node", "--source", "system", "-i", "100ms"])
        .start();
    for wrapper in [&[][..], &there] {
        let binary = setting("PROFILER_BIN");
        let output = |words: &[&str]| {
            let words = [wrapper, &[&binary], words].concat();
            let output = Command::new(words[0]).args(&words[1..]).output();
            output.expect("it starts")
        };
        let run = running.run_dir();
        let refused = output(&["recover", run.to_str().expect("UTF-8")]);
        let expected = format!("is being written by process {}", running.pid());
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && stderr.contains(&expected),
            "{stderr}"
        );
        let listed = output(&["status", "--json"]);
        let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("JSON");
        let pids: Vec<_> = listed
            .iter()
            .map(|entry| &entry["process"]["pid"])
            .collect();
        assert!(pids.contains(&&running.pid().into()), "{listed:?}");
    }
    let finished = running.interrupt();
    finished.dataset().assert_complete();
}
