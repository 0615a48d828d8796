//! Batch scripts that start the profiler in the background, and end with `wait`: the run ends with
//! the work of the job.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use e2e::{
    attacker::directory_of,
    dataset::{Dataset, python},
    runs::TIMEOUT,
    setting, timeout_factor,
};
use serde_json::Value;
use tempfile::TempDir;

use super::{MPIRUN, cluster::Cluster};
use crate::service::Service;

/// Time within which a job must end after its work.
const LIMIT: f64 = 5.0;

/// `profiler run --job` with these options.
fn profiler(options: &str) -> String {
    format!(
        "{} run --job -i 500ms --source process,usage {options}",
        setting("PROFILER_BIN")
    )
}

/// The profiler on each node, as a step beside the others.
fn srun_profiler(options: &str) -> String {
    format!(
        "srun --overlap -n $SLURM_JOB_NUM_NODES --ntasks-per-node=1 {} 2>> err &",
        profiler(options)
    )
}

/// A program that sleeps for so many seconds, and then writes the time into `end.NAME.RANK`.
fn solver(name: &str, seconds: u32) -> String {
    format!(
        "bash -c 'sleep {seconds}; date +%s.%N > end.{name}.${{OMPI_COMM_WORLD_RANK:-0}}; exit 0'"
    )
}

fn mpirun(name: &str, seconds: u32) -> String {
    format!("{MPIRUN} -np 2 {}", solver(name, seconds))
}

/// A job that is over.
struct Ended {
    cluster: Cluster,
    job: String,
    /// Directory of the files, unless it is the cluster's.
    home: Option<TempDir>,
}

impl Ended {
    /// Runs a script on so many nodes. It writes the time at its end.
    fn run(nodes: u32, script: &str) -> Self {
        let cluster = if nodes == 1 {
            Cluster::start()
        } else {
            Cluster::with_two_nodes()
        };
        let options = [&format!("--nodes={nodes}")[..], "--ntasks=2"];
        Self::submit(cluster, &options, script)
    }

    fn submit(cluster: Cluster, options: &[&str], script: &str) -> Self {
        let job = cluster.submit_with(options, &format!("{script}\ndate +%s.%N > end\n"));
        let begin = Instant::now();
        let ended = Self {
            cluster,
            job,
            home: None,
        };
        let state = loop {
            let state = ended.cluster.state(&ended.job);
            if !["PENDING", "RUNNING", "COMPLETING"].contains(&state.as_str()) {
                break state;
            }
            assert!(
                begin.elapsed() < TIMEOUT,
                "the job does not end: {}",
                ended.messages()
            );
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(state, "COMPLETED", "{}", ended.messages());
        ended
    }

    fn directory(&self) -> &Path {
        self.cluster.directory()
    }

    fn messages(&self) -> String {
        let read = |name| fs::read_to_string(self.directory().join(name)).unwrap_or_default();
        read("err") + &read("job.out")
    }

    /// Time that the program `name` or the script has written, in seconds.
    fn time(&self, name: &str) -> f64 {
        let text = fs::read_to_string(self.directory().join(name)).expect("written");
        text.trim().parse().expect("seconds")
    }

    /// Time from the end of the program `name` to that of the script, which waits for the profilers.
    fn seconds_after(&self, name: &str) -> f64 {
        let ends = [0, 1].map(|rank| {
            let path = format!("end.{name}.{rank}");
            let is_written = self.directory().join(&path).exists();
            if is_written { self.time(&path) } else { 0.0 }
        });
        self.time("end") - ends[0].max(ends[1])
    }

    #[track_caller]
    fn assert_ends_with(&self, name: &str) {
        let seconds = self.seconds_after(name);
        let limit = LIMIT * f64::from(timeout_factor());
        assert!(
            (0.0..=limit).contains(&seconds),
            "{seconds} s after the work: {}",
            self.messages()
        );
    }

    fn data(&self) -> Dataset {
        let run = format!("profiles/slurm-{}", self.job);
        Dataset::new(self.directory().join(run))
    }

    /// Host and number of each complete solver.
    fn solvers(&self) -> Vec<(String, u64)> {
        self.data().rows(
            "SELECT host, count(*) FROM process WHERE comm = 'bash' AND exit_code = 0 \
             AND cmdline LIKE '%OMPI_COMM_WORLD_RANK%' GROUP BY ALL ORDER BY ALL",
        )
    }

    /// The same for a job of [`run_as_user`].
    fn solvers_of_user(&self) -> Vec<(String, u64)> {
        self.data().rows(
            "SELECT host, count(*) FROM process WHERE comm = 'bash' AND step_id IN ('0', '1') \
             AND uid = 65534 AND cmdline LIKE '%end.a%' GROUP BY ALL ORDER BY ALL",
        )
    }

    /// Manifests of the run.
    fn manifests(&self) -> Vec<Value> {
        let run = self.data().path().to_owned();
        let files = fs::read_dir(run).expect("a run").flatten();
        let is_manifest = |path: &Path| path.extension().is_some_and(|end| end == "json");
        files
            .map(|file| file.path())
            .filter(|path| is_manifest(path))
            .map(|path| fs::read_to_string(path).expect("readable"))
            .map(|text| serde_json::from_str(&text).expect("JSON"))
            .collect()
    }

    /// Asserts that each of these hosts has finished its part of the run.
    #[track_caller]
    fn assert_complete(&self, hosts: &[&str]) {
        let manifests = self.manifests();
        let mut found: Vec<&str> = manifests
            .iter()
            .filter(|manifest| manifest["state"] == "complete")
            .map(|manifest| manifest["hostname"].as_str().expect("a name"))
            .collect();
        found.sort_unstable();
        assert_eq!(found, hosts, "{}", self.messages());
    }
}

fn host(number: u64, name: &str) -> (String, u64) {
    (name.to_owned(), number)
}

#[test]
fn two_nodes_end_with_mpirun() {
    let script = format!("{}\n{}\nwait", srun_profiler(""), mpirun("a", 4));
    let ended = Ended::run(2, &script);
    ended.assert_ends_with("a");
    ended.assert_complete(&["n1", "n2"]);
    assert_eq!(ended.solvers(), [host(1, "n1"), host(1, "n2")]);
    let messages = ended.messages();
    let job = &ended.job;
    let waits = format!("job {job} waits only for the profiler: the run ends");
    assert!(messages.contains(&waits), "{messages}");
    let run = ended.data().path().to_owned();
    let verify = std::process::Command::new(setting("PROFILER_BIN"))
        .arg("verify")
        .arg(run)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&verify.stdout);
    assert!(text.ends_with("all is well\n"), "{text}");
    assert!(!text.contains("not of the profiler"), "{text}");
}

