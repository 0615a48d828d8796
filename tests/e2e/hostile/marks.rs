//! The socket for marks of a node's profiler, which all users may write to: the marks of one user
//! displace none of another, and their cost is bounded.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::chown,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use e2e::{
    attacker::{UID, VICTIM, command_as, directory_of},
    dataset::Dataset,
    runs::{Finished, ProcessGroup, Profiler, Running},
    setting,
};

use serde::Deserialize;

use crate::regions::{MARKS, counted};

/// The directory of a user in /tmp, created first by another user.
#[test]
fn taken_directory_takes_no_marks_away() {
    const USER: u32 = 65_530;
    let taken = PathBuf::from(format!("/tmp/profiler-{USER}"));
    fs::create_dir(&taken).expect("no other test has it");
    chown(&taken, Some(UID), Some(UID)).expect("root gives files away");
    let out = directory_of(USER);
    let program = out.path().join("profiler");
    fs::copy(setting("PROFILER_BIN"), &program).expect("a copy");
    let output = command_as(USER, &program)
        .args([
            "run",
            "-i",
            "100ms",
            "--service",
            "/nowhere",
            "--run-id",
            "run",
            "--out",
        ])
        .arg(out.path())
        .args([
            "--",
            "sh",
            "-c",
            "test -S \"$PROFILER_SOCKET\" && echo \"$PROFILER_SOCKET\"",
        ])
        .current_dir(out.path())
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("RUNTIME_DIRECTORY")
        .env("TMPDIR", "/tmp")
        .output()
        .expect("it starts");
    let is_empty = fs::read_dir(&taken).expect("a directory").next().is_none();
    fs::remove_dir(&taken).expect("empty");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && is_empty, "{stderr}");
    let socket = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let directory = socket.parent().expect("a directory");
    assert!(
        directory.starts_with("/tmp") && directory != taken,
        "{}",
        socket.display()
    );
    assert!(stderr.contains("marks are received in"), "{stderr}");
    assert!(!directory.exists(), "removed at the end");
}

/// A profiler of the node, and its socket.
struct Node {
    running: Running,
    socket: String,
    started: Instant,
}

impl Node {
    fn start() -> Self {
        let started = Instant::now();
        let mut running = Profiler::realtime().args(["-i", "250ms", "--node"]).start();
        running.wait_for("PROFILER_SOCKET=");
        let mut lines = running.stderr().lines();
        let socket = lines.find_map(|line| line.split_once("PROFILER_SOCKET="));
        let socket = socket.expect("a path").1.trim().to_owned();
        Self {
            running,
            socket,
            started,
        }
    }

    /// A process of a user that sends marks.
    fn process(&self, uid: u32, text: &str) -> ProcessGroup {
        let script =
            format!("{MARKS}\nos.setgroups([]); os.setgid({uid}); os.setuid({uid})\n{text}");
        ProcessGroup::start(
            Command::new(setting("PROFILER_TEST_PYTHON"))
                .args(["-c", &script])
                .env("PROFILER_SOCKET", &self.socket)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        )
    }

    /// Processes of the attacker, each of which has printed `ready`.
    fn attackers(&self, count: usize, text: &str) -> Vec<ProcessGroup> {
        let attackers: Vec<_> = (0..count).map(|_| self.process(UID, text)).collect();
        attackers.into_iter().map(ready).collect()
    }

    /// Sends the victim's marks, as in docs/regions.md, and ends the run.
    fn mark_and_end(self, attackers: Vec<ProcessGroup>) -> Ended {
        let mut honest = self.process(VICTIM, HONEST);
        let mut printed = String::new();
        let stdout = honest.0.stdout.take().expect("a pipe");
        BufReader::new(stdout)
            .read_line(&mut printed)
            .expect("text");
        let run = Dataset::new(self.running.run_dir());
        // The table of regions is long by now.
        run.wait_for_row(
            "region_gauge",
            "the last mark of the victim is stored",
            |_| true,
        );
        drop(honest.0.stdin.take());
        assert!(honest.0.wait().expect("our child").success());
        drop(attackers);
        let finished = self.running.interrupt();
        Ended {
            data: finished.any_dataset(),
            seconds: self.started.elapsed().as_secs_f64(),
            honest: serde_json::from_str(&printed).expect("JSON"),
            finished,
        }
    }
}

/// Waits until a process prints `ready`.
fn ready(mut process: ProcessGroup) -> ProcessGroup {
    let mut line = [0; 6];
    let stdout = process.0.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut line).expect("a line");
    assert_eq!(&line, b"ready\n");
    process
}

