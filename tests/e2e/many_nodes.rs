//! Several nodes in one run directory; one profiler for all jobs of a node.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use e2e::{
    dataset::Dataset,
    runs::{ProcessGroup, Profiler, Running, wait_until},
    setting,
    workload_driver::WorkloadDriver,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::{WORKLOAD, cgroup::Group};

const OUTPUT: i32 = 5;
const UNWELL: i32 = 7;

/// Exit code and report of `profiler verify RUN --json`.
fn verify(run: &Path) -> (i32, Value) {
    let Output { status, stdout, .. } = Command::new(setting("PROFILER_BIN"))
        .args(["verify", "--json"])
        .arg(run)
        .output()
        .expect("the profiler starts");
    let reports: Value = serde_json::from_slice(&stdout).expect("JSON");
    (status.code().expect("a code"), reports[0].clone())
}

fn problems(report: &Value) -> Vec<&str> {
    let problems = report["problems"].as_array().expect("a list");
    problems.iter().filter_map(Value::as_str).collect()
}

/// Starts eight profilers at a time, because two CPUs cannot load the programs of 64 profilers at
/// the same time.
fn start_in_groups(count: usize, start: impl Fn(usize) -> Running) -> Vec<Running> {
    let mut running: Vec<Running> = Vec::new();
    for number in 0..count {
        running.push(start(number));
        if number % 8 == 7 {
            for profiler in &mut running[number - 7..=number] {
                profiler.wait_for("profiling ");
            }
        }
    }
    running
}

/// 64 profilers simulate 64 nodes. Some are killed and restarted while the others continue.
#[test]
fn sixty_four_hosts_share_one_run() {
    const HOSTS: usize = 64;
    let directory = tempfile::TempDir::new().expect("a directory");
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let host = |number: usize| format!("node{number:02}");
    let start = |number: usize| -> Running {
        Profiler::writing_to(directory.path())
            .args(["--run-id", "job-1", "--hostname", &host(number), "-i", "1s"])
            .args(["--source", "system,process,usage", "--checkpoint", "3s"])
            .pid(workload.pid())
            .spawn()
    };
    let running = start_in_groups(HOSTS, start);
    let run = directory.path().join("job-1");
    let (code, report) = verify(&run);
    assert_eq!(code, UNWELL);
    assert_eq!(report["hosts"].as_object().expect("hosts").len(), HOSTS);
    assert!(
        problems(&report)
            .iter()
            .all(|p| p.ends_with(" has not ended")),
        "{report:#}"
    );

    // Every eighth is killed and restarted.
    let killed: BTreeSet<usize> = (0..HOSTS).step_by(8).collect();
    let journal = |number: &usize| run.join(format!("system/host={}", host(*number)));
    wait_until("all have written rows", || {
        killed.iter().map(journal).all(|path| path.exists())
    });
    for &number in &killed {
        running[number].signal(Signal::KILL);
    }
    let others = running.into_iter().enumerate();
    let (killed_now, others): (Vec<_>, Vec<_>) =
        others.partition(|(number, _)| killed.contains(number));
    for (_, profiler) in killed_now {
        profiler.finish();
    }
    let mut again: Vec<_> = killed
        .iter()
        .map(|number| (*number, start(*number)))
        .collect();
    for (_, profiler) in &mut again {
        profiler.wait_for("profiling ");
    }
    let running: Vec<_> = others.into_iter().chain(again).collect();
    for (_, profiler) in &running {
        profiler.signal(Signal::INT);
    }
    for (number, profiler) in running {
        let ended = profiler.finish();
        assert_eq!(ended.code(), 0, "{}: {}", host(number), ended.stderr);
    }

    let (code, report) = verify(&run);
    let found = problems(&report);
    assert_eq!(code, UNWELL, "{found:?}");
    assert_eq!(found.len(), killed.len(), "{found:?}");
    for (number, problem) in killed.iter().zip(&found) {
        let expected = format!("{}: the session of ", host(*number));
        assert!(problem.starts_with(&expected), "{problem}");
        assert!(
            problem
                .ends_with("was killed: at most the last 1.00 s are lost; the rest is recovered"),
            "{problem}"
        );
    }
    agree(
        &Dataset::new(run),
        &report,
        &(0..HOSTS).map(host).collect::<Vec<_>>(),
    );
    let sessions = |number: usize| report["hosts"][&host(number)]["sessions"].as_u64();
    for number in 0..HOSTS {
        let expected = if killed.contains(&number) { 2 } else { 1 };
        assert_eq!(sessions(number), Some(expected), "{}", host(number));
    }
}

