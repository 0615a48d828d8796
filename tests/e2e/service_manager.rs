//! Notifications to the service manager, by a socket that this test reads in its place.

use std::{
    os::unix::{fs::MetadataExt as _, net::UnixDatagram},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use e2e::{
    dataset::Dataset,
    procfs::{self, thread_ids},
    runs::{Profiler, Running, TIMEOUT, wait_until},
    setting,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::service::Service;

/// The service manager.
pub struct Manager {
    directory: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    pub fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("bound");
        Self { directory, socket }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("notify")
    }

    fn start(&self, options: &[&str]) -> Running {
        Profiler::new()
            .args(["--node", "--source", "system", "-i", "100ms"])
            .args(options)
            .env("NOTIFY_SOCKET", self.path())
            .env("WATCHDOG_USEC", "400000")
            .without_terminal()
            .start()
    }

    /// The next notification within a time; `None` if there is none.
    fn within(&self, time: Duration) -> Option<String> {
        let mut message = [0; 512];
        self.socket.set_read_timeout(Some(time)).expect("a time");
        let length = self.socket.recv(&mut message).ok()?;
        Some(String::from_utf8(message[..length].to_vec()).expect("text"))
    }

    pub fn next(&self) -> String {
        self.within(TIMEOUT).expect("a notification")
    }

    /// A notification that has arrived.
    fn arrived(&self) -> Option<String> {
        self.within(Duration::from_millis(1))
    }

    /// Forgets notifications that have arrived.
    pub fn drain(&self) {
        while self.arrived().is_some() {}
    }
}

#[test]
fn loop_reports_start_progress_and_end() {
    let manager = Manager::new();
    let begin = Instant::now();
    let running = manager.start(&[]);
    let run = running.run_dir();
    let ready = manager.next();
    let activity = ready.strip_prefix("READY=1\n").expect(&ready);
    assert!(activity.starts_with("STATUS=profiling node "), "{activity}");
    assert!(
        activity.ends_with(&format!(" into {}", run.display())),
        "{activity}"
    );
    let samples = |message: &str| -> u64 {
        let status = message.strip_prefix(&format!("WATCHDOG=1\n{activity}: "));
        let status = status.expect(message);
        let (samples, missed) = status.split_once(" samples, ").expect(message);
        assert!(missed.ends_with(" missed"), "{message}");
        samples.parse().expect("a number")
    };
    let mut taken = 0;
    while taken < 10 {
        taken = samples(&manager.next());
    }
    let elapsed = begin.elapsed();
    assert!(elapsed > Duration::from_secs(1), "{taken} in {elapsed:?}");

    // Its timeout is over twice if the loop stands still.
    running.signal(Signal::STOP);
    wait_until("all threads have stopped", || {
        let tasks = thread_ids(running.pid()).into_iter();
        let mut tasks = tasks.map(|tid| format!("/proc/{}/task/{tid}", running.pid()));
        tasks.all(|task| procfs::state(task) == Some('T'))
    });
    manager.drain();
    assert_eq!(manager.within(Duration::from_millis(800)), None);
    running.signal(Signal::CONT);
    assert!(manager.next().starts_with("WATCHDOG=1\n"));

    running.signal(Signal::HUP);
    let mut messages = std::iter::from_fn(|| Some(manager.next()));
    let reloading = messages.find(|message| !message.starts_with("WATCHDOG=1\n"));
    let us = reloading.as_deref().unwrap_or_default();
    let us = us.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect(us);
    assert_ne!(us.parse(), Ok(0_u64));
    let ready = messages.find(|message| !message.starts_with("WATCHDOG=1\n"));
    assert_eq!(ready, Some(format!("READY=1\n{activity}")));

    running.signal(Signal::INT);
    let ended = running.finish();
    ended.dataset().assert_complete();
    let mut last = String::new();
    while let Some(message) = manager.arrived() {
        last = message;
    }
    assert_eq!(last, "STOPPING=1\nSTATUS=writing the last files");
}

#[test]
fn manager_of_a_command_waits_for_the_command() {
    let manager = Manager::new();
    let ended = Profiler::new()
        .args(["--source", "system"])
        .env("NOTIFY_SOCKET", manager.path())
        .command(&["sh", "-c", "echo $NOTIFY_SOCKET"])
        .finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert_eq!(ended.stdout, format!("{}\n", manager.path().display()));
    assert_eq!(manager.arrived(), None);
}

/// Messages of a profiler of a process that does not exist, whose stderr is a file that
/// `JOURNAL_STREAM` names, or another one.
fn messages(is_journal: bool, options: &[&str]) -> String {
    let stderr = tempfile::NamedTempFile::new().expect("a file");
    let file = stderr.as_file().metadata().expect("a file");
    let inode = file.ino() + u64::from(!is_journal);
    let status = Command::new(setting("PROFILER_BIN"))
        .arg("run")
        .args(options)
        .env("JOURNAL_STREAM", format!("{}:{inode}", file.dev()))
        .current_dir("/tmp")
        .stderr(stderr.reopen().expect("a file"))
        .status();
    status.expect("it starts");
    std::fs::read_to_string(stderr.path()).expect("text")
}

#[test]
fn lines_in_the_journal_have_priorities() {
    let out = TempDir::new().expect("a directory");
    let path = out.path().to_str().expect("UTF-8");
    let node = [
        "--node",
        "-d",
        "100ms",
        "--map-entries",
        "PROCESSES=4",
        "--out",
        path,
    ];
    let missing = ["--pid", "4194304"];
    let text = messages(true, &[&node[..], &["--source", "system"]].concat());
    assert!(text.lines().all(|line| line.starts_with("<6>")), "{text}");
    assert!(text.contains("<6>dataset "), "{text}");
    let text = messages(true, &[&node[..], &["--source", "process"]].concat());
    let lost = |line: &&str| {
        line.starts_with("<4>profiler: ") && line.contains(" lost: map PROCESSES was full")
    };
    assert!(text.lines().any(|line| lost(&line)), "{text}");
    let text = messages(true, &missing);
    let message = "profiler: no process 4194304 (already exited?)\n";
    assert_eq!(text, format!("<3>{message}"));
    assert_eq!(messages(false, &missing), message);
}

#[test]
fn manager_that_has_gone_stops_no_profiler() {
    let manager = Manager::new();
    let running = manager.start(&[]);
    drop(manager);
    // It has tried to notify several times.
    Dataset::new(running.run_dir()).wait_for_samples("system", 10);
    running.interrupt().dataset().assert_complete();
}

#[test]
fn service_is_ready_when_clients_can_connect() {
    let manager = Manager::new();
    let mut service = Service::with_environment(&[], Some(("NOTIFY_SOCKET", &manager.path())));
    let serving = format!("serving at {}", service.path().join("socket").display());
    assert_eq!(manager.next(), format!("READY=1\nSTATUS={serving}"));
    let output = service
        .profiler(crate::service::ALICE, "own")
        .args(["--", "true"])
        .output();
    assert!(output.expect("it starts").status.success());
    // The processes for clients do not notify.
    assert_eq!(manager.arrived(), None);
    service.signal(Signal::TERM);
    assert_eq!(manager.next(), "STOPPING=1\nSTATUS=");
    wait_until("the service has ended", || service.exit_code() == Some(0));
}