const REGIONS: usize = 8;
const BURNT: u64 = 50_000_000;
const WRITTEN: u64 = 1_000_000;

/// A boundary is read shortly after its mark; the program is idle meanwhile.
const HONEST: &str = r#"
null = open("/dev/null", "wb", buffering=0)
idle = []
for number in range(8):
    mark("start", f"honest {number}"); time.sleep(0.15)
    start = time.time_ns(); burn(0.05); null.write(bytes(1000000))
    mark("end", f"honest {number}"); time.sleep(0.15)
    idle.append([start, time.time_ns()])
mark("event", "lossy", dropped=3)
mark("gauge", "last", value=1)
print(json.dumps({"pid": os.getpid(), "idle_until": idle}), flush=True)
sys.stdin.read()
"#;

/// What the victim reports.
#[derive(Deserialize)]
struct Honest {
    pid: u32,
    /// For each region, the ends of the pauses after its marks, in ns.
    idle_until: Vec<[i64; 2]>,
}

/// Name, CPU time and bytes written (null if the first reading was after the end), and times of the
/// readings at start and end.
type Usage = (String, Option<u64>, Option<u64>, i64, i64);

/// A run under attack.
struct Ended {
    finished: Finished,
    data: Dataset,
    seconds: f64,
    honest: Honest,
}

impl Ended {
    /// Asserts that all regions of the victim have their counters and that the run is complete.
    fn assert_unharmed(&self) {
        assert_eq!(self.finished.code(), 0, "{}", self.finished.stderr);
        let rows: Vec<Usage> = self.data.rows(&format!(
            "SELECT u.name, oncpu_ns, write_chars, epoch_ns(region_start_ts) + start_offset_ns, \
             epoch_ns(region_end_ts) + end_offset_ns FROM region_usage u JOIN region USING (host, region_id) \
             WHERE u.pid = {} ORDER BY u.name",
            self.honest.pid
        ));
        assert_eq!(rows.len(), REGIONS, "{rows:?}\n{}", self.finished.stderr);
        let mut in_time = 0;
        for (number, (name, oncpu, written, start, end)) in rows.iter().enumerate() {
            assert_eq!(*name, format!("honest {number}"));
            // A machine that stalls delays the reading until the victim works again.
            let [idle_at_start, idle_at_end] = self.honest.idle_until[number];
            if *start < idle_at_start && *end < idle_at_end {
                in_time += 1;
                let (oncpu, written) = (oncpu.unwrap_or(0), written.unwrap_or(0));
                assert!((BURNT..BURNT + 20_000_000).contains(&oncpu), "{rows:?}");
                assert!((WRITTEN..WRITTEN + 1000).contains(&written), "{rows:?}");
            }
        }
        // The first ones compete with the start of the attack.
        assert!(in_time >= REGIONS / 4, "{in_time} in time: {rows:?}");
        let verified = Command::new(setting("PROFILER_BIN"))
            .arg("verify")
            .arg(self.data.path())
            .output()
            .expect("the profiler starts");
        let text = String::from_utf8_lossy(&verified.stdout);
        assert!(verified.status.success(), "{text}");
        // The reported losses are those of the victim.
        assert_eq!(self.lost(VICTIM, "the socket was full"), 3);
    }

    /// Number of marks of a user that were lost for this reason, from run.json.
    fn lost(&self, uid: u32, why: &str) -> u64 {
        let losses = self.data.manifest()["losses"].clone();
        let losses = losses.as_array().expect("a list").iter();
        let of_user = losses.filter(|loss| {
            loss["uid"] == uid && loss["why"].as_str().is_some_and(|text| text.contains(why))
        });
        of_user
            .map(|loss| loss["count"].as_u64().expect("a count"))
            .sum()
    }

    /// Bytes of the tables of regions.
    fn bytes_of_regions(&self) -> u64 {
        let files = self.data.files().into_iter();
        let of_regions = files.filter(|file| {
            file.strip_prefix(self.data.path())
                .is_ok_and(|file| file.starts_with("region") || file.starts_with("region_gauge"))
        });
        of_regions
            .map(|file| fs::metadata(file).expect("a file").len())
            .sum()
    }

    /// CPU time of the profiler as a share of the run's time.
    fn cpu(&self) -> f64 {
        let ns: u64 = self
            .data
            .value("SELECT sum(cpu_ns) FROM overhead WHERE component_kind = 'profiler'");
        ns as f64 / 1e9 / self.seconds
    }
}