/// Asserts that `profiler verify` agrees with a query over all hosts.
#[track_caller]
fn agree(data: &Dataset, report: &Value, expected: &[String]) {
    let rows: Vec<(String, u64, u64, u64)> = data.rows(
        "WITH ticks AS (SELECT host, ts FROM system UNION ALL SELECT host, ts FROM usage) \
         SELECT host, count(*), (SELECT count(DISTINCT ts) FROM ticks t WHERE t.host = s.host), \
         (SELECT count(*) FROM usage u WHERE u.host = s.host) FROM system s GROUP BY host ORDER BY host",
    );
    let hosts: Vec<_> = rows.iter().map(|(host, ..)| host.clone()).collect();
    assert_eq!(hosts, expected);
    for (name, system, ticks, usage) in rows {
        let of = &report["hosts"][&name];
        // A kill can occur between the tables of a sample.
        let torn = ticks - system;
        assert!(
            system >= 1 && torn <= 1,
            "{name}: {system} rows at {ticks} ticks"
        );
        assert_eq!(of["samples"]["found"], ticks, "{name}");
        assert_eq!(of["samples"]["missing"], 0, "{name}");
        assert_eq!(of["tables"]["system"], system, "{name}");
        assert_eq!(of["tables"]["usage"], usage, "{name}");
        // All profilers run on one kernel and have the same clock.
        let offset = of["clock"]["offset_ns"].as_i64().expect("known");
        assert!(offset.abs() < 1_000_000, "{of:#}");
    }
    for table in ["process", "system", "usage"] {
        assert_eq!(report["tables"][table]["hosts"], expected.len(), "{table}");
    }
    let manifests = std::fs::read_dir(data.path())
        .expect("a directory")
        .filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            let name = name.to_string_lossy();
            name.starts_with("run.") && name.ends_with("json")
        });
    assert_eq!(manifests.count(), expected.len());
}

#[test]
fn second_profiler_of_a_node_is_refused() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let start = |more: &[&str]| {
        Profiler::writing_to(directory.path())
            .args([
                "--run-id",
                "one",
                "--source",
                "system,process",
                "-i",
                "100ms",
            ])
            .args(more)
            .pid(workload.pid())
    };
    let first = start(&[]).start();
    let message = format!("process {} already profiles", first.pid());
    let second = start(&[]).finish();
    assert_eq!(second.code(), OUTPUT);
    assert_eq!(second.stderr.lines().count(), 1, "{}", second.stderr);
    assert!(second.stderr.contains(&message), "{}", second.stderr);
    let once = start(&["--once"]).finish();
    assert_eq!((once.code(), once.stdout.as_str()), (0, ""));
    assert!(once.stderr.contains(&message), "{}", once.stderr);
    let quiet = start(&["--once", "--quiet"]).finish();
    assert_eq!((quiet.code(), quiet.stderr.as_str()), (0, ""));
    // Other nodes and other runs are independent.
    assert_eq!(
        start(&["--hostname", "other", "-d", "200ms"])
            .finish()
            .code(),
        0
    );
    // The lock is released when its owner ends, even by a signal.
    first.signal(Signal::KILL);
    first.finish();
    let next = start(&["--once", "-d", "200ms"]).finish();
    assert_eq!(next.code(), 0, "{}", next.stderr);
    assert!(next.stderr.contains("recovered"), "{}", next.stderr);
    let (_, report) = verify(&directory.path().join("one"));
    assert_eq!(
        report["hosts"].as_object().expect("hosts").len(),
        2,
        "{report:#}"
    );
}

