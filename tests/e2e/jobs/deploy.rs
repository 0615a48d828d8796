//! The files of docs/deploy and one profiler for all jobs, under a real Slurm; the unit as parsed
//! by systemd.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    dataset::Dataset,
    procfs,
    runs::{Profiler, wait_until},
    setting,
};

use super::cluster::Cluster;

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/deploy")
        .join(file)
}

/// Asserts that `profiler verify RUN` reports no problem.
#[track_caller]
fn assert_verified(run: &Path) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("verify")
        .arg(run)
        .output();
    let output = output.expect("the profiler starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our file");
}

/// Configuration with job ids that no other Slurm on this machine uses.
fn unique_job_ids() -> String {
    format!("FirstJobId={}\n", 1_000_000 + std::process::id())
}

#[test]
fn prolog_profiles_a_job_and_epilog_cleans_up() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let conf = directory.path().join("conf");
    for name in ["prolog", "epilog"] {
        let text = format!(
            "#!/bin/sh\nexport PROFILER={} PROFILER_OUT={} PROFILER_RUN={}\nexport SLURM_CONF=$(cat {})\n{}\n\
             # Others of the node's scripts, which know the job as well, may take longer.\nsleep 0.7\n",
            setting("PROFILER_BIN"),
            at("out").display(),
            at("run").display(),
            conf.display(),
            deploy(&format!("slurm-{name}.sh")).display(),
        );
        script(&at(name), &text);
    }
    let more = format!(
        "{}Prolog={}\nEpilog={}\nPrologFlags=Alloc\n",
        unique_job_ids(),
        at("prolog").display(),
        at("epilog").display()
    );
    let cluster = Cluster::with("proctrack/cgroup", &more);
    fs::write(&conf, cluster.conf().to_str().expect("UTF-8")).expect("written");
    let job = cluster.submit(
        1,
        "srun --ntasks=1 bash -c 'sleep 1; exit 0'; sleep 1; exit 0",
    );
    let pid_file = at("run").join(format!("{job}.pid"));
    wait_until("the prolog has run", || pid_file.exists());
    let pid: u32 = {
        let mut text = String::new();
        wait_until("the pid is in the file", || {
            text = fs::read_to_string(&pid_file).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim().parse().expect("a pid")
    };
    wait_until("the epilog has run", || !pid_file.exists());
    assert!(procfs::has_ended(pid));
    assert_eq!(
        fs::read_dir(at("run")).expect("a directory").count(),
        0,
        "no log is left"
    );
    wait_until("the job is over", || cluster.state(&job) == "COMPLETED");
    let data = Dataset::new(at("out").join(format!("slurm-{job}")));
    data.assert_complete();
    assert_verified(data.path());
    let steps: Vec<(String, String)> = data.rows(
        "SELECT DISTINCT job_id, step_id FROM process WHERE comm IN ('slurm_script', 'bash') ORDER BY ALL",
    );
    assert_eq!(
        steps,
        [(job.clone(), "0".to_owned()), (job, "batch".to_owned())]
    );
}

#[test]
fn one_profiler_for_two_jobs() {
    let cluster = Cluster::with("proctrack/cgroup", &unique_job_ids());
    let directory = tempfile::TempDir::new().expect("a directory");
    let mut profiler = Profiler::writing_to(directory.path())
        .env("SLURM_CONF", cluster.conf())
        .args([
            "--node",
            "--split-by",
            "job",
            "--run-id",
            "node",
            "-i",
            "100ms",
        ])
        .args(["--source", "process,usage,sched,system"])
        .start();
    let jobs = [1, 2].map(|number| {
        cluster.submit(
            1,
            &format!("srun --overlap --ntasks=1 sleep 1.{number}; exec sleep 1"),
        )
    });
    for _ in &jobs {
        profiler.wait_for("has no processes left");
    }
    let ended = profiler.interrupt();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    for job in jobs {
        let data = Dataset::new(directory.path().join(format!("slurm-{job}")));
        data.assert_complete();
        assert_verified(data.path());
        let (script, naps, others): (u64, u64, u64) = data.row(&format!(
            "SELECT count(*) FILTER (comm = 'sleep' AND step_id = 'batch'), \
             count(*) FILTER (comm = 'sleep' AND step_id = '0'), count(*) FILTER (job_id <> '{job}') FROM process",
        ));
        assert_eq!((script, naps, others), (1, 1, 0));
    }
}

#[test]
fn unit_passes_systemd_analyze() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let text = fs::read_to_string(deploy("profiler.service")).expect("the unit");
    // The binary is not installed.
    let text = text.replace("/usr/local/bin/profiler", &setting("PROFILER_BIN"));
    let unit = directory.path().join("profiler.service");
    fs::write(&unit, text).expect("written");
    let analyze = |args: &[&str]| {
        let output = Command::new("systemd-analyze")
            .args(args)
            .arg(&unit)
            .output();
        let output = output.expect("systemd-analyze of Debian's package systemd");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text.into_owned())
    };
    let (fine, text) = analyze(&["verify"]);
    assert!(fine && text.is_empty(), "{text}");
    // 10.0 is a service with all privileges of root. The rest are those for BPF, other processes
    // and files.
    let (fine, text) = analyze(&["security", "--offline=true", "--threshold=30"]);
    assert!(fine, "{text}");
}
