//! `profiler serve`: users without privileges get the rows of their own processes, and no others.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{
    dataset::Dataset,
    procfs::{children, cpu_time},
    runs::{ProcessGroup, TIMEOUT, wait_until, without_terminal},
    setting,
};
use tempfile::TempDir;

/// Users of the tests; they need no names.
pub const ALICE: u32 = 65_531;
pub const BOB: u32 = 65_532;

/// Stderr of the service, in its directory.
const LOG: &str = "service.log";

/// A running service in a directory that all users can use.
pub struct Service {
    directory: TempDir,
    process: Child,
}

impl Service {
    pub fn start(options: &[&str]) -> Self {
        Self::with_environment(options, None)
    }

    pub fn with_environment(options: &[&str], variable: Option<(&str, &Path)>) -> Self {
        let directory = TempDir::new().expect("a directory");
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), open).expect("permissions");
        // Other users need not be able to enter the directory of the build.
        fs::copy(setting("PROFILER_BIN"), directory.path().join("profiler")).expect("a copy");
        let process = serve(directory.path(), options, variable);
        Self { directory, process }
    }

    /// A service that runs in mounts of its own, after a script has changed them.
    pub fn in_mounts(script: &str) -> Self {
        let mut service = Self::start(&[]);
        service.kill();
        let mut command = Command::new("unshare");
        without_terminal(&mut command);
        let script = format!("{script} && exec \"$@\"");
        command.args(["--mount", "sh", "-c", &script, "sh"]);
        command.arg(service.program()).args(["serve", "--socket"]);
        command.arg(service.path().join("socket"));
        fs::remove_file(service.path().join("socket")).expect("the socket of the first one");
        service.process = command.process_group(0).spawn().expect("it starts");
        wait_until("the socket", || service.path().join("socket").exists());
        service
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.path().join("socket")
    }

    /// Its process id, and not those of its clients' processes.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it and the processes of its clients have written to stderr.
    pub fn log(&self) -> Vec<u8> {
        fs::read(self.path().join(LOG)).expect("a file")
    }

    fn program(&self) -> PathBuf {
        self.path().join("profiler")
    }

    /// The profiler as another user, with its dataset in the directory `name`.
    pub fn profiler(&self, uid: u32, name: &str) -> Command {
        self.profiler_every("100ms", uid, name)
    }

    pub fn profiler_every(&self, interval: &str, uid: u32, name: &str) -> Command {
        let mut command = Command::new(self.program());
        command
            .args(["run", "-i", interval, "--run-id", name, "--out"])
            .arg(self.path())
            .env("PROFILER_SERVICE", self.socket())
            .current_dir(self.path())
            .stdin(Stdio::null())
            .uid(uid)
            .gid(uid);
        command
    }

    pub fn data(&self, name: &str) -> Dataset {
        Dataset::new(self.path().join(name))
    }

    /// Sends the service a signal, and not the processes of its clients.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("it is alive");
    }

    /// Its exit code, when it has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        let status = self.process.try_wait().expect("our child")?;
        status.code()
    }

    pub fn kill(&mut self) {
        // With the processes of its clients.
        let group = rustix::process::Pid::from_child(&self.process);
        let killed = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        // A test may have ended it.
        let has_ended = self.process.try_wait().expect("our child").is_some();
        assert!(killed.is_ok() || has_ended);
        self.process.wait().expect("our child");
    }

    pub fn restart(&mut self) {
        self.kill();
        self.process = serve(self.directory.path(), &[], None);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        // With the output of a test that fails.
        eprintln!("{}", String::from_utf8_lossy(&self.log()));
    }
}

fn serve(directory: &Path, options: &[&str], variable: Option<(&str, &Path)>) -> Child {
    let socket = directory.join("socket");
    let before = fs::metadata(&socket).is_ok();
    let mut command = Command::new(directory.join("profiler"));
    without_terminal(&mut command);
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join(LOG));
    let process = command
        .stderr(log.expect("a file"))
        .arg("serve")
        .arg("--socket")
        .arg(&socket)
        .args(options)
        .envs(variable)
        .process_group(0)
        .spawn()
        .expect("it starts");
    if !before {
        wait_until("the socket", || socket.exists());
    }
    process
}

#[test]
fn user_gets_everything_about_own_processes() {
    let service = Service::start(&[]);
    let output = service
        .profiler(ALICE, "own")
        .args([
            "--",
            "sh",
            "-c",
            "for i in 1 2 3; do head -c 1000000 profiler | wc -c >f; sleep 0.1; done; exit 7",
        ])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(stderr.contains("by the service of this node"), "{stderr}");
    let data = service.data("own");
    data.assert_complete();
    let (processes, ended, sleeping): (u64, u64, u64) = data.row(
        "SELECT count(*), count(end_ts), count(*) FILTER (comm = 'sleep') FROM process WHERE uid = 65531",
    );
    assert_eq!((processes, ended, sleeping), (10, 10, 3));
    // Only BPF programs know how long processes slept.
    let slept: f64 = data.value("SELECT sum(sleep_ns) / 1e9 FROM sched");
    assert!(slept > 0.3, "{slept}");
    let owner = fs::metadata(data.path().join("run.json")).expect("a file");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), ALICE);
    let (uid, code): (u32, i32) = data.row("SELECT uid, exit_code FROM run");
    assert_eq!((uid, code), (ALICE, 7));
}