#[test]
fn log_file_replaces_stderr() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let log = directory.path().join("p.log");
    let out = directory.path().join("out");
    for _ in 0..2 {
        let ended = Profiler::writing_to(&out)
            .args([
                "--hostname",
                "n1",
                "-i",
                "100ms",
                "-d",
                "300ms",
                "--source",
                "system,process",
            ])
            .args(["--log", log.to_str().expect("UTF-8")])
            .pid(workload.pid())
            .finish();
        assert_eq!(
            (ended.code(), ended.stdout.as_str(), ended.stderr.as_str()),
            (0, "", "")
        );
    }
    let text = std::fs::read_to_string(directory.path().join("p.n1.log")).expect("a log");
    let stamp = |line: &str| {
        line.get(..25)
            .is_some_and(|time| time.starts_with("20") && time.ends_with("Z "))
    };
    assert!(text.lines().all(stamp), "{text}");
    let begun = text
        .lines()
        .filter(|line| line.contains("Z profiling process"));
    assert_eq!(begun.count(), 2, "{text}");
    let refused = Profiler::writing_to(&out)
        .args(["--log", "/nowhere/at/all"])
        .pid(workload.pid())
        .finish();
    assert_eq!(refused.code(), OUTPUT);
    assert!(
        refused.stderr.contains("no such directory"),
        "{}",
        refused.stderr
    );
}

/// Pids with rows in a table of a run.
fn pids(data: &Dataset, table: &str) -> BTreeSet<u32> {
    let rows: Vec<(u32,)> = data.rows(&format!(
        "SELECT DISTINCT pid FROM {table} WHERE pid IS NOT NULL"
    ));
    rows.into_iter().map(|(pid,)| pid).collect()
}

/// Cgroups like those of Slurm, in a v1 hierarchy.
pub struct Slurm {
    group: Group,
}

impl Slurm {
    pub fn new() -> Self {
        Self {
            group: Group::new(&["-t", "cgroup", "-o", "freezer"]),
        }
    }

    pub fn root(&self) -> PathBuf {
        self.group.outer().join("slurm_n1")
    }

    /// Starts a program in the cgroup of a job step.
    pub fn begin(&self, job: u32, step: u32, script: &str) -> ProcessGroup {
        let group = self.root().join(format!("uid_0/job_{job}/step_{step}"));
        std::fs::create_dir_all(&group).expect("a group");
        let group = group.display();
        let script = format!("echo $$ > {group}/cgroup.procs; exec sh -c '{script}'");
        ProcessGroup::spawn(&["sh", "-c", &script])
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        remove_groups(&self.root());
    }
}

/// Removes a cgroup, which stays busy for a moment after its last member has ended.
fn remove_groups(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    wait_until("the group is empty", || {
        std::fs::remove_dir(group).is_ok() || !group.exists()
    });
}

