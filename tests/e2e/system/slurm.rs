//! Slurm with cgroup v2: the job of a user, profiled by root, by the user with sudo, and from
//! within the job with file capabilities.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use e2e::{
    dataset::Dataset,
    rows::{Row, known_columns},
    runs::{Profiler, wait_until},
    setting,
};

use crate::jobs::cluster::Cluster;

use super::commands::{INSTALLED, command_of, install_with_capabilities, sh};

const HOME: &str = "/home/tester";
const UID: u32 = 2001;

/// The arguments and job steps of `sleep` processes. The first and the third leave the session.
const SLEEPS: [(&str, &str); 4] = [
    ("1.1", "batch"),
    ("1.2", "batch"),
    ("1.3", "0"),
    ("1.4", "0"),
];

/// A batch script as in docs/jobs.md, which waits for a file.
fn script() -> String {
    format!(
        "cd {HOME}
         echo INPROGRESS >ipc
         {INSTALLED} run --job --stop-file ipc -i 500ms --out inside 2>stderr &
         until [ -e go ]; do sleep 0.2; done
         setsid --fork sleep 1.1
         srun --overlap --ntasks=1 bash -c 'setsid --fork sleep 1.3; sleep 1.4; exit 0'
         sleep 1.2
         echo FINISHED >ipc.new; mv ipc.new ipc
         wait"
    )
}

/// The `sleep` processes of the job, in order.
#[track_caller]
fn sleeps(data: &Dataset) -> Vec<Row> {
    let rows = data.table("process");
    let of = |seconds: &str| {
        let is = |row: &&Row| {
            let command = row.text("cmdline").unwrap_or_default();
            command.rsplit('/').next() == Some(&format!("sleep {seconds}"))
        };
        let found: Vec<_> = rows.iter().filter(is).collect();
        assert_eq!(found.len(), 1, "sleep {seconds}: {rows:?}");
        found[0].clone()
    };
    SLEEPS.map(|(seconds, _)| of(seconds)).to_vec()
}

#[track_caller]
fn assert_owned(directory: &Path) {
    let mut files = Dataset::new(directory.to_owned()).files();
    files.push(directory.to_owned());
    for path in files {
        let owner = fs::metadata(&path).expect("there").uid();
        assert_eq!(owner, UID, "{}", path.display());
    }
}

fn sole_run(out: &str) -> Dataset {
    let runs = fs::read_dir(out).expect("made");
    let mut runs = runs
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir());
    let run = runs.next().expect("a run");
    assert!(runs.next().is_none());
    Dataset::new(run)
}

#[test]
fn slurm_job_is_recorded_as_root_with_sudo_and_with_file_capabilities() {
    install_with_capabilities();
    // Slurm's commands resolve no host name if all addresses are 127.0.0.1.
    sh("ip address replace 192.0.2.1/32 dev lo");
    let cluster = Cluster::on_v2();
    // The default path, because sudo removes SLURM_CONF from the environment.
    sh(&format!(
        "ln -sf {} {} /etc/slurm/; cd {HOME}; rm -rf go ipc inside outside",
        cluster.conf().display(),
        cluster.conf().with_file_name("cgroup.conf").display(),
    ));
    let path = cluster.directory().join("job.sh");
    fs::write(&path, format!("#!/bin/bash\n{}\n", script())).expect("written");
    let submit = format!(
        "runuser -u tester -- sbatch --parsable --chdir={HOME} --ntasks=2 --output={HOME}/job.out {}",
        path.display()
    );
    let job = sh(&submit);
    let args = ["--job", &job, "-i", "500ms", "--source", "process,sched"];
    let by_root = Profiler::new().args(args).start();
    let outside = Path::new(HOME).join("outside");
    let binary = setting("PROFILER_BIN");
    let words = [
        "sudo",
        &binary,
        "run",
        "--out",
        outside.to_str().expect("UTF-8"),
    ];
    let by_sudo = Profiler::from_command(command_of("tester", &words), &outside)
        .args(args)
        .start();
    wait_until("the profiler in the job is attached", || {
        let text = fs::read_to_string(format!("{HOME}/stderr"));
        text.is_ok_and(|text| text.contains("profiling "))
    });
    let cgroup = cluster.cgroup(&job);
    assert!(fs::exists(&cgroup).expect("a path"), "{cgroup}");
    sh(&format!("runuser -u tester -- touch {HOME}/go"));
    let by_root = by_root.finish();
    let by_sudo = by_sudo.finish();

    let (root, sudo) = (by_root.dataset(), by_sudo.dataset());
    let inside = sole_run(&format!("{HOME}/inside"));
    for data in [&root, &sudo, &inside] {
        data.assert_complete();
        let target = data.manifest()["target"]["job"].clone();
        assert_eq!(target["found_by"], "cgroup", "{target}");
        assert_eq!(target["id"], *job, "{target}");
        for (row, (_, step)) in sleeps(data).iter().zip(SLEEPS) {
            assert_eq!(row.text("step_id"), Some(step), "{row:?}");
            assert_eq!(row.text("job_source"), Some("cgroup"), "{row:?}");
            assert_eq!(row.u64("uid"), Some(UID.into()), "{row:?}");
        }
        let others = data.table("process");
        let others: Vec<_> = others
            .iter()
            .filter(|row| row.text("job_id") != Some(&job))
            .collect();
        assert!(others.is_empty(), "{others:?}");
    }
    assert_owned(sudo.path());
    assert_owned(inside.path());
    for table in ["process", "sched"] {
        let [known, expected] = [&inside, &root].map(|data| {
            let pids: Vec<_> = sleeps(data).iter().map(|row| row.u64("pid")).collect();
            let mut rows = data.table(table);
            rows.retain(|row| pids.contains(&row.u64("pid")));
            known_columns(&rows)
        });
        assert_eq!(known, expected, "{table}: with file capabilities, as root");
    }
}
