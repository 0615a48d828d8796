//! What `profiler serve` tells its clients about processes that are not theirs, or that the kernel
//! hides from them.

use std::{
    fs::{self, Permissions},
    io::Write as _,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{
    runs::ProcessGroup,
    service_client::{ACCEPTED, Client, END, READY, frame, request},
};
use serde_json::{Value, json};

use crate::{
    cgroup::put,
    many_nodes::Slurm,
    service::{ALICE, BOB, Service},
    timeline::powered,
};

const REQUEST: u32 = 1;

/// A process of a user in a cgroup.
fn process_in(group: &Path, uid: u32) -> ProcessGroup {
    fs::create_dir_all(group).expect("a group");
    let mut command = Command::new("sleep");
    let process = ProcessGroup::start(command.arg("600").uid(uid).gid(uid));
    put(process.pid(), group);
    process
}

/// Directory of a Slurm job of [`ALICE`].
fn job_of_alice(slurm: &Slurm, job: u32) -> PathBuf {
    slurm.root().join(format!("uid_{ALICE}/job_{job}"))
}

/// A client that has asked for a job or a step of it.
fn ask(service: &Service, uid: u32, id: &str, step: Option<&str>) -> Client {
    let target = json!({"job": {"scheduler": "slurm", "id": id, "step": step}});
    let request = request("\"processes\"", &target.to_string());
    let request = request.replace("1000000000", "100000000");
    let mut client = Client::of_user(&service.path().join("socket"), uid);
    client.send(&frame(REQUEST, request.as_bytes()));
    client
}

/// The answer after the acceptance.
fn answer(client: &mut Client) -> (u8, String) {
    loop {
        let (kind, content) = client.message().expect("an answer");
        if kind != ACCEPTED {
            return (kind, String::from_utf8_lossy(&content).into_owned());
        }
    }
}

#[test]
fn step_cannot_lead_out_of_the_job() {
    let (service, slurm) = (Service::start(&[]), Slurm::new());
    let own = process_in(&job_of_alice(&slurm, 900_501).join("step_0"), ALICE);
    let of_bob = slurm.root().join(format!("uid_{BOB}/job_900502/step_0"));
    let _of_bob = process_in(&of_bob, BOB);
    for step in [
        "0/../..",
        "0/../../..",
        "../job_900501/step_0",
        "0\n",
        "",
        "/",
    ] {
        let mut client = ask(&service, ALICE, "900501", Some(step));
        let refused = client.refusal();
        assert!(refused.contains("malformed"), "{step}: {refused}");
    }
    for id in ["..", "900501/../..", "9\u{1b}[2J"] {
        let refused = ask(&service, ALICE, id, None).refusal();
        assert!(refused.contains("malformed"), "{id}: {refused}");
    }
    let (kind, ready) = answer(&mut ask(&service, ALICE, "900501", Some("0")));
    assert_eq!(kind, READY, "{ready}");
    drop(own);
}

#[test]
fn job_with_processes_of_another_user_is_refused() {
    let (service, slurm) = (Service::start(&[]), Slurm::new());
    let job = job_of_alice(&slurm, 900_511);
    let _own = process_in(&job.join("step_0"), ALICE);
    let _of_bob = process_in(&job.join("step_1"), BOB);
    for uid in [ALICE, BOB] {
        let refused = ask(&service, uid, "900511", None).refusal();
        assert!(
            refused.contains("job 900511 is of another user"),
            "{refused}"
        );
    }
    // The other step is Alice's alone.
    let (kind, ready) = answer(&mut ask(&service, ALICE, "900511", Some("0")));
    assert_eq!(kind, READY, "{ready}");
}

#[test]
fn job_that_another_user_joins_is_followed_no_longer() {
    /// Readings in which the process of the other user must have been noticed.
    const READINGS: usize = 50;
    let (service, slurm) = (Service::start(&[]), Slurm::new());
    let job = job_of_alice(&slurm, 900_521);
    let _own = process_in(&job.join("step_0"), ALICE);
    let mut client = ask(&service, ALICE, "900521", None);
    let (kind, ready) = answer(&mut client);
    assert_eq!(kind, READY, "{ready}");
    let _of_bob = process_in(&job.join("step_1"), BOB);
    let mut messages = (0..READINGS * 50).map(|_| client.message().expect("a message"));
    let (_, end) = messages
        .find(|(kind, _)| *kind == END)
        .expect("the profile ends");
    let end: Value = serde_json::from_slice(&end).expect("JSON");
    let why = format!(
        "user {BOB} has a process in the job, and the service follows only jobs of one user"
    );
    let losses = end["losses"].as_array().expect("losses");
    assert!(losses.iter().any(|loss| loss["why"] == why), "{losses:?}");
}

/// A program with the set-user-ID bit, as sudo is.
fn set_user_id(service: &Service, program: &str, name: &str) {
    let path = service.path().join(name);
    let found = Command::new("sh")
        .args(["-c", "cp \"$(command -v \"$1\")\" \"$2\"", "sh", program])
        .arg(&path)
        .status();
    assert!(found.expect("it starts").success());
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).expect("permissions");
}