/// `docs/switching/perfmon.sh`: what perfmon wrote at the end of a job.
#[test]
fn script_of_perfmon_writes_its_files() {
    const SCRIPT: &str = include_str!("../../../docs/switching/perfmon.sh");
    let cluster = Cluster::with_two_nodes();
    let program = cluster.directory().join("matmul");
    fs::write(
        &program,
        "#!/bin/sh\nhead -c 300M /dev/zero | sha256sum; sleep 2\n",
    )
    .expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let bin = Path::new(&setting("PROFILER_BIN"))
        .parent()
        .map(Path::to_owned);
    let bin = bin.expect("a directory");
    let script = format!(
        "export PATH={}:$PATH\n{}",
        bin.display(),
        SCRIPT.replace("mpirun ", &format!("{MPIRUN} "))
    );
    let ended = Ended::submit(cluster, &["--nodes=2", "--ntasks=2"], &script);
    let files = ended.data().path().join("exports/perfmon");
    let found = python("perfmon.py", &[files.to_str().expect("UTF-8")]);
    let metrics = &found["cpu_metrics"]["values"];
    let data = ended.data();
    for host in ["n1", "n2"] {
        let user = metrics[host]["cpu_time"].as_array().expect("a list");
        let last = user.last().and_then(Value::as_f64).expect("a number");
        let sum: f64 = data.value(&format!(
            "SELECT sum(user_ns) / 1e9 FROM usage WHERE host = '{host}'"
        ));
        assert!(
            (last - sum).abs() < 1e-6 && sum > 0.0,
            "{host}: {last} {sum}"
        );
        // `df[df.Host == host]["Memory [%]"]` and `cpu_metrics[host]["memory_percent"]` are the same.
        assert!(!metrics[host]["memory_percent"].is_null());
    }
    // One of the two profilers has written them, when both had ended.
    let messages = ended.messages();
    assert_eq!(
        messages.matches("exports/perfmon/\n").count(),
        1,
        "{messages}"
    );
    ended.assert_complete(&["n1", "n2"]);
    let job: Vec<(String,)> =
        data.rows("SELECT DISTINCT job_id FROM process WHERE job_id IS NOT NULL");
    assert_eq!(job, [(ended.job.clone(),)]);
    for plot in [
        "CPU_Load_per_node",
        "Average_CPU_Load_all_nodes",
        "Memory_per_node",
        "Total_Output_Traffic_all_nodes",
    ] {
        let png = fs::read(files.join(format!("plots/{plot}.png"))).expect(plot);
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5000, "{plot}");
    }
    let report = files.join(format!("job-report-{}.html", ended.job));
    let report = fs::read_to_string(report).expect("written");
    assert!(report.contains("Average CPU Load"), "{report}");
}

