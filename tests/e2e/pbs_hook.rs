//! The hook of docs/deploy for PBS, with a stand-in for the Python module of PBS
//! (tests/environments/pbs) and for `qstat`. The profiler and the cgroup of the job are real.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{dataset::Dataset, procfs, runs::wait_until, setting, workload_driver::WorkloadDriver};
use tempfile::TempDir;

use crate::{
    WORKLOAD,
    job_layouts::{Tree, oncpu, put},
};

/// The node of a job: settings of the hook and directories.
struct Node {
    directory: TempDir,
    job: &'static str,
}

impl Node {
    fn new(job: &'static str, profiler: &str) -> Self {
        let node = Self {
            directory: TempDir::new().expect("a directory"),
            job,
        };
        let settings = serde_json::json!({
            "profiler": profiler,
            "out": node.at("out"),
            "run": node.at("run"),
            "options": ["-i", "100ms", "--source", "process,sched"],
        });
        fs::write(node.at("settings.json"), settings.to_string()).expect("written");
        fs::create_dir_all(node.at("exec/bin")).expect("a directory");
        let qstat = node.at("exec/bin/qstat");
        let text = format!(
            "#!/bin/sh\necho called >>{}\nprintf 'Job Id: {job}\\n    job_state = R\\n'\n",
            node.at("queries").display()
        );
        fs::write(&qstat, text).expect("written");
        fs::set_permissions(&qstat, fs::Permissions::from_mode(0o755)).expect("our file");
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs the hook as `pbs_mom` would; returns what it logs.
    #[track_caller]
    fn event(&self, name: &str) -> String {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(setting("PROFILER_TEST_PYTHON"))
            .arg(tests.join("../docs/deploy/pbs-hook.py"))
            .env("PYTHONPATH", tests.join("environments/pbs"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TEST_PBS_EVENT", name)
            .env("TEST_PBS_JOB", self.job)
            .env("TEST_PBS_EXEC", self.at("exec"))
            .env("TEST_PBS_CONFIG", self.at("settings.json"))
            .output();
        let output = output.expect("Python starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let log = text.strip_suffix("accepted\n");
        assert!(output.stderr.is_empty(), "{output:?}");
        log.unwrap_or_else(|| panic!("{output:?}")).to_owned()
    }

    fn entries(&self, name: &str) -> usize {
        fs::read_dir(self.at(name)).map_or(0, Iterator::count)
    }
}

#[test]
fn hook_profiles_a_job_from_begin_to_end() {
    let node = Node::new("4000021.server", &setting("PROFILER_BIN"));
    let mut tree = Tree::mounted(2);
    let group = tree.make("pbs_jobs.service/jobs/4000021.server");
    assert_eq!(node.event("EXECJOB_BEGIN"), "");
    let pid = fs::read_to_string(node.at("run/4000021.server.pid")).expect("the pid");
    let pid: u32 = pid.trim().parse().expect("a number");
    // The processes of the job start after the hook.
    let mut workload = WorkloadDriver::new(WORKLOAD, 1);
    put(&workload, &group);
    let run = node.at("out/pbs-4000021.server");
    wait_until("the first sample of the job", || run.join("sched").exists());
    let before = oncpu(&workload);
    workload.run("burn 100");
    let burnt = oncpu(&workload) - before;
    assert!(burnt > 1_000_000, "{burnt}");
    assert!(!procfs::has_ended(pid));
    // The profiler has nothing to report.
    assert_eq!(node.event("EXECJOB_END"), "");
    assert!(procfs::has_ended(pid));
    assert_eq!(node.entries("run"), 0, "no file is left");
    let data = Dataset::new(run);
    data.assert_complete();
    let queries = fs::read_to_string(node.at("queries"));
    assert!(queries.is_ok(), "qstat of PBS is not found");
    let counted: u64 = data.value(&format!(
        "SELECT sum(sched.oncpu_ns) FROM sched JOIN process USING (host, pid, start_ts) \
             WHERE pid = {} AND job_id = '4000021.server'",
        workload.pid()
    ));
    assert!(counted >= burnt, "{counted}, not {burnt}");
    // Nothing is left to end.
    assert_eq!(node.event("EXECJOB_ABORT"), "");
    drop(workload);
}

#[test]
fn hook_accepts_a_job_that_it_cannot_profile() {
    let node = Node::new("4000022.server", "/nowhere/profiler");
    let log = node.event("EXECJOB_BEGIN");
    assert!(log.contains("log 4 profiler: 4000022.server: "), "{log}");
    assert!(log.contains("/nowhere/profiler"), "{log}");
    fs::write(node.at("settings.json"), "{").expect("written");
    let log = node.event("EXECJOB_BEGIN");
    assert!(log.contains("log 4 "), "{log}");

    // The id is a part of file names.
    let node = Node::new("../4000023", &setting("PROFILER_BIN"));
    let log = node.event("EXECJOB_BEGIN");
    assert!(log.contains("unexpected job id"), "{log}");
    assert_eq!(node.entries("out"), 0);
}

/// After a profiler that was killed: its pid can belong to another process, and its log is left.
#[test]
fn hook_ends_no_other_process() {
    let node = Node::new("4000024.server", &setting("PROFILER_BIN"));
    let mut workload = WorkloadDriver::new(WORKLOAD, 0);
    fs::create_dir(node.at("run")).expect("a directory");
    fs::write(
        node.at("run/4000024.server.pid"),
        workload.pid().to_string(),
    )
    .expect("written");
    fs::write(node.at("run/4000024.server.node1.log"), "a message\n").expect("written");
    let log = node.event("EXECJOB_END");
    assert_eq!(log, "log 7 profiler: 4000024.server: a message\n");
    assert_eq!(node.entries("run"), 0, "no file is left");
    workload.run("burn 1");
}