/// All bytes that the service sends about a command of [`ALICE`], which waits for a line.
fn bytes_sent(service: &Service, script: &str) -> Vec<u8> {
    let mut shell = Command::new("sh")
        .args(["-c", &format!("read go; {script}")])
        .current_dir(service.path())
        .stdin(Stdio::piped())
        .uid(ALICE)
        .gid(ALICE)
        .spawn()
        .expect("it starts");
    let mut client = Client::of_user(&service.path().join("socket"), ALICE);
    let request = request("1000000000", "100000000");
    client.send(&frame(REQUEST, request.as_bytes()));
    let accepted = client.message().map(|(kind, _)| kind);
    assert_eq!(accepted, Some(ACCEPTED));
    client.attach(shell.id());
    let (kind, ready) = answer(&mut client);
    assert_eq!(kind, READY, "{ready}");
    let mut stdin = shell.stdin.take().expect("a pipe");
    stdin.write_all(b"go\n").expect("written");
    let mut sent = Vec::new();
    while let Some((_, content)) = client.message() {
        sent.extend_from_slice(&content);
    }
    assert!(shell.wait().expect("our child").success());
    sent
}

#[test]
fn nothing_about_processes_of_root_is_sent() {
    const JOB: &str = "777123456";
    let service = Service::start(&[]);
    set_user_id(&service, "setpriv", "become-root");
    for name in ["planted-comm", "own-comm"] {
        fs::copy("/bin/dd", service.path().join(name)).expect("a copy");
    }
    // The largest writer of the run, with the environment of another job.
    let script = format!(
        "SLURM_JOB_ID={JOB} ./planted-comm if=/dev/zero of=planted-file bs=1M count=64 2>errors; \
         sleep 0.3; SLURM_JOB_ID={JOB} ./planted-comm if=/dev/zero of=planted-file bs=1M count=1 \
         2>errors; touch done"
    );
    fs::write(service.path().join("as-root"), script).expect("written");
    let sent = bytes_sent(
        &service,
        "./own-comm if=/dev/zero of=own-file bs=64k count=1 2>/dev/null; \
         ./become-root --reuid 0 sh ./as-root; sleep 0.2",
    );
    assert!(service.path().join("done").exists());
    let text = String::from_utf8_lossy(&sent);
    assert!(text.contains("own-comm") && text.contains("own-file"));
    for planted in ["planted-comm", "planted-file", JOB] {
        assert!(!text.contains(planted), "{planted}");
    }
    let end = &text[text.rfind("summary").expect("the end")..];
    assert!(
        !end.contains("64.0 MiB") && !end.contains("MiB written"),
        "{end}"
    );
}

/// What others run beside the target, which the profiler of root reads, is not named.
#[test]
fn neighbours_are_not_named() {
    let service = Service::start(&[]);
    let shell = service.path().join("planted-loop");
    fs::copy("/bin/sh", &shell).expect("a copy");
    let shell = shell.to_str().expect("UTF-8");
    let looping = ["taskset", "-c", "0", shell, "-c", "while :; do :; done"];
    let _neighbour = ProcessGroup::spawn(&looping);
    let sent = bytes_sent(
        &service,
        "taskset -c 0 sh -c 'ulimit -t 1; while :; do :; done'; sleep 0.2",
    );
    let text = String::from_utf8_lossy(&sent);
    assert!(text.contains("taskset"), "the command is recorded");
    assert!(!text.contains("planted-loop"));
}

