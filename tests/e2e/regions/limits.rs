//! Marks that are invalid, too many, or from other users: each is counted, reported once, and
//! affects no other marks.

use std::{
    os::unix::net::UnixDatagram,
    process::{Command, Stdio},
};

use e2e::{
    runs::{Finished, ProcessGroup, Profiler},
    setting,
};

use serde_json::{Value, json};

use super::{MARKS, READING, counted, printed, script};

/// Number of lines on stderr with this text.
fn times_reported(finished: &Finished, what: &str) -> usize {
    finished
        .stderr
        .lines()
        .filter(|line| line.contains(what))
        .count()
}

/// Sends invalid marks, and valid ones between them.
const INVALID_MARKS: &str = r#"
for wrong in b"", b"{", b"[]", b"nonsense", b'{"op":"start"}', b'{"op":"begin","name":"x"}', b'\xff\xfe', b"[" * 8000, b'{"op":"phase","name":"x","seconds":-1}':
    raw(wrong); raw(wrong)
raw(json.dumps({"op": "event", "name": "fits", "attrs": {"text": "x" * 8100}}).encode())
for _ in range(3): raw(json.dumps({"op": "event", "name": "large", "attrs": {"text": "x" * 8200}}).encode())
marks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20); raw(b"x" * 100000)
for _ in range(4): mark("end", "none")
for _ in range(3): mark("start", "twice", id="same")
for _ in range(3): mark("end", id="same")
mark("event", "foreign", pid=1); mark("event", "foreign", pid=1 << 30)
mark("event", "own", pid=os.getpid())
# Descriptors that come along are not for the profiler.
marks.connect(path)
socket.send_fds(marks, [b'{"op":"event","name":"descriptors"}'], [0, 1, 2], 0, path)
for _ in range(50): socket.send_fds(marks, [b'{"op":"event","name":"descriptors"}'], [0, 1, 2], 0, path)
mark("start", "look"); time.sleep(0.1); mark("end", "look")
"#;

#[test]
fn invalid_marks_are_counted_and_reported_once() {
    let finished = script(&[], INVALID_MARKS);
    let data = finished.dataset();
    data.assert_complete();
    for (what, count) in [
        ("malformed", 18),
        ("oversized", 4),
        ("end_without_start", 4),
        ("duplicate_id", 2),
        ("refused", 2),
        ("too_fast", 0),
        ("socket_full", 0),
        ("too_many_open", 0),
    ] {
        assert_eq!(counted(&data, what), count, "{what}\n{}", finished.stderr);
    }
    for what in [
        "EOF while parsing",
        "larger than 8 KiB",
        "no region \"none\" is open",
        "\"same\" is open already",
        "not of the target",
    ] {
        let lines = finished
            .stderr
            .lines()
            .filter(|line| line.contains(what) && line.contains("from process"));
        assert_eq!(lines.count(), 1, "{what}\n{}", finished.stderr);
    }
    assert_eq!(
        times_reported(&finished, "marks of user 0 lost"),
        3,
        "{}",
        finished.stderr
    );
    let rows: Vec<(String, Option<String>, u64)> =
        data.rows("SELECT name, status, count(*) FROM region GROUP BY ALL ORDER BY ALL");
    let rows: Vec<_> = rows
        .iter()
        .map(|(name, status, count)| (&**name, status.as_deref(), *count))
        .collect();
    assert_eq!(
        rows,
        [
            ("descriptors", None, 51),
            ("fits", None, 1),
            ("look", Some("finished"), 1),
            ("none", Some("unmatched"), 4),
            ("own", None, 1),
            ("twice", Some("finished"), 3),
        ]
    );
    let losses = data.manifest()["losses"].clone();
    let marks = losses
        .as_array()
        .expect("a list")
        .iter()
        .filter(|loss| loss["what"] == "marks");
    let counts: Vec<u64> = marks
        .map(|loss| loss["count"].as_u64().expect("a count"))
        .collect();
    assert_eq!(counts, [18, 4, 2]);
}

