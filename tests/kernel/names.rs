//! Names of processes that run before the profiler.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use e2e::{
    procfs::is_idle,
    runs::{ProcessGroup, Profiler, wait_until},
};

use crate::{
    WORKLOAD, kernel_release,
    programs::{UNUSED_HELPERS, count_runs},
    targets::Group,
};

/// Enough for the iterator.
const USUAL: u64 = 80;
/// Linux with the helper that reads the memory of another process.
const READS_MEMORY: [u32; 2] = [5, 18];

/// A shell with these arguments that waits for its end.
fn waiting(arguments: &[&str], environment: &[(&str, &str)]) -> ProcessGroup {
    let mut command = Command::new("sh");
    command.args(["-c", "read line", "waiting"]).args(arguments);
    command.env_clear().envs(environment.iter().copied());
    let process = ProcessGroup::start(command.stdin(Stdio::piped()));
    wait_until("the shell waits", || is_idle(process.pid()));
    process
}

/// A process, and the job and the rank in its environment.
type Named = (ProcessGroup, Option<(u64, u64)>);

fn processes() -> Vec<Named> {
    let of_job = |job: u64, arguments: &[&str], before: &str| {
        let values = [job, job % 7].map(|number| number.to_string());
        let environment = [
            // In the order of their names.
            ("A", before),
            ("SLURM_JOB_ID", &values[0]),
            ("SLURM_PROCID", &values[1]),
        ];
        (waiting(arguments, &environment), Some((job, job % 7)))
    };
    let usual = (0..USUAL).map(|number| of_job(4_000_100 + number, &[&number.to_string()], ""));
    let mut processes: Vec<Named> = usual.collect();
    // Longer than what the iterator reads.
    processes.push(of_job(4_000_200, &[&"l".repeat(6000), "end"], ""));
    processes.push(of_job(4_000_201, &["", "two  words"], &"e".repeat(20_000)));
    processes.push((waiting(&["without"], &[]), None));
    let mut title = Command::new(WORKLOAD);
    let title = ProcessGroup::start(title.arg("title").stdin(Stdio::null()));
    wait_until("it has its title", || {
        cmdline(title.pid()).contains("title")
    });
    processes.push((title, None));
    processes
}

/// Arguments joined by spaces.
fn cmdline(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).expect("it is alive");
    let text = String::from_utf8(bytes).expect("UTF-8");
    text.strip_suffix('\0').unwrap_or(&text).replace('\0', " ")
}

/// Path of the executable.
fn exe(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).expect("it is alive")
}

#[test]
fn names_are_those_of_proc() {
    let _counted = count_runs();
    for unused in ["", "BPF_FUNC_copy_from_user_task"] {
        let group = Group::new();
        let first = waiting(&[], &[]);
        group.add(first.pid());
        let run = Profiler::new()
            .args(["--cgroup", group.0.to_str().expect("UTF-8")])
            // The processes come between the two readings, all at once for the second one.
            .args(["-i", "1h", "--source", "process,overhead"])
            .env(UNUSED_HELPERS, unused)
            .start();
        let processes = processes();
        for (process, _) in &processes {
            group.add(process.pid());
        }
        wait_until("the moves have been handled", || is_idle(run.pid()));
        let finished = run.interrupt();
        let dataset = finished.dataset();
        let rows = dataset.table("process");
        for (process, job) in &processes {
            let pid = process.pid();
            let row = rows.iter().find(|row| row.u64("pid") == Some(pid.into()));
            let row = row.expect("a row");
            assert_eq!(row.text("cmdline"), Some(&*cmdline(pid)), "{unused}");
            assert_eq!(row.text("exe").map(PathBuf::from), Some(exe(pid)));
            let cgroup = row.text("cgroup").expect("a cgroup");
            assert!(group.0.ends_with(&cgroup[1..]), "{cgroup}");
            let (id, rank) = job.unzip();
            assert_eq!(row.text("job_id"), id.map(|id| id.to_string()).as_deref());
            assert_eq!(row.u64("task_rank"), rank);
        }
        let mut visits = dataset.table("overhead");
        visits.retain(|row| row.text("component") == Some("names"));
        let visits: u64 = visits.iter().filter_map(|row| row.u64("runs")).sum();
        let is_used = unused.is_empty() && kernel_release() >= READS_MEMORY;
        assert_eq!(visits >= USUAL, is_used, "{visits}");
        for (process, _) in &processes {
            group.remove(process.pid());
        }
        group.remove(first.pid());
    }
}
