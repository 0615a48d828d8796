//! SIGHUP: the configuration is read again without a gap in the samples, and the log file is opened
//! again. From a terminal, it ends the run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use e2e::{
    dataset::Dataset,
    procfs,
    runs::{ProcessGroup, Profiler, Running, pid_of, wait_until},
    setting,
};
use rustix::process::{Signal, kill_process};
use tempfile::TempDir;

use crate::{
    retention,
    service::{ALICE, Service},
    service_manager::Manager,
};

/// A configuration file.
struct Configuration(TempDir);

impl Configuration {
    fn new(text: &str) -> Self {
        let configuration = Self(TempDir::new().expect("a directory"));
        configuration.write(text);
        configuration
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("profiler.toml")
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).expect("written");
    }

    fn profiler(&self) -> Profiler {
        self.in_directory(Profiler::new())
    }

    fn in_directory(&self, profiler: Profiler) -> Profiler {
        profiler
            .args(["--node", "--source", "system,overhead", "--config"])
            .args([self.path()])
            .without_terminal()
    }
}

fn reload(running: &mut Running, report: &str) {
    running.signal(Signal::HUP);
    running.wait_for(report);
}

#[test]
fn interval_changes_without_a_gap() {
    let configuration = Configuration::new("interval = '200ms'\nlabels = { a = '1' }");
    let mut running = configuration.in_directory(Profiler::realtime()).start();
    let run = Dataset::new(running.run_dir());
    run.wait_for_samples("overhead", 3);
    for interval in ["'50ms'", "'300ms'"] {
        configuration.write(&format!("interval = {interval}\ncheckpoint = '7s'"));
        reload(&mut running, "configuration reloaded: interval\n");
        run.wait_for_samples("overhead", 5);
    }
    reload(&mut running, "configuration reloaded: no change\n");
    let ended = running.interrupt();
    let needed = "profiler: restart the profiler to change checkpoint, labels\n";
    assert_eq!(ended.stderr.matches(needed).count(), 3, "{}", ended.stderr);
    let data = ended.dataset();
    data.assert_complete();
    let manifest = data.manifest();
    assert_eq!(manifest["config"]["interval_ns"], 300_000_000);
    assert_eq!(manifest["config"]["checkpoint"], "60.00 s");
    assert_eq!(manifest["labels"]["a"], "1");
    assert_eq!(manifest["reloads"], 2);
    // Each row covers the time since the one before it, to the microsecond of `ts`.
    let (rows, gaps): (u64, u64) = data.row(
        "SELECT count(*), count(*) FILTER (abs(us - interval_ns / 1000) > 2) FROM (
             SELECT interval_ns, epoch_us(ts) - lag(epoch_us(ts)) OVER (ORDER BY ts) AS us
             FROM overhead WHERE component_kind = 'profiler')",
    );
    assert_eq!(gaps, 0, "of {rows} rows");
    // The time between the deadlines of two samples, in ms, in their order.
    let intervals: Vec<(i64,)> = data.rows(
        "SELECT round((due - lag(due) OVER (ORDER BY due)) / 1e6 / (1 + dropped))::BIGINT FROM (
             SELECT epoch_ns(ts) - late_ns::BIGINT AS due, dropped::BIGINT AS dropped
             FROM overhead WHERE component_kind = 'profiler')
         QUALIFY row_number() OVER (ORDER BY due) BETWEEN 2 AND count(*) OVER () - 1 ORDER BY due",
    );
    let mut intervals: Vec<_> = intervals.into_iter().map(|(ms,)| ms).collect();
    let all = format!("{intervals:?}");
    intervals.dedup();
    intervals.retain(|ms| [200, 50, 300].contains(ms));
    assert_eq!(intervals, [200, 50, 300], "{all}");
    // Every sample has rows or is counted as missed.
    assert_eq!(manifest["samples"].as_u64(), Some(rows));
    let missed: u64 =
        data.value("SELECT sum(dropped) FROM overhead WHERE component_kind = 'profiler'");
    let losses = manifest["losses"].as_array().expect("a list");
    let counted: u64 = losses
        .iter()
        .filter_map(|loss| loss["count"].as_u64())
        .sum();
    assert_eq!(missed, counted, "{losses:?}");
}

#[test]
fn invalid_configuration_is_reported_and_not_adopted() {
    let configuration = Configuration::new("interval = '100ms'");
    let mut running = configuration.profiler().start();
    for (text, error) in [
        ("\ninterval = '0s'", "line 2: interval: "),
        ("interval", "line 1: "),
        ("intervall = '1s'", "line 1: unknown setting `intervall`"),
    ] {
        configuration.write(text);
        reload(
            &mut running,
            "the configuration is invalid and was not reloaded: ",
        );
        let line = running.stderr().lines().last().unwrap_or_default();
        assert!(line.contains(error), "{line}");
    }
    fs::remove_file(configuration.path()).expect("removed");
    reload(&mut running, "was not reloaded: ");
    let ended = running.interrupt();
    let data = ended.dataset();
    data.assert_complete();
    assert_eq!(data.manifest()["config"]["interval_ns"], 100_000_000);
    assert_eq!(data.manifest()["reloads"], serde_json::Value::Null);
}

