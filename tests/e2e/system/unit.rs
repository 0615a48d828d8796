//! The unit in docs/deploy under systemd with its complete sandbox, compared with a profiler
//! without one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    thread::sleep,
    time::Duration,
};

use e2e::{
    dataset::Dataset,
    rows::{self, Row, sum},
    runs::{ProcessGroup, Profiler, wait_until},
};

use rustix::fs::StatVfsMountFlags;

use super::commands::{Service, as_user, command_of, install_unit, sh};
use crate::WORKLOAD;

/// Files of docs/deploy: name and content.
const FILES: [(&str, &str); 2] = [
    (
        "profiler.service",
        include_str!("../../../docs/deploy/profiler.service"),
    ),
    (
        "profiler.sysusers",
        include_str!("../../../docs/deploy/profiler.sysusers"),
    ),
];
const STATE: &str = "/var/lib/profiler";
const WRITTEN: u64 = 8 << 20;

/// The installed unit, running.
struct Unit;

impl Unit {
    /// Installs it as documented.
    fn install() -> Self {
        let log = Path::new("/var/log/profiler/profiler.guest.log");
        // Those of another test.
        let _ = fs::remove_file(log);
        sh(&format!("rm -rf {STATE}/*"));
        install_unit(&FILES);
        wait_until("the unit is attached", || {
            let output = fs::read_to_string(log).unwrap_or_default();
            let state = sh("systemctl show --property=ActiveState,NRestarts,Result profiler");
            assert!(state.contains("ActiveState=active"), "{state}\n{output}");
            assert!(state.contains("NRestarts=0"), "{state}\n{output}");
            output.contains("profiling node")
        });
        Self
    }

    /// Stops the unit and returns the run of the node.
    fn stop(self) -> Dataset {
        drop(self);
        let result = sh("systemctl show --property=Result --value profiler");
        assert_eq!(result, "success");
        let runs: Vec<PathBuf> = fs::read_dir(STATE)
            .expect("the state directory")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.join("run.json").is_file())
            .collect();
        assert_eq!(runs.len(), 1, "{runs:?}");
        Dataset::new(runs[0].clone())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = std::process::Command::new("systemctl")
            .args(["stop", "profiler"])
            .status();
    }
}

/// The status of each source.
pub fn sources(data: &Dataset) -> BTreeMap<String, String> {
    let manifest = data.manifest();
    let sources = manifest["sources"].as_array().expect("a list");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    sources
        .iter()
        .map(|source| (text(&source["name"]), text(&source["status"])))
        .collect()
}

/// Tables with rows.
fn tables(data: &Dataset) -> BTreeSet<String> {
    let parts = data.files().into_iter().filter_map(|path| {
        let path = path.strip_prefix(data.path()).ok()?;
        let table = path.iter().next()?.to_str()?;
        path.extension()
            .is_some_and(|ending| ending == "parquet")
            .then(|| table.to_owned())
    });
    parts.collect()
}

/// Columns with at least one value, as `table.column`.
pub fn known_columns(data: &Dataset) -> BTreeSet<String> {
    let known = |table: String| {
        let columns = rows::known_columns(&data.table(&table));
        columns
            .into_iter()
            .map(move |column| format!("{table}.{column}"))
    };
    tables(data).into_iter().flat_map(known).collect()
}

pub fn named<'a>(rows: &'a [Row], column: &str, value: &str) -> Vec<&'a Row> {
    rows.iter()
        .filter(|row| row.text(column) == Some(value))
        .collect()
}

pub fn written(data: &Dataset, table: &str, pid: u64) -> u64 {
    let mut rows = data.table(table);
    rows.retain(|row| row.u64("pid") == Some(pid));
    if table == "file_io" {
        return sum(&rows, "write_bytes");
    }
    rows.retain(|row| row.text("op") == Some("write"));
    sum(&rows, "bytes")
}