#[test]
fn processes_that_start_during_a_reading_have_rows() {
    let service = Service::start(&[]);
    // Many processes make readings long.
    let output = service
        .profiler(ALICE, "datagrams")
        .args(["--", "bash", "-c"])
        .arg(
            "for i in {1..4000}; do sleep 600 & done
             for i in {1..3000}; do (echo datagram > /dev/udp/127.0.0.1/9); done
             kill $(jobs -p)",
        )
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let data = service.data("datagrams");
    let (calls, bytes): (u64, u64) = data.row("SELECT sum(tx_calls), sum(tx_bytes) FROM net_io");
    // A slow disk cannot take everything at once. Each process has one row, with one datagram.
    let lost = data.lost("rows of net_io");
    assert_eq!(
        (calls + lost, bytes),
        (3000, calls * 9),
        "{lost} rows lost: {}",
        data.manifest()["losses"]
    );
}

#[test]
fn empty_name_of_the_service_is_none() {
    let service = Service::start(&[]);
    let run = |name: &str, option: &[&str], variable: Option<&str>| {
        let mut command = service.profiler(ALICE, name);
        command.args(option).args(["--", "true"]);
        if let Some(value) = variable {
            command.env("PROFILER_SERVICE", value);
        }
        let output = command.output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        stderr.contains("by the service")
    };
    assert!(run("with", &[], None));
    assert!(!run("variable", &[], Some("")));
    assert!(!run("option", &["--service", ""], None));
}

#[test]
fn users_see_only_their_own_processes() {
    let service = Service::start(&[]);
    let start = |uid: u32, name: &str, seconds: &str| {
        let mut command = service.profiler(uid, name);
        command.args(["--", "sh", "-c", &format!("sleep {seconds}; true")]);
        command.spawn().expect("it starts")
    };
    let mut both = [start(ALICE, "alice", "1.11"), start(BOB, "bob", "1.22")];
    for profiler in &mut both {
        assert!(profiler.wait().expect("our child").success());
    }
    for (name, uid, seconds) in [("alice", ALICE, "1.11"), ("bob", BOB, "1.22")] {
        let found: Vec<(String, u32)> = service
            .data(name)
            .rows("SELECT cmdline, uid FROM process WHERE comm = 'sleep'");
        assert_eq!(found, [(format!("sleep {seconds}"), uid)]);
    }
}

/// The profile is then made with the user's own rights.
#[test]
fn service_takes_no_sample_every_millisecond() {
    let service = Service::start(&[]);
    let output = service
        .profiler_every("1ms", ALICE, "fast")
        .args(["--", "true"])
        .output();
    let output = output.expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("a sample every 10ms at most"), "{stderr}");
}

#[test]
fn processes_of_other_users_are_refused() {
    let service = Service::start(&[]);
    let mut foreign = Command::new("sleep")
        .arg("60")
        .uid(BOB)
        .spawn()
        .expect("it starts");
    let pid = foreign.id().to_string();
    let output = service
        .profiler(ALICE, "foreign")
        .args(["--pid", &pid])
        .output();
    let output = output.expect("it starts");
    let _ = foreign.kill().and_then(|()| foreign.wait());
    assert_eq!(output.status.code(), Some(4));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(&format!("process {pid} belongs to user {BOB}")),
        "{stderr}"
    );
    assert!(!service.path().join("foreign").exists());
}

#[test]
fn restart_of_the_service_is_a_gap() {
    let mut service = Service::start(&[]);
    let mut profiler = service
        .profiler(ALICE, "gap")
        .args(["--", "sh", "-c"])
        .arg("until [ -e go ]; do sleep 0.05; done; sleep 3; exit 3")
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let data = service.data("gap");
    wait_until("a run", || data.path().join("usage").exists());
    data.wait_for_samples("usage", 3);
    service.restart();
    let stderr = BufReader::new(profiler.stderr.take().expect("a pipe"));
    let mut lines = stderr.lines().map(|line| line.expect("text"));
    let is_back = lines.any(|line| line.contains("the service is back"));
    assert!(is_back, "stderr has ended");
    fs::write(service.path().join("go"), "").expect("written");
    lines.for_each(drop);
    let status = profiler.wait().expect("our child");
    assert_eq!(status.code(), Some(3));
    let losses = data.manifest()["losses"].clone();
    // On a busy machine, the services can have missed samples as well.
    let mut reasons = losses.as_array().into_iter().flatten();
    let is_away = reasons.any(|loss| {
        let why = loss["why"].as_str().expect("a reason");
        why.starts_with("the service was away for")
    });
    assert!(is_away, "{losses}");
    // The process that has started after the gap is complete.
    let (after, ended): (u64, u64) =
        data.row("SELECT count(*), count(end_ts) FROM process WHERE cmdline = 'sleep 3'");
    assert_eq!((after, ended), (1, 1));
}