#[test]
fn open_regions_are_limited_per_user() {
    let node = Node::start();
    let attackers = node.attackers(
        6,
        r#"
for n in range(4096): mark("start", "held", id=n)
print("ready", flush=True)
while True: mark("start", "more"); time.sleep(0.01)
"#,
    );
    let ended = node.mark_and_end(attackers);
    ended.assert_unharmed();
    let held: u64 = ended
        .data
        .value("SELECT count(*) FROM region WHERE name = 'held'");
    assert!(held <= 16_384, "{held}");
    // The rest of the 24,576 is counted as too fast or dropped.
    assert!(ended.lost(UID, "too many regions are open") > 0);
    let lost = ended.lost(UID, "");
    assert!(held + lost >= 6 * 4096, "{held} held, {lost} lost");
}

/// Messages that are small but become large when parsed: the maximum number of them takes bounded
/// memory.
#[test]
fn region_memory_is_limited_per_user() {
    let node = Node::start();
    let attackers = node.attackers(
        3,
        r#"
nested = json.dumps([{"": 0}] * 1000, separators=(",", ":"))
text = f'{{"op":"start","name":"large","used":{nested}}}'.encode()
for n in range(200): raw(text)
print("ready", flush=True)
while True: raw(text); time.sleep(0.01)
"#,
    );
    let ended = node.mark_and_end(attackers);
    ended.assert_unharmed();
    let held: u64 = ended
        .data
        .value("SELECT count(*) FROM region WHERE name = 'large'");
    // Limit 32 MiB; each takes more than 600 KB.
    assert!((1..60).contains(&held), "{held}");
}

/// A user can store 4 MiB and then 256 KiB per second. A text is stored at most twice: with the
/// start and the end of its region.
#[test]
fn marks_fill_the_disk_at_a_limited_rate() {
    let node = Node::start();
    let attackers = node.attackers(
        3,
        r#"
print("ready", flush=True)
while True:
    for op in "start", "end", "event":
        raw(json.dumps({"op": op, "name": "large", "attrs": {"text": os.urandom(3500).hex()}}).encode())
"#,
    );
    let ended = node.mark_and_end(attackers);
    ended.assert_unharmed();
    let allowed = 2.0 * (f64::from(4 << 20) + f64::from(256 << 10) * ended.seconds);
    let written = ended.bytes_of_regions() as f64;
    assert!(written < allowed, "{written} bytes, {allowed} allowed");
    assert!(ended.lost(UID, "256 KiB per second") > 100);
}

#[test]
fn implausible_sender_losses_are_charged_to_the_sender() {
    let node = Node::start();
    let attackers = node.attackers(
        2,
        r#"
for _ in range(100):
    mark("event", "liar", dropped=(1 << 64) - 1)
    # Not of the target.
    mark("event", "liar", dropped=(1 << 64) - 1, pid=1)
print("ready", flush=True)
while True: mark("event", "liar", dropped=(1 << 64) - 1); time.sleep(0.01)
"#,
    );
    let ended = node.mark_and_end(attackers);
    ended.assert_unharmed();
    // Two processes, with at most one attempt per 100 ns each.
    let most = 2.0 * ended.seconds * 1e7;
    let all = counted(&ended.data, "socket_full");
    assert!(all as f64 <= most, "{all}, at most {most}");
    assert!(ended.lost(UID, "the socket was full") <= all);
}

/// Marks at the maximum rate: boundaries read only marked processes, and the CPU time is bounded.
#[test]
fn mark_storm_only_affects_its_senders() {
    let bystanders: Vec<_> = (0..100)
        .map(|_| ProcessGroup::spawn(&["sleep", "600"]))
        .collect();
    let node = Node::start();
    let attackers = node.attackers(
        3,
        r#"
print("ready", flush=True)
while True: mark("start", "storm"); mark("end", "storm")
"#,
    );
    let ended = node.mark_and_end(attackers);
    ended.assert_unharmed();
    let ticks: u64 = ended.data.value("SELECT count(DISTINCT ts) FROM timeline");
    let pids: Vec<_> = bystanders
        .iter()
        .map(|kept| kept.pid().to_string())
        .collect();
    let rows: u64 = ended.data.value(&format!(
        "SELECT max(rows) FROM (SELECT count(*) AS rows FROM usage WHERE pid IN ({}) GROUP BY pid)",
        pids.join(",")
    ));
    let readings: u64 = ended.data.value("SELECT count(DISTINCT ts) FROM usage");
    assert!(
        rows <= ticks + 1 && readings > 2 * ticks,
        "{rows} rows at {ticks} samples and {readings} readings"
    );
    assert!(ended.cpu() < 1.0, "{}", ended.cpu());
}