#[test]
fn passed_file_descriptors_are_closed() {
    let finished = script(
        &[],
        r#"
def descriptors(): return len(os.listdir(f"/proc/{os.getppid()}/fd"))
marks.connect(path); mark("start", "first"); time.sleep(0.05); before = descriptors()
for _ in range(200): socket.send_fds(marks, [b'{"op":"event","name":"descriptors"}'], [0, 1, 2], 0, path)
while True:
    # All of them have been received when the queue is empty.
    if descriptors() <= before + 2: break
    time.sleep(0.1)
mark("end", "first")
"#,
    );
    let data = finished.dataset();
    let events: u64 = data.value("SELECT count(*) FROM region WHERE name = 'descriptors'");
    assert_eq!(events, 200);
}

/// Every attempted mark is stored or counted as lost.
#[test]
fn every_mark_of_a_flood_is_counted() {
    let finished = script(
        &[],
        r#"
marks.setblocking(False)
tried = dropped = 0
end = time.monotonic() + 1.5
while time.monotonic() < end or tried < 30000:
    tried += 1
    try: mark("event", "flood", dropped=dropped); dropped = 0
    except BlockingIOError: dropped += 1
marks.setblocking(True)
time.sleep(0.3)
mark("event", "last", dropped=dropped)
print(json.dumps(tried))
"#,
    );
    let tried: u64 = printed(&finished);
    let data = finished.dataset();
    data.assert_complete();
    let stored: u64 = data.value("SELECT count(*) FROM region WHERE name = 'flood'");
    let [too_fast, full] = ["too_fast", "socket_full"].map(|what| counted(&data, what));
    assert!(
        too_fast > 0 && stored >= 10_000,
        "{stored} stored, {too_fast} too fast, {full} dropped"
    );
    // The last mark itself may have been lost.
    let all = stored + too_fast + full;
    assert!(
        (tried..=tried + 1).contains(&all),
        "{tried} tried: {stored} + {too_fast} + {full}"
    );
}

#[test]
fn open_regions_have_a_limit() {
    let finished = script(
        &[],
        r#"
for n in range(4200): mark("start", "many", id=n)
for n in range(4200): mark("end", id=n)
mark("start", "after"); mark("end", "after")
"#,
    );
    let data = finished.dataset();
    assert_eq!(counted(&data, "too_many_open"), 104);
    assert_eq!(counted(&data, "end_without_start"), 104);
    let rows: Vec<(String, u64)> =
        data.rows("SELECT status, count(*) FROM region GROUP BY ALL ORDER BY ALL");
    assert_eq!(
        rows,
        [("finished".to_owned(), 4097), ("unmatched".to_owned(), 104)]
    );
}