#[test]
fn sandboxed_unit_records_the_same_as_an_unsandboxed_profiler() {
    // Disable periodic writeback. ext4 writes a file that replaces another one when it is closed.
    sh(
        "echo 0 > /proc/sys/vm/dirty_writeback_centisecs; echo 360000 > /proc/sys/vm/dirty_expire_centisecs
         rm -f /srv/before",
    );
    // For pages dirtied before the profiler started, only their cgroup is known.
    let before = Service::start(
        "before",
        &["IOAccounting=yes", "MemoryAccounting=yes"],
        &format!(
            "dd if=/dev/zero of=/srv/before bs=1M count={}; touch /run/written; sleep infinity",
            WRITTEN >> 20
        ),
    );
    wait_until("the file is written", || Path::new("/run/written").exists());
    // The kernel allowed write some pages while the profiler is being started.
    let by_cgroup = || -> u64 {
        let path = format!("/sys/fs/cgroup{}/io.stat", before.cgroup());
        let text = fs::read_to_string(path).expect("accounting of I/O");
        let words = text.split_whitespace();
        let bytes = words.filter_map(|word| word.strip_prefix("wbytes="));
        bytes
            .map(|bytes| bytes.parse::<u64>().expect("bytes"))
            .sum()
    };
    let at_first = by_cgroup();
    let unit = Unit::install();
    let free = Profiler::new()
        .args(["--node", "--split-by", "job", "-i", "1s"])
        .start();
    let attached = by_cgroup();
    sh("sync -f /srv/before");
    let synced = by_cgroup();
    assert!(
        attached < WRITTEN,
        "no dirty pages left: {at_first}, {attached}"
    );
    sh(&format!(
        "dd if=/dev/zero of=/srv/direct bs=1M count={} oflag=direct",
        WRITTEN >> 20
    ));
    let ended = free.interrupt();
    let free = ended.dataset();
    let data = unit.stop();

    // The same sources and the same columns with values.
    data.assert_complete();
    assert_eq!(sources(&data), sources(&free));
    let (known, expected) = (known_columns(&data), known_columns(&free));
    let missing: Vec<_> = expected.difference(&known).collect();
    assert!(missing.is_empty(), "null under the sandbox: {missing:?}");

    // The known counts are in both runs.
    let processes = free.table("process");
    let direct = named(&processes, "comm", "dd");
    assert_eq!(direct.len(), 1, "{direct:?}");
    let pid = direct[0].u64("pid").expect("a pid");
    for table in ["file_io", "block_io"] {
        assert_eq!(written(&data, table, pid), WRITTEN, "{table}");
        assert_eq!(written(&free, table, pid), WRITTEN, "{table}");
    }
    for run in [&data, &free] {
        let mut rows = run.table("block_io");
        rows.retain(|row| row.text("cgroup") == Some(&before.cgroup()));
        rows.retain(|row| row.text("op") == Some("write"));
        assert!(rows.iter().all(|row| row.u64("pid").is_none()), "{rows:?}");
        let bytes = sum(&rows, "bytes");
        assert!(
            (synced - attached..=synced - at_first).contains(&bytes),
            "{bytes} of {at_first}, {attached}, {synced}: {rows:?}"
        );
        assert_file_systems_of_node(run);
    }
    assert_only_group_may_read(&data);
}

/// Asserts that members of the group `profiler` can read the run, and other users cannot.
#[track_caller]
fn assert_only_group_may_read(data: &Dataset) {
    let run = data.path().display();
    let read = format!("/usr/local/bin/profiler verify {run} && cat {run}/run.json");
    sh("usermod --append --groups profiler tester");
    let (allowed, output) = as_user("tester", &read);
    assert!(allowed, "{output}");
    assert!(output.contains("\"complete\""), "{output}");
    let (allowed, output) = as_user("other", &format!("cat {run}/run.json"));
    assert!(!allowed, "{output}");
}

/// A drop-in of the unit, removed when this is dropped.
struct DropIn;

impl DropIn {
    const DIRECTORY: &str = "/etc/systemd/system/profiler.service.d";