/// The profilers are started by `mpirun` instead of `srun`, which needs steps beside each other.
#[test]
fn two_nodes_with_profilers_of_mpirun() {
    let script = format!(
        "export SLURM_OVERLAP=1\n{MPIRUN} --map-by node -np 2 {} 2>> err &\n{}\nwait",
        profiler(""),
        mpirun("a", 6)
    );
    let ended = Ended::run(2, &script);
    ended.assert_ends_with("a");
    ended.assert_complete(&["n1", "n2"]);
    assert_eq!(ended.solvers(), [host(1, "n1"), host(1, "n2")]);
}

/// `srun` starts a script that starts the profiler, and the second node never has work.
#[test]
fn node_without_tasks_ends_too() {
    let wrapper = format!("sh -c \"{}; true\"", profiler(""));
    let script = format!(
        "srun --overlap --ntasks-per-node=1 {wrapper} 2>> err &\n{}\nwait",
        solver("a", 8)
    );
    let ended = Ended::run(2, &script);
    ended.assert_ends_with("a");
    ended.assert_complete(&["n1", "n2"]);
    let announced = "has no work on this node, and its script waits only for the profiler";
    let messages = ended.messages();
    assert!(messages.contains(announced), "{messages}");
}

/// The path of the run leads elsewhere by the end: the owner of the directory can do that to root.
#[test]
fn announcement_does_not_follow_the_path_of_the_run() {
    let wrapper = format!("sh -c \"{}; true\"", profiler(""));
    let script = format!(
        "srun --overlap --ntasks-per-node=1 {wrapper} 2>> err &
         run=profiles/slurm-$SLURM_JOB_ID
         until [ \"$(ls $run/*.json | wc -l)\" = 2 ]; do sleep 0.1; done
         mkdir elsewhere
         mv $run moved
         ln -s \"$PWD/elsewhere\" $run
         {}
         wait",
        solver("a", 2)
    );
    let ended = Ended::run(2, &script);
    let announcements = |name: &str| {
        let files = fs::read_dir(ended.directory().join(name)).expect("a directory");
        let names = files.map(|file| file.expect("a file").file_name());
        let announcements = names.filter(|name| name.as_encoded_bytes().starts_with(b".ended-"));
        announcements.count()
    };
    let found = (announcements("moved"), announcements("elsewhere"));
    assert_eq!(found, (1, 0), "{}", ended.messages());
    ended.assert_ends_with("a");
}

/// The second node has no process of the job in the pause. The script itself sleeps on the first.
#[test]
fn pause_is_covered_by_the_idle_timeout() {
    let work = format!("{}\nsleep 20\n{}\nwait", mpirun("a", 3), mpirun("b", 3));
    let ended = Ended::run(
        2,
        &format!("{}\n{work}", srun_profiler("--idle-timeout 40s")),
    );
    ended.assert_ends_with("b");
    ended.assert_complete(&["n1", "n2"]);
    assert_eq!(ended.solvers(), [host(2, "n1"), host(2, "n2")]);
}

#[test]
fn pause_longer_than_the_idle_timeout_ends_a_node() {
    let work = format!("{}\nsleep 12\n{}\nwait", mpirun("a", 3), mpirun("b", 3));
    let ended = Ended::run(2, &format!("{}\n{work}", srun_profiler("")));
    ended.assert_ends_with("b");
    assert_eq!(ended.solvers(), [host(2, "n1"), host(1, "n2")]);
    let messages = ended.messages();
    let job = &ended.job;
    let idle = format!("job {job} has had no work on this node for 5 s (--idle-timeout)");
    assert_eq!(messages.matches(&idle).count(), 1, "{messages}");
}

/// Two runs of `mpirun` in one script, with a pause in which only the shell sleeps.
#[test]
fn pause_of_the_shell_is_covered_by_the_idle_timeout() {
    let script = format!(
        "mkfifo pause\nexec 9<> pause\n{} 2>> err &\n{}\nread -t 20 -u 9\n{}\nwait",
        profiler("--idle-timeout 40s"),
        mpirun("a", 3),
        mpirun("b", 3)
    );
    let ended = Ended::run(1, &script);
    ended.assert_ends_with("b");
    let solvers: u64 = ended.solvers().iter().map(|(_, number)| number).sum();
    assert_eq!(solvers, 4);
}

#[test]
fn background_work_is_awaited() {
    let script = format!(
        "{} 2>> err &\nsetsid {} &\n{}\nwait",
        profiler(""),
        solver("background", 14),
        mpirun("a", 3)
    );
    let ended = Ended::run(1, &script);
    ended.assert_ends_with("background");
    assert!(ended.seconds_after("a") > 8.0);
}

/// A daemon outlives the work, as a scheduler of Dask does: the script writes a file.
#[test]
fn stop_file_of_the_job_is_watched() {
    let script = format!(
        "{}\nprofiler=$!\nsetsid sleep 600 &\n{}\n\
         echo FINISHED > .ipc-$SLURM_JOB_ID\nwait $profiler",
        srun_profiler(""),
        mpirun("a", 4)
    );
    let ended = Ended::run(2, &script);
    ended.assert_ends_with("a");
    ended.assert_complete(&["n1", "n2"]);
    let line = format!(
        ".ipc-{} no longer reads INPROGRESS: the run ends",
        ended.job
    );
    let messages = ended.messages();
    assert_eq!(messages.matches(&line).count(), 2, "{messages}");
}

/// Without capabilities, as any user of a cluster runs it.
#[test]
fn ordinary_user() {
    let ended = run_as_user(Cluster::with_two_nodes(), 2, "");
    let messages = ended.messages();
    assert!(!messages.contains("service"), "{messages}");
    ended.assert_complete(&["n1", "n2"]);
    assert_eq!(ended.solvers_of_user(), [host(1, "n1"), host(1, "n2")]);
}

/// The service follows the processes; the profiler, which is part of the job, ends the run. On one
/// node: the service of a machine does not distinguish the nodes that several slurmd simulate there.
#[test]
fn ordinary_user_with_the_service() {
    let service = Service::start(&[]);
    let socket = service.path().join("socket");
    let prefix = format!("PROFILER_SERVICE={} ", socket.display());
    let ended = run_as_user(Cluster::start(), 1, &prefix);
    let messages = ended.messages();
    assert!(messages.contains("by the service"), "{messages}");
    ended.data().assert_complete();
    let solvers: u64 = ended.solvers_of_user().iter().map(|(_, count)| count).sum();
    assert_eq!(solvers, 2, "{messages}");
    // Only BPF programs see how long processes sleep.
    let slept: Vec<(f64,)> = ended.data().rows(
        "SELECT sum(sleep_ns) / 1e9 FROM process JOIN sched USING (host, pid, start_ts) \
         WHERE comm = 'sleep' GROUP BY pid",
    );
    assert_eq!(slept.len(), 2, "{slept:?}");
    assert!(
        slept.iter().all(|(seconds,)| (4.0..6.0).contains(seconds)),
        "{slept:?}"
    );
}

/// Runs two programs of 5 s, with profilers of which each begins with `prefix`. The job has a
/// directory of its own, to which the cluster's has links.
fn run_as_user(cluster: Cluster, nodes: u32, prefix: &str) -> Ended {
    const NOBODY: u32 = 65534;
    let directory = directory_of(NOBODY);
    let program = directory.path().join("profiler");
    fs::copy(setting("PROFILER_BIN"), program).expect("copied");
    for name in ["err", "end", "end.a.0", "job.out", "profiles"] {
        let target = directory.path().join(name);
        std::os::unix::fs::symlink(target, cluster.directory().join(name)).expect("a link");
    }
    let chdir = format!("--chdir={}", directory.path().display());
    let (nodes, uid) = (format!("--nodes={nodes}"), format!("--uid={NOBODY}"));
    let options = [&nodes, "--ntasks=2", &uid, &chdir];
    let script = format!(
        "{prefix}srun --overlap --ntasks-per-node=1 -n $SLURM_JOB_NUM_NODES ./profiler run --job \
         -i 500ms --source process,usage,sched 2>> err &\nsrun --overlap -n 2 {}\nwait",
        solver("a", 5)
    );
    let mut ended = Ended::submit(cluster, &options, &script);
    ended.assert_ends_with("a");
    ended.home = Some(directory);
    ended
}

#[test]
fn one_step_is_followed() {
    let script = format!(
        "{} --step 1 2>> err &\n\
         srun --overlap -n 1 {}\nsrun --overlap -n 1 {}\n\
         srun --overlap -n 1 {} &\nwait",
        profiler(""),
        solver("a", 2),
        solver("b", 3),
        solver("c", 8)
    );
    let ended = Ended::run(1, &script);
    let run = format!("profiles/slurm-{}.1", ended.job);
    let data = Dataset::new(ended.directory().join(run));
    data.assert_complete();
    let steps: Vec<(Option<String>,)> = data.rows("SELECT DISTINCT step_id FROM process");
    assert_eq!(steps, [(Some("1".to_owned()),)]);
    let solvers: Vec<(String,)> = data.rows(
        "SELECT cmdline FROM process WHERE comm = 'bash' AND cmdline LIKE '%end.b%' AND exit_code = 0",
    );
    assert_eq!(solvers.len(), 1, "{}", ended.messages());
    let end = data.manifest()["end_ts"].as_f64().expect("a time") / 1e9;
    let after = end - ended.time("end.b.0");
    assert!(
        (0.0..LIMIT).contains(&after),
        "{after}: {}",
        ended.messages()
    );
    // The third step was still running.
    assert!(end < ended.time("end.c.0"));
}