/// Each job has its own run, with exactly the rows of its processes.
#[test]
fn split_by_job_writes_one_run_per_job() {
    let slurm = Slurm::new();
    let directory = tempfile::TempDir::new().expect("a directory");
    let run = |name: &str| Dataset::new(directory.path().join(name));
    let outsider = WorkloadDriver::new(WORKLOAD, 0);
    let mut profiler = Profiler::writing_to(directory.path())
        .args([
            "--node",
            "--split-by",
            "job",
            "--run-id",
            "node",
            "-i",
            "100ms",
        ])
        .args([
            "--source",
            "process,usage,sched,file_io,system",
            "--checkpoint",
            "1s",
        ])
        .start();
    let one = slurm.begin(
        900_001,
        0,
        "while :; do head -c 1000000 /dev/zero > /dev/null; done",
    );
    profiler.wait_for("profiling job 900001");
    let two = slurm.begin(900_002, 0, "sleep 100; :");
    profiler.wait_for("profiling job 900002");
    // The first job has two steps, one after the other.
    drop(one);
    let again = slurm.begin(900_001, 1, "sleep 0.4; exec sleep 0.4");
    let again_pid = again.pid();
    profiler.wait_for("job 900001 has no processes left");
    drop(again);
    assert_eq!(run("slurm-900001").manifest()["state"], "complete");
    assert_eq!(run("slurm-900002").manifest()["state"], "running");
    // A job continues after its run was complete.
    let late = slurm.begin(900_001, 2, "exec sleep 100");
    let late_pid = late.pid();
    profiler.wait_for("profiling job 900001");
    let ended = profiler.interrupt();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let two_pid = two.pid();
    drop((two, late));

    let [first, second, rest] = ["slurm-900001", "slurm-900002", "node"].map(run);
    for data in [&first, &second, &rest] {
        let (code, report) = verify(data.path());
        assert_eq!(code, 0, "{report:#}");
    }
    assert_eq!(second.manifest()["target"]["node_run"], "node");
    for data in [&first, &second] {
        let uid: u32 = data.value("SELECT max(uid) FROM process");
        assert_eq!(data.manifest()["uid"], uid);
        assert_eq!(data.manifest()["user"], uid.to_string());
    }
    let of_first = pids(&first, "process");
    assert!(
        of_first.contains(&again_pid) && of_first.contains(&late_pid),
        "{of_first:?}"
    );
    assert!(pids(&second, "process").contains(&two_pid));
    let outsiders = pids(&rest, "process");
    assert!(outsiders.contains(&outsider.pid()) && outsiders.contains(&std::process::id()));
    for data in [&first, &second] {
        let others: u64 =
            data.value("SELECT count(*) FROM process WHERE job_id NOT IN ('900001', '900002')");
        assert_eq!(others, 0);
    }
    for table in ["usage", "sched", "file_io"] {
        let [of_first, of_second] = [&first, &second].map(|data| pids(data, table));
        assert!(of_first.is_disjoint(&of_second), "{table}");
        // The first processes of a job belong to it from the sample that finds its cgroup.
        for data in [&first, &second] {
            let late: Vec<(u32, i64, i64)> = data.rows(&format!(
                "SELECT pid, epoch_ns(max(o.ts)), epoch_ns(min(j.ts)) FROM {table} j JOIN \
                 read_parquet('{}/{table}/host=*/part-*.parquet') o USING (pid, start_ts) \
                 GROUP BY pid, start_ts HAVING max(o.ts) >= min(j.ts)",
                rest.path().display()
            ));
            assert!(late.is_empty(), "{table}: {late:?}");
        }
    }
    only_there(&first, &rest);
}

/// Asserts that the rows of a job are only in its run, and node-wide rows only in the node's run.
fn only_there(job: &Dataset, node: &Dataset) {
    // Programs started by a process of the job belong to the job; the node's run has what the first
    // ones did before the sample that found the job.
    let [heads, counted, lifetime, elsewhere]: [u64; 4] = job.value(&format!(
        "SELECT [count(*), sum(read)::BIGINT, sum(read_chars)::BIGINT, count(before)] FROM process \
         JOIN (SELECT pid, start_ts, sum(read_bytes) AS read, max(before) AS before FROM \
           (SELECT pid, start_ts, read_bytes, NULL AS before FROM file_io UNION ALL \
            SELECT pid, start_ts, read_bytes, true FROM \
            read_parquet('{}/file_io/host=*/part-*.parquet')) GROUP BY ALL) \
         USING (pid, start_ts) WHERE comm = 'head'",
        node.path().display()
    ));
    assert!(
        heads > 1 && counted == lifetime && elsewhere <= 1,
        "{heads}, {elsewhere} of them elsewhere: {counted} of {lifetime}"
    );
    let elsewhere: u64 =
        node.value("SELECT count(*) FROM process WHERE comm = 'head' AND job_id = '900001'");
    assert_eq!(elsewhere, 0);
    assert!(!job.path().join("system").exists() && node.path().join("system").exists());
    let strays: u64 = node.value(&format!(
        "SELECT count(*) FROM (SELECT DISTINCT ts FROM read_parquet('{}/usage/host=*/part-*.parquet')) \
         WHERE ts NOT IN (SELECT ts FROM read_parquet('system/host=*/part-*.parquet'))",
        job.path().display()
    ));
    assert_eq!(strays, 0, "all runs have the same samples");
}