    /// Restarts the unit with these lines of `[Service]`; returns when it is ready.
    fn restart_with(lines: &str) -> Self {
        let directory = Self::DIRECTORY;
        fs::create_dir_all(directory).expect("made");
        let text = format!("[Service]\nRestartSec=1\n{lines}\n");
        fs::write(format!("{directory}/test.conf"), text).expect("written");
        sh("systemctl daemon-reload; systemctl restart profiler");
        Self
    }
}

impl Drop for DropIn {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Self::DIRECTORY);
        let _ = std::process::Command::new("systemctl")
            .arg("daemon-reload")
            .status();
    }
}

fn property(name: &str) -> String {
    sh(&format!(
        "systemctl show --property={name} --value profiler"
    ))
}

#[test]
fn systemd_knows_the_state_of_the_unit_and_restarts_it() {
    let unit = Unit::install();
    assert_eq!(property("Type"), "notify");

    // The restart has waited for the first sample, and the status of the watchdog follows.
    let drop_in = DropIn::restart_with("WatchdogSec=8");
    assert_eq!(property("ActiveState"), "active");
    let status = property("StatusText");
    assert!(status.starts_with("profiling node "), "{status}");
    assert!(status.contains(" into /var/lib/profiler/"), "{status}");
    wait_until("the loop reports", || {
        property("StatusText").ends_with(" samples, 0 missed")
    });
    sleep(Duration::from_secs(20));
    assert_eq!(property("NRestarts"), "0");
    let pid = property("MainPID");
    let entries = sh("profiler status --json");
    let entries: serde_json::Value = serde_json::from_str(&entries).expect("JSON");
    assert_eq!(entries[0]["process"]["pid"].to_string(), pid, "{entries}");
    assert_eq!(entries[0]["user"], "profiler");
    assert_eq!(entries[0]["disk"]["keep_free"], 5_u64 << 30);
    let (succeeded, output) = as_user("other", "profiler status");
    assert!(succeeded, "{output}");
    assert!(
        output.contains("1 profiler of other users not shown"),
        "{output}"
    );

    // Log rotation, and a reload that changes the interval: no sample is lost.
    let log = "/var/log/profiler/profiler.guest.log";
    let rotated = "/var/log/profiler/profiler.guest.log.1";
    sh(&format!(
        "mkdir -p /etc/profiler.d; echo 'max_age = \"1d\"' > /etc/profiler.d/test.toml
         mv {log} {rotated}; systemctl reload profiler"
    ));
    wait_until("the new file", || {
        let text = fs::read_to_string(log).unwrap_or_default();
        text.contains("configuration reloaded: no change")
    });
    let status = property("StatusText");
    assert!(status.starts_with("profiling node "), "{status}");
    sh("rm /etc/profiler.d/test.toml");
    assert_eq!(property("MainPID"), pid);
    sh(&format!("kill -STOP {pid}"));
    wait_until("a loop that stands still is restarted", || {
        property("NRestarts") == "1"
    });
    wait_until("it is ready again", || property("ActiveState") == "active");
    assert_ne!(property("MainPID"), pid);
    drop(drop_in);

    // A run that ends after its duration is followed by the next one.
    let drop_in = DropIn::restart_with("Environment=PROFILER_DURATION=3s");
    wait_until("the next run", || property("NRestarts") == "1");
    wait_until("it is ready", || property("ActiveState") == "active");
    drop(drop_in);
    drop(unit);
    let log = sh("journalctl -u profiler --no-pager -n 50");
    assert_eq!(property("Result"), "success", "{log}");
}

/// Sends marks continuously to the socket for jobs.
const FLOOD: &str = r#"exec perl -MSocket -e '
    socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die;
    connect($socket, sockaddr_un(glob("/run/profiler/*.sock"))) or die "connect: $!";
    for (my $n = 0; ; $n++) { send($socket, qq({"op":"start","name":"flood-$n"}), 0) }'"#;