#[test]
fn quota_limits_the_profiles_of_a_user() {
    let service = Service::start(&["--max-sessions-per-user", "1"]);
    // With its command, which outlives it.
    let first = ProcessGroup::start(
        service
            .profiler(ALICE, "first")
            .args(["--", "sleep", "600"]),
    );
    wait_until("a run", || service.path().join("first/usage").exists());
    let profile = |uid, name| {
        let output = service.profiler(uid, name).args(["--", "true"]).output();
        let output = output.expect("it starts");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Without the service, as far as the user's own rights go.
    let second = profile(ALICE, "second");
    assert!(
        second.contains("the service refuses: 1 profiles of this user"),
        "{second}"
    );
    assert!(!profile(BOB, "third").contains("refuses"));
    drop(first);
    wait_until("the end of the first profile", || {
        !profile(ALICE, "fourth").contains("refuses")
    });
}

/// Profiles one after the other, until their starts and ends have used up the credit.
#[test]
fn script_of_profiles_is_served() {
    const CREDIT: Duration = Duration::from_secs(10);
    let service = Service::start(&[]);
    let mut number = 0;
    while number < 20 && cpu_time(service.pid()) < CREDIT {
        let output = service
            .profiler(ALICE, &format!("run{number}"))
            .args(["--", "true"])
            .output()
            .expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.contains("by the service of this node"), "{stderr}");
        assert!(!stderr.contains("lengthened"), "{stderr}");
        wait_until("the end of its process", || {
            children(service.pid()).is_empty()
        });
        number += 1;
    }
    assert!(number >= 10, "{number} profiles");
}

#[test]
fn hundred_clients_at_once_are_served() {
    const CLIENTS: u32 = 100;
    let service = Service::start(&["--max-sessions", "100", "--max-sessions-per-user", "50"]);
    let user = |number: u32| if number.is_multiple_of(2) { ALICE } else { BOB };
    let start = |number: u32, script: &str| {
        let mut command = service.profiler(user(number), &format!("run{number}"));
        command.args(["--source", "process,usage,sched", "--", "sh", "-c", script]);
        command.stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let wait = "until [ -e go ]; do sleep 0.5; done; exit 3";
    let clients: Vec<_> = (0..CLIENTS).map(|number| start(number, wait)).collect();
    for number in 0..CLIENTS {
        let usage = service.path().join(format!("run{number}/usage"));
        wait_until("a run", || usage.exists());
    }
    let one_more = start(CLIENTS, "true")
        .wait_with_output()
        .expect("our child");
    let stderr = String::from_utf8_lossy(&one_more.stderr);
    assert!(
        stderr.contains("the service refuses: 50 profiles of this user"),
        "{stderr}"
    );
    fs::write(service.path().join("go"), "").expect("written");
    for (number, client) in (0..).zip(clients) {
        let output = client.wait_with_output().expect("our child");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        let data = service.data(&format!("run{number}"));
        let rows = data.table("process");
        let uids: Vec<_> = rows.iter().map(|row| row.u64("uid")).collect();
        assert!(
            uids.iter().all(|uid| *uid == Some(user(number).into())),
            "{uids:?}"
        );
        let shells: Vec<_> = rows
            .iter()
            .filter(|row| row.text("comm") == Some("sh"))
            .collect();
        assert_eq!(shells.len(), 1, "{number}");
        assert_eq!(shells[0].i64("exit_code"), Some(3));
    }
}

/// bind(2) makes the file before listen(2) and chmod(2).
#[test]
fn the_socket_exists_when_clients_can_connect() {
    for _ in 0..20 {
        let directory = TempDir::new().expect("a directory");
        let socket = directory.path().join("socket");
        let mut process = Command::new(setting("PROFILER_BIN"))
            .args(["serve", "--socket"])
            .arg(&socket)
            .process_group(0)
            .spawn()
            .expect("it starts");
        let deadline = Instant::now() + TIMEOUT;
        let connected = loop {
            match UnixStream::connect(&socket) {
                Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < deadline => {}
                connected => break connected.map(drop),
            }
        };
        let mode = fs::metadata(&socket).map(|found| found.mode() & 0o777);
        process
            .kill()
            .and_then(|()| process.wait())
            .expect("our child");
        connected.expect("a connection");
        assert_eq!(mode.expect("a socket"), 0o666);
    }
}

#[test]
fn only_sockets_of_ended_services_are_replaced() {
    let service = Service::start(&[]);
    let socket = service.path().join("socket");
    let file = service.path().join("file");
    fs::write(&file, "content").expect("written");
    for (path, why) in [(&socket, "a service is running there"), (&file, "exists")] {
        let output = Command::new(setting("PROFILER_BIN"))
            .args(["serve", "--socket"])
            .arg(path)
            .output()
            .expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
    assert_eq!(fs::read_to_string(&file).expect("the file"), "content");
}
