//! Sessions of logind: as targets, and as sessions from which an ordinary user profiles.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use e2e::{
    dataset::Dataset,
    runs::{Profiler, wait_until},
};
use rustix::process::Signal;

use super::commands::{Gated, INSTALLED, as_user, install_with_capabilities, sh};

const HOME: &str = "/home/tester";
const UID: u64 = 2001;
const SLICE: &str = "/sys/fs/cgroup/user.slice/user-2001.slice";
const RUNTIME: &str = "/run/user/2001/profiler";

/// Logs in.
const LOGIN: [&str; 6] = [
    "su",
    "--login",
    "--command=exec \"$@\"",
    "--",
    "tester",
    "bash",
];

/// The scope of the session of a program.
fn scope_of(comm: &str) -> Option<PathBuf> {
    let scopes = fs::read_dir(SLICE)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    scopes
        .filter(|path| path.extension().is_some_and(|ending| ending == "scope"))
        .find(|path| {
            let pids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            pids.lines().any(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|text| text.trim() == comm)
            })
        })
}

fn wait_for_scope(comm: &str) -> PathBuf {
    let mut found = None;
    wait_until("the session exists", || {
        found = scope_of(comm);
        found.is_some()
    });
    found.expect("found")
}

#[test]
fn login_session_is_a_cgroup_and_a_job() {
    let session = Gated::wrapped_in(&LOGIN, "sleep 1.1; setsid --fork sleep 2.2 >/dev/null");
    let path = wait_for_scope("sh");
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .expect("text");
    let cgroup = format!(
        "/{}",
        path.strip_prefix("/sys/fs/cgroup")
            .expect("below")
            .display()
    );
    let targets = [
        vec!["--cgroup", &*cgroup],
        vec!["--scheduler", "none", "--job", name],
    ];
    let profilers =
        targets.map(|target| Profiler::new().args(["-i", "500ms"]).args(target).start());
    session.release();
    for (index, profiler) in profilers.into_iter().enumerate() {
        let ended = profiler.finish();
        let data = ended.dataset();
        data.assert_complete();
        let rows = data.table("process");
        let sleeps: BTreeSet<_> = rows
            .iter()
            .filter(|row| row.text("comm") == Some("sleep"))
            .map(|row| (row.u64("uid"), row.text("cmdline"), row.text("cgroup")))
            .collect();
        let sleep = |command| (Some(UID), Some(command), Some(&*cgroup));
        assert_eq!(
            sleeps,
            BTreeSet::from([sleep("sleep 1.1"), sleep("sleep 2.2")])
        );
        if index == 1 {
            assert!(
                rows.iter().all(|row| row.text("job_id") == Some(name)),
                "{rows:?}"
            );
        }
    }
    wait_until("the session is over", || !path.exists());
}

/// Files in the runtime directory with this suffix.
fn files(ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(RUNTIME).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|text| text == ending))
        .collect()
}

/// A profiler started in a session continues after the logout; its lock and its socket are in the
/// user's runtime directory.
#[test]
fn profiler_survives_the_logout() {
    install_with_capabilities();
    sh(&format!("cd {HOME}; rm -rf own stderr pid"));
    let run = format!(
        "{INSTALLED} run --node --run-id own --source process,region -i 500ms --out {HOME}/own"
    );
    let script = format!("cd {HOME}; setsid --fork sh -c 'echo $$ >pid; exec {run} >stderr 2>&1'");
    Gated::wrapped_in(&LOGIN, &script).release();
    let stderr = || fs::read_to_string(format!("{HOME}/stderr")).unwrap_or_default();
    wait_until("the profiler is attached", || {
        stderr().contains("profiling ")
    });
    let path = wait_for_scope("profiler");
    assert_eq!(
        sh("loginctl show-user tester --property=State"),
        "State=closing"
    );
    let (locks, sockets) = (files("lock"), files("sock"));
    assert_eq!(
        (locks.len(), sockets.len()),
        (1, 1),
        "{locks:?} {sockets:?}"
    );

    // A second profiler is refused, with and without a session.
    for variables in ["", "XDG_RUNTIME_DIR=/run/user/2001 "] {
        let (allowed, output) = as_user("tester", &format!("{variables}{run} -d 1s"));
        assert!(
            !allowed && output.contains("already profiles for run own"),
            "{output}"
        );
    }
    let socket = sockets[0].display();
    let mark = format!("PROFILER_SOCKET={socket} {INSTALLED} mark event here");
    let (allowed, output) = as_user("tester", &mark);
    assert!(allowed, "{output}");
    let pid = fs::read_to_string(format!("{HOME}/pid")).expect("written");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number"));
    rustix::process::kill_process(pid.expect("a pid"), Signal::INT).expect("it is alive");
    wait_until("the session is over", || !path.exists());
    let data = Dataset::new(Path::new(HOME).join("own/own"));
    data.assert_complete();
    assert!(!locks[0].exists() && !sockets[0].exists());
    let rows = data.table("process");
    assert!(
        rows.iter().any(|row| row.text("comm") == Some("systemd")),
        "{rows:?}"
    );
    let marks = data.table("region");
    assert!(
        marks.iter().any(|row| row.text("name") == Some("here")),
        "{marks:?}"
    );
}