/// An unprivileged user passes false command lines and floods the socket, but can neither read nor
/// replace files of the service, nor stop it. Other processes are recorded meanwhile.
#[test]
fn unit_keeps_recording_under_attack() {
    const MEMORY: u64 = 160 << 20;
    let attack =
        |words: &[&str]| ProcessGroup::start(command_of("other", words).stdin(Stdio::piped()));
    sh(&format!(
        "install -m 0755 {WORKLOAD} /usr/local/bin/workload"
    ));
    // Their names are read when the profiler finds them.
    let endless = ["/usr/local/bin/workload", "cmdline", "8589934592"];
    let liars = [(); 2].map(|()| attack(&endless));
    let unit = Unit::install();
    let pid = sh("systemctl show --property=MainPID --value profiler");
    for refused in [
        format!("kill -STOP {pid}"),
        format!("ls {STATE}"),
        "cat /var/log/profiler/profiler.guest.log".to_owned(),
        "ln -s /etc /run/profiler/link".to_owned(),
        "rm /run/profiler/*".to_owned(),
        format!("cat /proc/{pid}/environ"),
    ] {
        let (allowed, output) = as_user("other", &refused);
        assert!(!allowed, "{refused}: {output}");
    }
    let floods = [(); 2].map(|()| attack(&["sh", "-c", FLOOD]));
    sleep(Duration::from_secs(20));
    sh(&format!(
        "dd if=/dev/zero of=/srv/beside bs=1M count={} oflag=direct",
        WRITTEN >> 20
    ));
    sleep(Duration::from_secs(2));
    drop((liars, floods));
    let state = sh("systemctl show --property=ActiveState,NRestarts,MainPID profiler");
    for property in [
        "ActiveState=active",
        "NRestarts=0",
        &format!("MainPID={pid}"),
    ] {
        assert!(state.contains(property), "{state}");
    }
    let memory = fs::read_to_string("/sys/fs/cgroup/system.slice/profiler.service/memory.peak");
    let memory = memory
        .expect("limits of memory")
        .trim()
        .parse()
        .expect("bytes");
    assert!((1..MEMORY).contains(&memory), "{memory} bytes");

    let data = unit.stop();
    let processes = data.table("process");
    let writer = named(&processes, "comm", "dd");
    assert_eq!(writer.len(), 1, "{writer:?}");
    let pid = writer[0].u64("pid").expect("a pid");
    assert_eq!(written(&data, "file_io", pid), WRITTEN);
    let lies = named(&processes, "comm", "workload");
    assert!(!lies.is_empty());
    for row in lies {
        assert_eq!(row.bool("cmdline_truncated"), Some(true), "{row:?}");
    }
    // Only samples and marks of the attacker are lost. Samples are late, but the flood does not
    // stop them.
    let manifest = data.manifest();
    let losses = manifest["losses"].as_array().expect("a list");
    let marks: Vec<_> = losses
        .iter()
        .filter(|loss| loss["what"] != "samples")
        .collect();
    assert!(!marks.is_empty());
    assert!(marks.iter().all(|loss| loss["uid"] == 2002), "{losses:?}");
    let longest = data
        .table("timeline")
        .iter()
        .map(|row| row.u64("interval_ns"))
        .max();
    let longest = longest.flatten().expect("ticks");
    assert!(longest < 8_000_000_000, "{longest} ns without a tick");
}

/// Compares `filesystem` with the mounts of this process, which is in the namespace of pid 1.
fn assert_file_systems_of_node(data: &Dataset) {
    let rows = data.table("filesystem");
    let root = named(&rows, "mount", "/");
    assert!(!root.is_empty(), "{rows:?}");
    for row in &rows {
        let mount = row.text("mount").expect("a path");
        let size = rustix::fs::statvfs(mount).expect("mounted");
        let read_only = size.f_flag.contains(StatVfsMountFlags::RDONLY);
        assert_eq!(row.bool("read_only"), Some(read_only), "{mount}");
        assert_eq!(
            row.u64("total"),
            Some(size.f_blocks * size.f_frsize),
            "{mount}"
        );
    }
}
