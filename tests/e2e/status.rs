//! `profiler status`: figures of running profilers against independent readings, and users who try
//! to mislead it.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixStream,
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Output},
    time::{Duration, SystemTime},
};

use e2e::{
    runs::{ProcessGroup, Profiler, Running, pid_of, wait_until},
    setting,
};
use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketType, socket},
    process::{Signal, Uid, kill_process},
    thread::set_thread_res_uid,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    full_disk::Disk,
    service::{ALICE, BOB, Service},
};

fn status(options: &[&str]) -> Output {
    let mut command = Command::new(setting("PROFILER_BIN"));
    command
        .arg("status")
        .args(options)
        .output()
        .expect("it starts")
}

/// All entries; empty if none runs.
fn all() -> Vec<Value> {
    let output = status(&["--json"]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn of(pid: u32) -> Option<Value> {
    all()
        .into_iter()
        .find(|entry| entry["process"]["pid"] == pid)
}

fn start(options: &[&str]) -> Running {
    Profiler::new()
        .args(["--node", "--source", "system,overhead", "-i", "100ms"])
        .args(options)
        .start()
}

/// CPU time in ns, from the run queues' accounts of all threads.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let times = tasks.map(|task| {
        let path = task.expect("a thread").path().join("schedstat");
        let text = fs::read_to_string(path).unwrap_or_default();
        let first = text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        first.unwrap_or(0)
    });
    times.sum()
}

#[test]
fn status_has_the_figures_of_a_running_profiler() {
    // Nothing else writes to this disk.
    let disk = Disk::new("64m");
    let running = Profiler::writing_to(&disk.path().join("out"))
        .args(["--node", "--source", "system,overhead", "-i", "100ms"])
        .args(["--checkpoint", "1s", "--keep-free", "1M"])
        .args(["--max-age", "30d"])
        .start();
    let pid = running.pid();
    wait_until("its first files and samples", || {
        let entry = of(pid);
        entry.is_some_and(|entry| entry["file_ts"].is_i64() && entry["samples"].as_u64() >= Some(5))
    });
    let before = cpu_ns(pid);
    let entry = of(pid).expect("it is listed");
    let after = cpu_ns(pid);
    let run = running.run_dir();
    assert_eq!(entry["run_dir"], run.to_str().expect("UTF-8"));
    let name = run.file_name().expect("a name").to_str();
    assert_eq!(entry["run_id"].as_str(), name);
    assert_eq!(entry["interval_ns"], 100_000_000);
    assert_eq!(entry["uid"], 0);
    assert_eq!(entry["user"], "root");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = i64::try_from(now.expect("after 1970").as_nanos()).expect("before 2262");
    for ts in ["sample_ts", "file_ts"] {
        let age = now - entry[ts].as_i64().expect(ts);
        assert!((0..10_000_000_000).contains(&age), "{ts}: {age} ns ago");
    }
    // As many samples as fit into its life.
    let age = entry["age_ns"].as_u64().expect("an age");
    let samples = entry["samples"].as_u64().expect("samples");
    assert!(
        (5..=age / 100_000_000).contains(&samples),
        "{samples} in {age} ns"
    );
    // The kernel rounds to its ticks in stat.
    let tick = 10_000_000;
    let cpu = entry["cpu_ns"].as_u64().expect("CPU time");
    assert!(
        (before.saturating_sub(2 * tick)..=after + 2 * tick).contains(&cpu),
        "{cpu} of {before} to {after}"
    );
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .expect("resident")
        .parse()
        .expect("a number");
    let (rss, expected) = (entry["rss"].as_u64().expect("memory"), pages * 4096);
    assert!(rss.abs_diff(expected) < 4 << 20, "{rss}, not {expected}");
    let disk = &entry["disk"];
    assert_eq!(disk["keep_free"], 1 << 20);
    assert_eq!(disk["max_age_ns"], 30_u64 * 86_400_000_000_000);
    assert_eq!(disk["max_size"], Value::Null);
    let space = rustix::fs::statvfs(&run).expect("mounted");
    let free = disk["free"].as_u64().expect("bytes");
    let now = space.f_bavail * space.f_frsize;
    assert!(free.abs_diff(now) < 4 << 20, "{free}, not {now}");

    let text = String::from_utf8(status(&[]).stdout).expect("UTF-8");
    for line in [
        format!("  process {pid}, user root, version "),
        format!("  run     {}\n", run.display()),
        " samples, every 100.0 ms, the last ".to_owned(),
        "  cost    ".to_owned(),
        " of runs, ".to_owned(),
    ] {
        assert!(text.contains(&line), "{line:?} in {text}");
    }
    running.interrupt().dataset().assert_complete();
    assert_eq!(of(pid), None);
}

