//! Instructions that a sample takes, counted by Valgrind: the same ones for the same program, however
//! busy the machine is.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{
    mounts::directory,
    runs::{ProcessGroup, Profiler, wait_until},
};

/// Functions that are counted: those of a sample in the loop and in the writer.
const COUNTED: [&str; 2] = [
    "profiler::session::sampler::Sampler::tick",
    "profiler::output::dataset::thread::WriterThread::write",
];
/// Called once per sample.
const PER_SAMPLE: &str = "profiler::tasks::TaskTable::refresh";
const SLEEPERS: usize = 500;
/// Samples of which the least count is taken: others read something that is not read each time.
const SAMPLES: usize = 6;
/// Twice what an unoptimized program takes on a node with two CPUs.
const INSTRUCTIONS_MAX: u64 = 8_000_000;

/// Files with the instructions between two samples, in their order. The last one can be incomplete.
fn files(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).expect("a directory").flatten();
    let numbered = files.filter_map(|file| {
        let name = file.file_name();
        let number = name.to_str()?.strip_prefix("callgrind.")?;
        number.parse::<u32>().ok().zip(Some(file.path()))
    });
    let mut files: Vec<_> = numbered.collect();
    files.sort_unstable();
    files.into_iter().map(|(_, path)| path).collect()
}

/// Whether a function was among those that were counted.
fn has_counted(directory: &Path, function: &str) -> bool {
    let texts = files(directory).into_iter().map(fs::read_to_string);
    texts.flatten().any(|text| text.contains(function))
}

fn count(file: &Path) -> u64 {
    let text = fs::read_to_string(file).expect("text");
    let mut lines = text.lines();
    let total = lines.find_map(|line| line.strip_prefix("totals: "));
    total.expect("a total").parse().expect("a number")
}

/// Waits for more samples, and returns the least number of instructions of the last ones.
fn least_of_next(directory: &Path) -> u64 {
    let enough = files(directory).len() + 2 * SAMPLES;
    wait_until("samples are counted", || files(directory).len() > enough);
    let last = &files(directory)[enough - SAMPLES..enough];
    last.iter().map(|file| count(file)).min().expect("samples")
}

/// A process that starts as many sleeping ones as its input says.
fn parent() -> ProcessGroup {
    let script = r"while read count; do
        for i in $(seq $count); do sleep 1000 & done
    done";
    let mut command = Command::new("sh");
    ProcessGroup::start(command.args(["-c", script]).stdin(Stdio::piped()))
}

#[test]
fn sleeping_processes_cost_nothing() {
    let directory = directory();
    let files = directory.path().join("callgrind");
    let [tick, write] = COUNTED.map(|function| format!("--toggle-collect={function}"));
    let wrapper = [
        "valgrind",
        "-q",
        "--tool=callgrind",
        &tick,
        &write,
        &format!("--dump-before={PER_SAMPLE}"),
        &format!("--callgrind-out-file={}", files.display()),
        // It warns of system calls that it does not know, for each process, and nothing reads stderr meanwhile.
        &format!("--log-file={}", directory.path().join("log").display()),
    ];
    let mut parent = parent();
    let run = Profiler::wrapped_in(&wrapper)
        .args(["-i", "500ms", "--sparse", "on"])
        .pid(parent.pid())
        .start();
    let alone = least_of_next(directory.path());
    let mut input = parent.0.stdin.take().expect("a pipe");
    writeln!(input, "{SLEEPERS}").expect("written");
    let children = format!("/proc/{0}/task/{0}/children", parent.pid());
    wait_until("all sleep", || {
        let children = fs::read_to_string(&children).expect("the parent lives");
        children.split_whitespace().count() == SLEEPERS
    });
    let with_sleepers = least_of_next(directory.path());
    let finished = run.interrupt();
    for function in COUNTED {
        assert!(has_counted(directory.path(), function), "{function}");
    }
    let processes = "SELECT count(*) FROM process";
    assert!(finished.dataset().value::<usize>(processes) > SLEEPERS);
    assert!(
        with_sleepers < alone + alone / 2 && alone < INSTRUCTIONS_MAX,
        "{with_sleepers} instructions with {SLEEPERS} sleeping processes, {alone} without"
    );
}