#[test]
fn limits_of_the_disk_apply_at_once() {
    let configuration = Configuration::new("");
    let directory = TempDir::new().expect("a directory");
    let out = directory.path();
    retention::finished(out, "old", 49, 1 << 20);
    let mut running = configuration
        .in_directory(Profiler::writing_to(out))
        .start();
    configuration.write("max_age = '2d'");
    reload(&mut running, "configuration reloaded: max_age\n");
    wait_until("the old run is removed", || !out.join("old").exists());
    running.interrupt();
}

#[test]
fn log_file_is_opened_again() {
    let configuration = Configuration::new("interval = '100ms'");
    let log = configuration.0.path().join("{host}.log");
    let log = log.to_str().expect("UTF-8").to_owned();
    let running = configuration
        .profiler()
        .args(["--hostname", "n", "--log", &log])
        .spawn();
    let log = Path::new(&log).with_file_name("n.log");
    let rotated = log.with_extension("1");
    let has = |path: &Path, text: &str| fs::read_to_string(path).unwrap_or_default().contains(text);
    wait_until("it is attached", || has(&log, " profiling node"));
    fs::rename(&log, &rotated).expect("renamed");
    running.signal(Signal::HUP);
    wait_until("a new file", || {
        has(&log, "configuration reloaded: no change")
    });
    // The directory is gone: messages go to the open file.
    let away = configuration.0.path().join("away");
    fs::create_dir(&away).expect("made");
    fs::rename(&log, away.join("n.log")).expect("renamed");
    fs::create_dir(&log).expect("made");
    running.signal(Signal::HUP);
    wait_until("the error", || has(&away.join("n.log"), "cannot open log "));
    running.interrupt().dataset().assert_complete();
    assert!(has(&away.join("n.log"), " dataset "));
    assert!(!has(&rotated, "reloaded"));
}

#[test]
fn hangup_of_the_terminal_ends_the_run() {
    let directory = TempDir::new().expect("a directory");
    let out = directory.path().join("out");
    let command = format!(
        "exec {} run --node --source system -i 100ms --run-id run --out {}",
        setting("PROFILER_BIN"),
        out.display()
    );
    // Its end closes the terminal that it has made.
    let terminal = ProcessGroup::spawn(&["script", "--quiet", "--command", &command, "/dev/null"]);
    let manifest = || {
        let text = fs::read_to_string(out.join("run/run.json")).unwrap_or_default();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()
    };
    wait_until("a journal", || {
        manifest()["state"] == "running" && out.join("run/system").is_dir()
    });
    let profiler = procfs::children(terminal.pid())[0];
    kill_process(pid_of(terminal.pid()), Signal::KILL).expect("it is alive");
    wait_until("its end", || manifest()["state"] != "running");
    assert_eq!(manifest()["state"], "complete");
    wait_until("the process has ended", || procfs::has_ended(profiler));
}

#[test]
fn command_gets_the_signal() {
    let running = Profiler::new()
        .args(["--source", "system"])
        .without_terminal()
        .command(&["sleep", "60"])
        .start();
    running.signal(Signal::HUP);
    let ended = running.finish();
    assert_eq!(ended.code(), 129, "{}", ended.stderr);
}

#[test]
fn service_reads_its_limits_again() {
    let configuration = Configuration::new("[serve]\nmax_sessions = 0");
    let path = configuration.path();
    let manager = Manager::new();
    let service = Service::with_environment(
        &["--config", path.to_str().expect("UTF-8")],
        Some(("NOTIFY_SOCKET", &manager.path())),
    );
    let is_refused = |name: &str| {
        let output = service.profiler(ALICE, name).args(["--", "true"]).output();
        let stderr = String::from_utf8_lossy(&output.expect("it starts").stderr).into_owned();
        stderr.contains("profiles are running, which is the limit of the node")
    };
    assert!(is_refused("none"));
    configuration.write("[serve]\nmax_sessions = 1");
    service.signal(Signal::HUP);
    wait_until("the limits", || !is_refused("one"));
    manager.drain();
    configuration.write("[serve]\nmax_session = 0");
    service.signal(Signal::HUP);
    // The service announces the reading before and after it.
    while !manager.next().starts_with("RELOADING=1\n") {}
    while !manager.next().starts_with("READY=1\n") {}
    assert!(!is_refused("another"));
}