#[test]
fn missed_samples_are_a_loss() {
    let running = start(&[]);
    running.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(2));
    running.signal(Signal::CONT);
    let missed = || {
        let entry = of(running.pid())?;
        let losses = entry["losses"].as_array()?.clone();
        let ticks = losses.into_iter().find(|loss| loss["what"] == "samples")?;
        ticks["count"].as_u64()
    };
    wait_until("the loss", || missed().is_some_and(|count| count >= 15));
    running.interrupt();
}

#[test]
fn killed_profiler_is_not_listed() {
    let running = start(&[]);
    let pid = running.pid();
    wait_until("it is listed", || of(pid).is_some());
    running.kill();
    assert_eq!(of(pid), None);
}

/// Another mount namespace, in which no other profiler of the machine is visible.
#[test]
fn nothing_runs() {
    let script = format!(
        "mount -t tmpfs none /run; mount -t tmpfs none /tmp; exec {} status \"$@\"",
        setting("PROFILER_BIN")
    );
    let isolated = |options: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec", &script, "sh"])
            .args(options);
        command
            .env_remove("XDG_RUNTIME_DIR")
            .output()
            .expect("it starts")
    };
    for (options, stdout) in [(&[][..], ""), (&["--json"], "[]\n")] {
        let output = isolated(options);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            stderr,
            "profiler: no profiler or service is running on this node\n"
        );
    }
}

#[test]
fn service_and_its_clients_are_listed() {
    let directory = TempDir::new().expect("a directory");
    // As systemd makes it for the unit.
    let runtime = Path::new("/run/profiler-serve");
    let existed = runtime.exists();
    fs::create_dir_all(runtime).expect("made");
    let service = Service::with_environment(&[], Some(("RUNTIME_DIRECTORY", runtime)));
    let entry = |name: &str, value: &Value| all().into_iter().find(|entry| entry[name] == *value);
    let socket = service
        .path()
        .join("socket")
        .to_str()
        .expect("UTF-8")
        .into();
    wait_until("the service", || entry("socket", &socket).is_some());
    let mut command = service.profiler(ALICE, "own");
    let _client = ProcessGroup::start(command.args(["--", "sleep", "60"]));
    wait_until("its client", || {
        entry("client_uid", &ALICE.into()).is_some_and(|entry| entry["uid"] == 0)
    });
    // The client itself is a profiler of its user, whose file root reads.
    wait_until("the run", || {
        entry("uid", &ALICE.into()).is_some_and(|entry| {
            entry["run_dir"] == service.path().join("own").to_str().expect("UTF-8")
        })
    });
    drop((service, directory));
    if !existed {
        let _ = fs::remove_dir_all(runtime);
    }
}

/// A subcommand as another user.
fn as_user(service: &Service, uid: u32, arguments: &[&str]) -> Output {
    let mut command = Command::new(service.path().join("profiler"));
    command
        .args(arguments)
        .env("PROFILER_SERVICE", service.socket())
        .uid(uid)
        .gid(uid)
        .output()
        .expect("it starts")
}