/// Runs a Python script as user nobody; returns its output.
fn as_nobody(socket: &str, text: &str) -> String {
    let python = setting("PROFILER_TEST_PYTHON");
    let script = format!("{MARKS}\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n{text}");
    let output = Command::new(python)
        .args(["-c", &script])
        .env("PROFILER_SOCKET", socket)
        .stdin(Stdio::null())
        .output()
        .expect("python starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn only_users_of_the_target_can_write_to_the_socket() {
    const TRY: &str = r#"
try: mark("event", "foreign"); print("sent")
except PermissionError: print("denied")
"#;
    let sleeper = ProcessGroup::spawn(&["sleep", "60"]);
    let mut running = Profiler::new()
        .args(["-i", "50ms"])
        .pid(sleeper.pid())
        .start();
    running.wait_for("PROFILER_SOCKET=");
    let socket = running
        .stderr()
        .lines()
        .find_map(|line| line.split_once("PROFILER_SOCKET="));
    let socket = socket.expect("a path").1.trim().to_owned();
    assert_eq!(as_nobody(&socket, TRY), "denied");
    // Root can write to the socket, but is outside the target unless it names a process.
    let own = UnixDatagram::unbound().expect("a socket");
    own.send_to(br#"{"op":"event","name":"outsider"}"#, &socket)
        .expect("sent");
    let claim = format!(
        r#"{{"op":"event","name":"claimed","pid":{}}}"#,
        sleeper.pid()
    );
    own.send_to(claim.as_bytes(), &socket).expect("sent");
    let finished = running.interrupt();
    assert!(!std::path::Path::new(&socket).exists());
    let data = finished.dataset();
    assert_eq!(counted(&data, "refused"), 1);
    let names: Vec<(String, u32)> = data.rows("SELECT name, pid FROM region");
    assert_eq!(names, [("claimed".to_owned(), sleeper.pid())]);
}

#[test]
fn users_can_mark_their_own_processes_only() {
    // Processes of another user in the target may write once they have been read.
    let finished = script(
        &["-i", "50ms"],
        r#"
root = os.getpid()
pid = os.fork()
if pid == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    while True:
        try: mark("event", "nobody"); break
        except PermissionError: time.sleep(0.01)
    mark("event", "for root", pid=root)
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps([root, pid]))
"#,
    );
    let [_, nobody]: [u32; 2] = printed(&finished);
    let data = finished.dataset();
    assert_eq!(counted(&data, "refused"), 1);
    let rows: Vec<(String, u32)> = data.rows("SELECT name, pid FROM region");
    assert_eq!(rows, [("nobody".to_owned(), nobody)]);
}

#[test]
fn with_node_all_users_can_mark() {
    let mut running = Profiler::new().args(["-i", "100ms", "--node"]).start();
    running.wait_for("PROFILER_SOCKET=");
    let socket = running
        .stderr()
        .lines()
        .find_map(|line| line.split_once("PROFILER_SOCKET="));
    let socket = socket.expect("a path").1.trim().to_owned();
    let printed = as_nobody(
        &socket,
        r#"
times = [time.process_time_ns()]; mark("start", "work")
times.append(time.process_time_ns()); burn(0.3); times.append(time.process_time_ns())
mark("end", "work"); times.append(time.process_time_ns())
print(os.getpid(), *times); sys.stdout.flush(); time.sleep(0.05)"#,
    );
    let printed: Vec<i64> = printed
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    let [pid, before, started, ending, after] = printed[..] else {
        panic!("{printed:?}")
    };
    let finished = running.interrupt();
    let data = finished.dataset();
    let rows: Vec<(String, i64, i64, i64)> =
        data.rows("SELECT name, pid, oncpu_ns, start_offset_ns FROM region_usage");
    let [(name, of, oncpu, offset)] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!((&**name, *of), ("work", pid));
    // Excludes the CPU time before the first reading, and includes at most that of sending the last
    // mark.
    let least = ending - started - offset.max(&0) - READING;
    let most = after - before - offset.min(&0) + READING;
    assert!(
        (least..=most).contains(oncpu),
        "{oncpu}, not {least}..={most}"
    );
}

/// Regions that are shorter than the distance of readings.
const SHORT_REGIONS: &str = r#"
for _ in range(200):
    mark("start", "short"); end = time.monotonic() + 0.0005
    while time.monotonic() < end: pass
    mark("end", "short")
mark("start", "long"); end = time.monotonic() + 0.5
while time.monotonic() < end: pass
mark("end", "long")
"#;

/// The usage of a region is unknown if its readings are further away than it is long, and the sum over
/// regions says how many are in it.
#[test]
fn sums_say_how_many_regions_are_known() {
    let finished = script(&[], SHORT_REGIONS);
    let data = finished.dataset();
    let (all, known, far): (u64, u64, u64) = data.row(
        "SELECT count(*), count(user_ns), count(*) FILTER (user_ns IS NOT NULL AND \
         abs(start_offset_ns) + abs(end_offset_ns) > epoch_ns(region_end_ts) - epoch_ns(region_start_ts) + 1000) \
         FROM region_usage u JOIN region USING (host, region_id) WHERE u.name = 'short'",
    );
    assert_eq!((all, far), (200, 0));
    assert!(known < all, "{known}");
    let summary = |options: &[&str]| {
        let mut command = Command::new(setting("PROFILER_BIN"));
        let command = command.arg("summary").args(options).arg(data.path());
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .expect("it starts");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let document: Value = serde_json::from_str(&summary(&["--json"])).expect("JSON");
    let regions = document["runs"][0]["regions"].as_array().expect("regions");
    let named = |name: &str| {
        let mut regions = regions.iter();
        regions
            .find(|region| region["name"] == name)
            .expect("marked")
    };
    let (short, long) = (named("short"), named("long"));
    assert!(long.get("partial").is_none(), "{long}");
    let rows = format!("({known} of {all})");
    if known == 0 {
        assert!(short["region_cpu_s"].is_null(), "{short}");
    } else {
        let partial = &short["partial"]["region_cpu_s"];
        assert_eq!(*partial, json!({"rows": known, "of": all}), "{short}");
        assert!(summary(&[]).contains(&rows) && summary(&["--md"]).contains(&rows));
    }
}
