//! Output of the schedulers' commands, and paths of cgroups.
//!
//! The first byte selects the command and its success. The rest is its stdout and, after a line
//! `==`, its stderr; or lines of `/proc/PID/cgroup`.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use profiler::{
    host::{Cgroups, Hierarchy},
    job::{
        JobCgroup, Membership, Scheduler, cgroup_path, run_id,
        scheduler_command::{CommandOutput, parse_processes, parse_status},
        trust,
    },
    output::dataset::files::is_plain_name,
};

const SCHEDULERS: [Scheduler; 5] = [
    Scheduler::Slurm,
    Scheduler::Pbs,
    Scheduler::Oar,
    Scheduler::Flux,
    Scheduler::None,
];

fuzz_target!(|data: &[u8]| {
    let Some((kind, text)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(text);
    let kind = usize::from(*kind);
    match SCHEDULERS.get(kind % 8) {
        Some(scheduler) => answer(*scheduler, kind & 8 != 0, &text),
        None => lines(&text),
    }
});

fn answer(scheduler: Scheduler, success: bool, text: &str) {
    let (stdout, stderr) = text.split_once("==\n").unwrap_or((text, ""));
    let output = CommandOutput {
        success,
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
    };
    if let Ok(status) = parse_status(scheduler, "7", &output) {
        // Every id is in the output.
        for number in [status.session, status.owner].into_iter().flatten() {
            let digits = stdout.contains(&number.to_string());
            // PBS prints names.
            assert!(digits || scheduler == Scheduler::Pbs);
        }
        assert!(status.id.is_none_or(|id| stdout.contains(&*id)));
    }
    for pid in parse_processes(scheduler, &output).into_iter().flatten() {
        assert!(stdout.contains(&pid.to_string()));
    }
}

fn lines(text: &str) {
    // The directory does not exist, so that nothing is proven.
    let cgroups = Cgroups {
        v1: Vec::new(),
        v2: Hierarchy::new(Vec::new(), Path::new("/nowhere"), Path::new("/")),
    };
    if let Some((job, directory)) = trust::proven_job(&cgroups, text.as_bytes()) {
        assert_eq!((job.scheduler, directory), (Scheduler::None, None));
    }
    if let Some(cgroup) = cgroup_path::identify_all(text.as_bytes()) {
        let mut membership = Membership::default();
        membership.set_cgroup(&cgroup, cgroup.job.as_str().into());
        assert_eq!(membership.job.as_deref(), Some(&*cgroup.job));
    }
    for path in text.lines() {
        if let Some(cgroup) = cgroup_path::identify(path) {
            check(path, &cgroup);
        }
        if let Some(cgroup) = cgroup_path::identify_unit(path, "solver") {
            assert!(path[..cgroup.directory_len].contains("/solver") || path.starts_with("solver"));
        }
    }
}

/// Asserts that the directory is a prefix of the path up to a slash and identifies the same job.
fn check(path: &str, cgroup: &JobCgroup) {
    let (directory, below) = path.split_at(cgroup.directory_len);
    assert!(below.is_empty() || below.starts_with('/'));
    let own = cgroup_path::identify(directory).expect("the directory of a job");
    assert_eq!((own.scheduler, &own.job), (cgroup.scheduler, &cgroup.job));
    assert_eq!(own.directory_len, cgroup.directory_len);
    assert!(cgroup.is_of(cgroup.scheduler, &cgroup.job));
    let name = run_id(cgroup.scheduler, &cgroup.job);
    assert!(is_plain_name(&name) && !name.starts_with('.'), "{name:?}");
}