/// What `profiler check` tells a user about the service.
fn service_of(service: &Service, uid: u32) -> Value {
    let output = as_user(service, uid, &["check", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["service"].clone()
}

fn stdout(output: Output) -> String {
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn users_see_the_service() {
    let mut service = Service::start(&[]);
    let socket = service.socket();
    let socket = socket.to_str().expect("UTF-8");
    let found = service_of(&service, ALICE);
    assert_eq!(found["running"], true, "{found}");
    assert_eq!(found["socket"], socket);
    assert_eq!(found["pid"], service.pid());
    assert_eq!((&found["uid"], &found["why"]), (&0.into(), &Value::Null));
    let table = stdout(as_user(&service, ALICE, &["check"]));
    let line = format!(
        "service {socket}: running, process {}, user root",
        service.pid()
    );
    assert!(table.contains(&line), "{table}");
    wait_until("its status", || {
        stdout(as_user(&service, ALICE, &["status"])).contains(&format!("service {socket}\n"))
    });
    // Of those who look, it reports nothing.
    let log = String::from_utf8(service.log()).expect("UTF-8");
    assert_eq!(log.lines().count(), 1, "{log}");
    // A second one finds it, too.
    let second = status_of_second(&service);
    assert_eq!(
        second,
        (
            Some(5),
            format!(
                "profiler: cannot listen at {socket}: a service is running there; use --socket PATH\n"
            )
        )
    );
    service.signal(Signal::TERM);
    wait_until("its end", || service.exit_code().is_some());
    assert_eq!(service_of(&service, ALICE), Value::Null);
}

/// Exit code and stderr of another service at the same socket.
fn status_of_second(service: &Service) -> (Option<i32>, String) {
    let mut command = Command::new(setting("PROFILER_BIN"));
    let command = command.args(["serve", "--socket"]).arg(service.socket());
    let output = command.output().expect("it starts");
    (
        output.status.code(),
        String::from_utf8(output.stderr).expect("UTF-8"),
    )
}

#[test]
fn socket_of_a_killed_service_is_named() {
    let mut service = Service::start(&[]);
    service.kill();
    let why = "ended without removing its socket, which the next `profiler serve` replaces";
    let socket = service.socket();
    let line = format!("service {}: {why}\n", socket.display());
    let found = service_of(&service, ALICE);
    assert_eq!(
        (&found["running"], &found["why"]),
        (&false.into(), &why.into())
    );
    let table = stdout(as_user(&service, ALICE, &["check"]));
    assert!(table.contains(&line), "{table}");
    let stderr = |output: Output| String::from_utf8(output.stderr).expect("UTF-8");
    let shown = stderr(as_user(&service, ALICE, &["status"]));
    assert!(shown.contains(&format!("profiler: {line}")), "{shown}");
    let mut command = service.profiler(ALICE, "alone");
    let output = command.args(["--", "true"]).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let shown = stderr(output);
    assert_eq!(shown.matches(&*line).count(), 1, "{shown}");
    service.data("alone").assert_complete();
    service.restart();
    wait_until("the service", || {
        service_of(&service, ALICE)["running"] == true
    });
}

/// Sockets that are no service: each has its reason.
#[test]
fn what_is_no_service_is_named() {
    let service = Service::start(&[]);
    let why = |name: &str| {
        let path = service.path().join(name);
        let path = path.to_str().expect("UTF-8");
        let output = as_user(&service, BOB, &["check", "--json", "--service", path]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["service"]["why"].as_str().map(str::to_owned)
    };
    assert_eq!(why("nothing"), None);
    fs::write(service.path().join("file"), "").expect("written");
    let open = fs::Permissions::from_mode(0o666);
    fs::set_permissions(service.path().join("file"), open).expect("ours");
    let expected = "not a socket; remove the file, or start `profiler serve` with another --socket";
    assert_eq!(why("file").as_deref(), Some(expected));
    fs::set_permissions(service.path().join("file"), fs::Permissions::from_mode(0o0))
        .expect("ours");
    assert_eq!(
        why("file").as_deref(),
        Some("cannot connect: permission denied")
    );

    let open = |name: &str, uid: u32| {
        let path = service.path().join(name);
        let bind = || {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(uid, uid, uid).expect("root becomes another user");
            let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
            let address = SocketAddrUnix::new(&path).expect("a short name");
            rustix::net::bind(&socket, &address).expect("bound");
            let open = fs::Permissions::from_mode(0o666);
            fs::set_permissions(&path, open).expect("ours");
            rustix::net::listen(&socket, 0).expect("listening");
            socket
        };
        let socket = std::thread::scope(|scope| scope.spawn(bind).join().expect("no panic"));
        (socket, path)
    };
    let _alice = open("alice", ALICE);
    let expected = format!("not used: it is a program of user {ALICE}");
    assert_eq!(why("alice"), Some(expected));

    let (_full, path) = open("full", 0);
    let _waiting = UnixStream::connect(path).expect("the only place");
    let expected = "accepts no connections; restart it if that lasts";
    assert_eq!(why("full").as_deref(), Some(expected));
}

/// A service that accepts and does not answer does not keep a run from starting.
#[test]
fn run_does_not_wait_for_a_service_that_hangs() {
    let service = Service::start(&[]);
    service.signal(Signal::STOP);
    let mut command = service.profiler(ALICE, "alone");
    let output = command.args(["--", "true"]).output().expect("it starts");
    service.signal(Signal::CONT);
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(shown.contains("no answer within 10 s"), "{shown}");
    service.data("alone").assert_complete();
}

/// A user pretends that root's processes profile, and leaves files that hang a careless reader.
#[test]
fn other_users_cannot_mislead_it() {
    let running = start(&[]);
    wait_until("it is listed", || of(running.pid()).is_some());
    let real = of(running.pid()).expect("listed");
    let forgery = "forged \u{1b}[2J";
    let directory = Path::new("/tmp").join(format!("profiler-{ALICE}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).expect("made");
    let forged = |name: &str, pid: u32| {
        let mut entry = real.clone();
        entry["process"]["pid"] = pid.into();
        entry["target"] = forgery.into();
        fs::write(directory.join(name), entry.to_string()).expect("written");
    };
    // Processes of root, and a file of 2 GiB.
    forged("1.status", running.pid());
    forged("2.status", 1);
    let huge = fs::File::create(directory.join("3.status")).expect("made");
    huge.set_len(2 << 30).expect("sparse");
    symlink("/dev/zero", directory.join("4.status")).expect("made");
    let made = Command::new("mkfifo")
        .arg(directory.join("5.status"))
        .status();
    assert!(made.expect("it starts").success());
    let chowned = Command::new("chown")
        .args(["-R", "-h", &ALICE.to_string()])
        .arg(&directory)
        .status();
    assert!(chowned.expect("it starts").success());
    let now = all();
    assert!(
        now.iter().all(|entry| entry["target"] != forgery),
        "{now:?}"
    );
    assert_eq!(of(running.pid()).expect("listed")["target"], real["target"]);

    // An own process of this user is listed as such, without its control characters.
    let own = Command::new("sleep").arg("60").uid(ALICE).spawn();
    let own = ProcessGroup(own.expect("it starts"));
    let stat = fs::read_to_string(format!("/proc/{}/stat", own.pid())).expect("it runs");
    let ticks: u64 = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split(' ').nth(20)?.parse().ok())
        .expect("a start");
    let mut entry = real.clone();
    entry["process"]["pid"] = own.pid().into();
    entry["process"]["start_ticks"] = ticks.into();
    entry["target"] = forgery.into();
    fs::write(directory.join("6.status"), entry.to_string()).expect("written");
    let chowned = Command::new("chown")
        .arg(ALICE.to_string())
        .arg(directory.join("6.status"))
        .status();
    assert!(chowned.expect("it starts").success());
    assert_eq!(of(own.pid()).expect("listed")["uid"], ALICE);
    let text = String::from_utf8(status(&[]).stdout).expect("UTF-8");
    assert!(text.contains("forged \\u{1b}[2J"), "{text}");
    kill_process(pid_of(own.pid()), Signal::KILL).expect("it is alive");
    fs::remove_dir_all(&directory).expect("removed");
    running.interrupt();
}

#[test]
fn users_are_told_of_profilers_that_they_may_not_see() {
    let directory = TempDir::new().expect("a directory");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).expect("permissions");
    let program = directory.path().join("profiler");
    fs::copy(setting("PROFILER_BIN"), &program).expect("a copy");
    let running = start(&[]);
    wait_until("it is listed", || of(running.pid()).is_some());
    let output = Command::new(program)
        .arg("status")
        .uid(ALICE)
        .gid(ALICE)
        .output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(" of other users not shown: run as root to see all\n"),
        "{stderr}"
    );
    running.interrupt();
}