/// A program that reads a file of root for its user, as a set-uid program may.
#[test]
fn set_uid_programs_show_only_what_proc_shows() {
    let service = Service::start(&[]);
    let secret = service.path().join("secret");
    fs::write(&secret, vec![7; 3 << 20]).expect("written");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("permissions");
    set_user_id(&service, "dd", "read-secret");
    let output = service
        .profiler(ALICE, "run")
        .args([
            "--",
            "sh",
            "-c",
            // Long enough for several readings.
            "./read-secret if=secret of=/dev/null bs=4 && dd if=profiler of=/dev/null bs=64k",
        ])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let data = service.data("run");
    let (pid, exe, read, cmdline, user_ns): (u32, Option<String>, Option<u64>, String, u64) = data
        .row(
            "SELECT pid, exe, read_chars, cmdline, user_ns + system_ns FROM process
             WHERE comm = 'read-secret'",
        );
    assert!(exe.is_none() && read.is_none(), "{exe:?} {read:?}");
    assert!(
        cmdline.contains("if=secret"),
        "/proc shows the arguments to everyone: {cmdline}"
    );
    assert!(user_ns > 0, "wait4 tells the times");
    let (rows, hidden, cpu_ns): (u64, u64, u64) = data.row(&format!(
        "SELECT count(*), count(read_chars) + count(read_bytes) + count(fds) + count(pss),
             sum(user_ns + system_ns) FROM usage WHERE pid = {pid}"
    ));
    assert!(
        rows > 1 && hidden == 0 && cpu_ns > 0,
        "{rows} {hidden} {cpu_ns}"
    );
    let (states,): (u64,) = data.row(&format!(
        "SELECT count(sleep_ns) + count(wakeups) FROM sched WHERE pid = {pid}"
    ));
    assert_eq!(states, 0);
    let (files,): (u64,) = data.row(&format!("SELECT count(*) FROM file_io WHERE pid = {pid}"));
    assert_eq!(files, 0);
    // A program without more permissions than its user shows everything.
    let (own,): (u64,) = data.row("SELECT sum(read_chars) FROM process WHERE comm = 'dd'");
    let profiler = fs::metadata(service.path().join("profiler")).expect("a file");
    assert!(own >= profiler.len());
}

/// Power at short intervals tells what other programs compute.
#[test]
fn energy_of_ordinary_users_has_long_intervals() {
    const SHORTEST_NS: u64 = 800_000_000;
    let powered = powered();
    let mount = format!("mount --bind {}/class /sys/class", powered.path());
    let service = Service::in_mounts(&mount);
    let output = service
        .profiler(ALICE, "energy")
        .args([
            "--source",
            "usage,energy,system,process",
            "--",
            "sleep",
            "2.5",
        ])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.contains("by the service"),
        "{stderr}"
    );
    let data = service.data("energy");
    let (samples,): (u64,) = data.row("SELECT count(DISTINCT ts) FROM usage");
    assert!(samples > 10, "{samples}");
    let rows: Vec<(u64, u64)> = data.rows(
        "SELECT interval_ns, energy_uj FROM energy WHERE domain = 'package' ORDER BY ts, socket",
    );
    // Those of the end of the profile are two packages.
    let (at_end, before) = rows
        .split_last_chunk::<2>()
        .map(|(before, end)| (end, before))
        .expect("rows");
    assert!(
        before.len() >= 2 && at_end.iter().all(|(_, energy)| *energy > 0),
        "{rows:?}"
    );
    assert!(
        before.iter().all(|(interval, _)| *interval >= SHORTEST_NS),
        "{rows:?}"
    );
    // Energy of a second is not divided by the use in a tenth of it.
    let (known,): (u64,) = data.row("SELECT count(energy_uj) FROM process");
    assert_eq!(known, 0);
}

/// A program that has given its user the memory back is the user's again, as `su` does.
#[test]
fn programs_after_a_set_uid_program_are_shown() {
    let service = Service::start(&[]);
    set_user_id(&service, "setpriv", "as-alice");
    let script = format!(
        "./as-alice --reuid {ALICE} dd if=profiler of=/dev/null bs=64k count=8 2>/dev/null"
    );
    let output = service
        .profiler(ALICE, "again")
        .args(["--", "sh", "-c", &script])
        .output()
        .expect("it starts");
    assert!(output.status.success());
    let (read, exe): (u64, Option<String>) = service
        .data("again")
        .row("SELECT read_chars, exe FROM process WHERE comm = 'dd'");
    assert!(read >= 8 * 65_536 && exe.is_some(), "{read} {exe:?}");
}
