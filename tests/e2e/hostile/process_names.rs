//! Names that are expensive to read: `/proc/PID/cmdline` and `environ` are as long as a process
//! chooses.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use e2e::{
    attacker::{UID, VICTIM, command_as, directory_of},
    dataset::Dataset,
    procfs,
    runs::{Finished, ProcessGroup, Profiler, Running, wait_until},
    setting,
};
use tempfile::TempDir;

use crate::WORKLOAD;

/// Maximum length of a stored command line, in bytes.
const CMDLINE_MAX: u64 = 64 << 10;

/// A workload that other users can execute.
pub fn workload() -> (TempDir, std::path::PathBuf) {
    let directory = directory_of(0);
    let program = directory.path().join("workload");
    fs::copy(WORKLOAD, &program).expect("a copy");
    (directory, program)
}

/// A process that waits until it is dropped.
pub struct Waiting {
    child: Child,
    _stdin: ChildStdin,
}

impl Waiting {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = child.stdin.take().expect("a pipe");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        stdout.read_line(&mut line).expect("a line");
        assert_eq!(line, "done\n");
        Self {
            child,
            _stdin: stdin,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Peak memory of a profiler, in bytes.
fn peak_memory(running: &Running) -> u64 {
    procfs::number(running.pid(), "status", "VmHWM") * 1024
}

/// CPU time since the start of sampling, and peak memory (bytes) of the profiler.
#[derive(Debug)]
struct Cost {
    cpu: Duration,
    memory: u64,
}

/// Runs the profiler for 15 samples; returns its cost and the run.
fn profiled(arguments: &[&str]) -> (Cost, Finished) {
    let running = Profiler::new()
        .args(["--source", "process,overhead", "-i", "200ms"])
        .args(arguments)
        .start();
    Dataset::new(running.run_dir()).wait_for_samples("overhead", 15);
    let memory = peak_memory(&running);
    let finished = running.interrupt();
    let ns: u64 = finished
        .dataset()
        .value("SELECT sum(cpu_ns) FROM overhead WHERE component_kind = 'profiler'");
    let cpu = Duration::from_nanos(ns);
    (Cost { cpu, memory }, finished)
}

/// Length of the stored command line, and `cmdline_truncated`.
fn cmdline(data: &Dataset, pid: u32) -> (Option<u64>, Option<bool>) {
    data.row(&format!(
        "SELECT strlen(cmdline), cmdline_truncated FROM process WHERE pid = {pid}"
    ))
}

fn start_as(uid: u32, program: &Path, arguments: &[&str]) -> Waiting {
    Waiting::start(command_as(uid, program).args(arguments))
}

#[test]
fn endless_command_line_costs_no_more() {
    // Reading them takes seconds each.
    const MORE_CPU: Duration = Duration::from_millis(800);
    const MORE_MEMORY: u64 = 16 << 20;
    let (_directory, program) = workload();
    let harmless = start_as(UID, &program, &["0"]);
    let (usual, run) = profiled(&["--pid", &harmless.pid().to_string()]);
    let data = run.dataset();
    let length = program.as_os_str().len() as u64 + " 0".len() as u64;
    assert_eq!(cmdline(&data, harmless.pid()), (Some(length), Some(false)));

    // 8 GiB of arguments, and an environment of the same size.
    let endless: Vec<Waiting> = (0..4)
        .map(|_| start_as(UID, &program, &["cmdline", "8589934592"]))
        .collect();
    let mut arguments = vec!["--pid".to_owned(), harmless.pid().to_string()];
    for process in &endless {
        arguments.extend(["--pid".to_owned(), process.pid().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (cost, run) = profiled(&arguments);
    let data = run.dataset();
    println!("{usual:?} as usual, {cost:?} with endless command lines");
    let more = cost.cpu.saturating_sub(usual.cpu);
    assert!(more < MORE_CPU, "{more:?} of CPU time for their names");
    let more = cost.memory.saturating_sub(usual.memory);
    assert!(more < MORE_MEMORY, "{more} bytes for their names");
    for process in &endless {
        let stored = cmdline(&data, process.pid());
        assert_eq!(stored, (Some(CMDLINE_MAX), Some(true)));
    }
    assert_eq!(cmdline(&data, harmless.pid()), (Some(length), Some(false)));
    data.assert_complete();
}

#[test]
fn command_lines_take_bounded_memory() {
    const PROCESSES: usize = 500;
    // 32 MiB of command lines, 64 MiB of rows not yet written, and the profiler itself.
    const MEMORY: u64 = 160 << 20;
    let (_directory, program) = workload();
    // 16 arguments of 120 KiB each: 2 MB.
    let patterns = ["\n".repeat(120 << 10), "x".repeat(120 << 10)];
    let attackers: Vec<Waiting> = (0..PROCESSES)
        .map(|number| {
            let pattern = patterns[number % 2].as_str();
            start_as(UID, &program, &[&["0"][..], &[pattern; 16]].concat())
        })
        .collect();
    let victim = start_as(VICTIM, &program, &["0", &"v".repeat(1000)]);
    let mut running = Profiler::new()
        .args(["--source", "process,overhead", "-i", "200ms", "--node"])
        .start();
    let data = Dataset::new(running.run_dir());
    wait_until("all command lines are read", || {
        sleep(Duration::from_millis(200));
        let rows = data.so_far("process");
        let named = rows
            .iter()
            .filter(|row| row.u64("uid") == Some(UID.into()) && row.text("cmdline").is_some());
        let pids: BTreeSet<_> = named.map(|row| row.u64("pid")).collect();
        pids.len() >= PROCESSES
    });
    let memory = peak_memory(&running);
    assert!(!running.has_ended());
    let run = running.interrupt();
    let data = run.dataset();
    println!("{memory} bytes");
    assert!(memory < MEMORY, "{memory} bytes");
    let length = program.as_os_str().len() as u64 + 3 + 1000;
    assert_eq!(cmdline(&data, victim.pid()), (Some(length), Some(false)));
    let (named, truncated, longest): (u64, u64, u64) = data.row(&format!(
        "SELECT count(cmdline), count_if(cmdline_truncated), max(strlen(cmdline)) \
         FROM process WHERE uid = {UID} AND cmdline LIKE '%workload 0 %'"
    ));
    let all = attackers.len() as u64;
    assert_eq!((named, truncated, longest), (all, all, CMDLINE_MAX));
    data.assert_complete();
}

/// A long environment is read up to the limit; an incomplete variable is ignored.
#[test]
fn environment_is_read_up_to_the_limit() {
    let (_directory, program) = workload();
    let mut command = command_as(UID, &program);
    command.arg("0").env_clear().env("SLURM_JOB_ID", "4711");
    for number in 0..16 {
        command.env(format!("Z{number}"), "z".repeat(100 << 10));
    }
    let known = Waiting::start(&mut command);
    // Rust sorts the variables of a command, so that the job id is beyond the limit.
    let mut command = command_as(UID, &program);
    command.arg("0").env_clear().env("SLURM_JOB_ID", "4711");
    for number in 0..16 {
        command.env(format!("A{number}"), "a".repeat(100 << 10));
    }
    let unknown = Waiting::start(&mut command);
    let pids = [known.pid().to_string(), unknown.pid().to_string()];
    let (_, run) = profiled(&["--pid", &pids[0], "--pid", &pids[1]]);
    let data = run.dataset();
    let job = |pid: u32| -> Option<String> {
        data.value(&format!("SELECT job_id FROM process WHERE pid = {pid}"))
    };
    assert_eq!(job(known.pid()).as_deref(), Some("4711"));
    assert_eq!(job(unknown.pid()), None);
}

#[test]
fn names_of_processes_are_escaped_in_messages() {
    let directory = directory_of(UID);
    // Its name has at most 15 bytes.
    let program = directory.path().join("\u{1b}[2J\nAccepted");
    let copied = Command::new("sh")
        .args(["-c", "cp \"$(command -v head)\" \"$0\""])
        .arg(&program)
        .status();
    assert!(copied.expect("it starts").success());
    let endless = ProcessGroup::start(
        command_as(UID, &program)
            .args(["-c", "1E", "/dev/zero"])
            .stdout(Stdio::null()),
    );
    let ended = Profiler::new()
        .args(["-i", "100ms", "-d", "1s"])
        .args(["--pid", &endless.pid().to_string()])
        .finish();
    let text = &ended.stderr;
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let top = text.lines().find(|line| line.starts_with("top CPU "));
    assert!(
        top.is_some_and(|line| line.ends_with("s \\u{1b}[2J\\nAccepted")),
        "{text:?}"
    );
    ended.dataset().assert_complete();
}

/// A user chooses the name of a process. As a formula, it would be computed by the spreadsheet of
/// the user who opens an export.
#[test]
fn names_are_no_formulas_in_an_export_for_spreadsheets() {
    let names = ["=1+1", "+1", "-1", "@SUM(A1)", "x=1"];
    let (directory, program) = workload();
    let running = names.map(|name| {
        let copy = directory.path().join(name);
        fs::copy(&program, &copy).expect("a copy");
        start_as(UID, &copy, &["0"])
    });
    let pids = running.each_ref().map(|process| process.pid().to_string());
    let options: Vec<_> = pids.iter().flat_map(|pid| ["--pid", pid]).collect();
    let (_, run) = profiled(&options);
    let data = run.dataset();
    let exports = TempDir::new().expect("a directory");
    let exported = |name: &str, options: &[&str]| {
        let path = exports.path().join(name);
        let code = Command::new(setting("PROFILER_BIN"))
            .args(["export", "csv", "--table", "process", "-o"])
            .arg(&path)
            .args(options)
            .arg(data.path())
            .status();
        assert!(code.expect("it starts").success());
        format!(
            "read_csv('{}', header = true, all_varchar = true)",
            path.display()
        )
    };
    let plain = exported("plain.csv", &[]);
    let safe = exported("safe.csv", &["--spreadsheet-safe"]);
    for (pid, name) in pids.iter().zip(names) {
        let comm = |file: &str| -> String {
            data.value(&format!("SELECT comm FROM {file} WHERE pid = '{pid}'"))
        };
        let mark = if name == "x=1" { "" } else { "'" };
        assert_eq!(
            (comm(&plain), comm(&safe)),
            (name.to_owned(), format!("{mark}{name}"))
        );
    }
    // Nothing else differs.
    let differing: u64 = data.value(&format!(
        "SELECT count(*) FROM (SELECT * EXCLUDE comm FROM {plain} EXCEPT SELECT * EXCLUDE comm FROM {safe})"
    ));
    assert_eq!(differing, 0);
    let refused = Command::new(setting("PROFILER_BIN"))
        .args([
            "export",
            "json",
            "--spreadsheet-safe",
            "-o",
            "-",
            "--table",
            "process",
        ])
        .arg(data.path())
        .output();
    assert_eq!(refused.expect("it starts").status.code(), Some(2));
}
