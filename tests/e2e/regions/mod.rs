//! Regions marked by applications: their times and their usage.

mod limits;
mod marking;
mod snippets;

use std::{path::Path, time::Duration};

use e2e::{
    dataset::Dataset,
    runs::{Finished, Profiler},
    setting,
};
use serde::Deserialize;
use tempfile::TempDir;

/// Prefix of all scripts: functions that send marks without automatic ids and without counts, so
/// that the tests control each message.
pub const MARKS: &str = r#"
import json, os, resource, signal, socket, sys, time
marks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
path = os.environ.get("PROFILER_SOCKET")
def raw(data): marks.sendto(data, path)
def mark(op, name=None, **more):
    before = time.time_ns()
    raw(json.dumps({"op": op, **({"name": name} if name else {}), **more}).encode())
    return before, time.time_ns()
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"#;

/// Profiles a Python script.
fn script(options: &[&str], text: &str) -> Finished {
    Profiler::new()
        .args(options)
        .command(&[
            &setting("PROFILER_TEST_PYTHON"),
            "-c",
            &format!("{MARKS}{text}"),
        ])
        .finish()
}

fn printed<T: serde::de::DeserializeOwned>(finished: &Finished) -> T {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", finished.stdout, finished.stderr))
}

/// Number of marks that were counted for this reason.
pub fn counted(data: &Dataset, what: &str) -> u64 {
    data.value(&format!(
        "SELECT coalesce(sum(dropped), sum(errors), 0)::BIGINT FROM overhead WHERE component_kind = 'marks' AND component = '{what}'"
    ))
}

/// The process reads its own counters continuously: the usage of a region lies between the
/// differences of the readings around its boundaries.
const KNOWN_WORK: &str = r#"
def counters():
    with open("/proc/self/schedstat") as file: oncpu = int(file.read().split()[0])
    with open("/proc/self/io") as file: io = [int(line.split()[1]) for line in file]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return {"oncpu_ns": oncpu, "read_chars": io[0], "write_chars": io[1], "write_syscalls": io[3], "minor_faults": faults}
samples = []
def look(times):
    for _ in range(times):
        begin = time.time_ns(); values = counters(); samples.append([begin, time.time_ns(), values]); time.sleep(0.004)
look(15)
mark("start", "work")
look(15)
burn(0.3)
with open(sys.argv[1], "wb") as file:
    for _ in range(100): file.write(bytes(10000)); file.flush()
memory = bytearray(8 << 20)
for page in range(0, len(memory), 4096): memory[page] = 1
look(15)
mark("end", "work")
look(15)
print(json.dumps(samples))
"#;

/// Maximum duration of a reading in ns, during which the process is nearly idle.
const READING: i64 = 15_000_000;

#[derive(Deserialize)]
struct Sample {
    begin: i64,
    end: i64,
    values: std::collections::BTreeMap<String, u64>,
}

#[test]
fn region_usage_matches_the_process_own_readings() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    let finished = Profiler::realtime()
        .command(&[
            &setting("PROFILER_TEST_PYTHON"),
            "-c",
            &format!("{MARKS}{KNOWN_WORK}"),
            file.to_str().expect("UTF-8"),
        ])
        .finish();
    let samples: Vec<Sample> = printed(&finished);
    let data = finished.dataset();
    data.assert_complete();
    for counter in [
        "oncpu_ns",
        "read_chars",
        "write_chars",
        "write_syscalls",
        "minor_faults",
    ] {
        let (from, to, value): (i64, i64, u64) = data.row(&format!(
            "SELECT epoch_ns(region_start_ts) + start_offset_ns, epoch_ns(region_end_ts) + end_offset_ns, {counter} \
             FROM region_usage JOIN region USING (host, region_id) WHERE region_usage.name = 'work'"
        ));
        let before = |ts: i64| {
            let last = samples.iter().rfind(|sample| sample.end < ts);
            last.expect("one before").values[counter]
        };
        let after = |ts: i64| {
            let first = samples.iter().find(|sample| sample.begin > ts + READING);
            first.or(samples.last()).expect("one after").values[counter]
        };
        let least = before(to).saturating_sub(after(from));
        let most = after(to) - before(from);
        assert!(
            (least..=most).contains(&value),
            "{counter}: {value} is not from {least} to {most}"
        );
        let certain = match counter {
            "oncpu_ns" => 300_000_000,
            "write_chars" => 1_000_000,
            "write_syscalls" => 100,
            "minor_faults" => 2000,
            _ => 0,
        };
        assert!(value >= certain, "{counter}: {value}");
        // The bounds are close enough for a meaningful comparison.
        assert!(
            most <= least * 3 / 2 || counter == "read_chars",
            "{counter}: from {least} to {most}"
        );
    }
}

#[test]
fn region_usage_is_the_sum_of_the_rows_between_its_boundaries() {
    let finished = script(
        &["-i", "100ms"],
        r#"
def work(): burn(0.03); open("/proc/self/stat").read(); a, b = socket.socketpair(); a.send(bytes(1000)); b.recv(1000)
reader, writer = os.pipe()
mark("start", "all")
for n in range(8):
    mark("start", "odd" if n % 2 else "even", id=n)
    if n: mark("end", id=n - 1)
    work()
    # No process ends while others are read: the rows of one that a reading just misses come later.
    if os.fork() == 0: os.close(writer); work(); os.read(reader, 1); os._exit(0)
mark("end", "all")
time.sleep(0.05)
"#,
    );
    let data = finished.dataset();
    data.assert_complete();
    let columns = [
        ("usage", "user_ns", "user_ns"),
        ("usage", "minor_faults", "minor_faults"),
        ("usage", "read_chars", "read_chars"),
        ("sched", "oncpu_ns", "oncpu_ns"),
        ("sched", "wakeups", "wakeups"),
    ];
    for (table, column, ours) in columns {
        // All processes are the command or its descendants.
        let rows: Vec<(String, Option<u64>, u64)> = data.rows(&format!(
            "SELECT u.name, u.{ours}, (SELECT coalesce(sum({column}), 0)::BIGINT FROM {table} t WHERE t.tid IS NULL \
             AND t.ts > u.ts - to_microseconds((u.interval_ns // 1000)::BIGINT) + INTERVAL 10 microseconds \
             AND t.ts <= u.ts) FROM region_usage u ORDER BY region_id"
        ));
        assert_eq!(rows.len(), 9, "{rows:?}");
        let known = rows.iter().filter(|(_, value, _)| value.is_some());
        assert!(known.count() >= 3, "{rows:?}");
        for (name, value, sum) in rows {
            // Null if a busy machine had only one reading for start and end.
            assert!(
                value.is_none_or(|value| value == sum),
                "{name}: {column} {value:?}, not {sum}"
            );
        }
    }
    let unix: u64 = data.value("SELECT unix_tx_bytes FROM region_usage WHERE name = 'all'");
    assert!(unix >= 8 * 1000, "{unix}");
}

#[test]
fn ended_descendants_count_in_a_region() {
    let finished = script(
        &[],
        r#"
reader, writer = os.pipe()
def report(): os.write(writer, b"%d\n" % time.process_time_ns())
if os.fork() == 0:
    burn(0.3); report(); os._exit(0)
before = time.process_time_ns()
mark("start", "tree"); time.sleep(0.02); within = time.process_time_ns()
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.01); burn(0.1); report(); os._exit(0)
        os._exit(0)          # the grandchild has no parent
    os.wait()
os.close(writer)
reports = [int(line) for line in open(reader)]   # to its end: nobody else has it any more
least = time.process_time_ns() - within
mark("end", "tree")
most = time.process_time_ns() - before
pid = os.fork()
if pid == 0:
    mark("start", "child", parent="x"); time.sleep(0.02); burn(0.1); mark("end", "child"); time.sleep(0.05); os._exit(0)
os.waitpid(pid, 0)     # the run ends with the command
print(json.dumps([least, most, reports]))
"#,
    );
    let data = finished.dataset();
    let (least, most, reports): (u64, u64, Vec<u64>) = printed(&finished);
    assert_eq!(reports.len(), 4, "{reports:?}");
    let (tree, child): (u64, Option<u64>) = data.row(
        "SELECT (SELECT oncpu_ns FROM region_usage WHERE name = 'tree'), (SELECT oncpu_ns FROM region_usage WHERE name = 'child')",
    );
    let offset: i64 = data.value("SELECT start_offset_ns FROM region_usage WHERE name = 'child'");
    // The three grandchildren count completely; the child, which is older, from the start of the
    // region. Seven processes have used CPU time after their own readings.
    let (known, child_before) = (reports.iter().sum::<u64>(), reports.iter().max());
    let least = least + known - child_before.expect("one");
    let most = most + known + 7 * 10_000_000;
    assert!(
        (least..=most).contains(&tree),
        "{tree} is not in {least}..={most}"
    );
    // Null on a machine that was too busy for a reading while the region was open.
    if let Some(child) = child {
        let least = 100_000_000 - offset.max(0);
        assert!(child.cast_signed() > least, "{child}, at least {least}");
        assert!(
            child < 150_000_000,
            "{child}: the others' time is not the child's"
        );
    }
}

/// Name, op, id, parent, status, start, end, length.
type Row = (
    String,
    String,
    Option<String>,
    Option<u64>,
    Option<String>,
    i64,
    i64,
    u64,
);

const STRUCTURE: &str = r#"
sent = {}
sent["outer"] = [mark("start", "outer", id="o", group="g", kind="k", attrs={"n": 1}, tags=["a"], used=["in"], extra=7)]
sent["left"] = [mark("start", "left", id=2, parent="o")]
sent["right"] = [mark("start", "right", id="3", parent="o")]
sent["event"] = [mark("event", "event", parent="o", attrs={"what": "é\n"})]
time.sleep(0.02)
sent["left"].append(mark("end", id=2, status="error"))
sent["phase"] = [mark("phase", "phase", seconds=0.25)]
mark("gauge", "peak", value=-1.5, unit="bytes", parent="o", tags=["t"])
sent["right"].append(mark("end", "right"))
sent["outer"].append(mark("end", attrs={"n": 2, "m": 3}, tags=["b"], generated="out"))
pid = os.fork()
if pid == 0:
    mark("start", "killed", parent="o")
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
mark("start", "replaced")
print(json.dumps(sent)); sys.stdout.flush()
os.execv("/bin/sleep", ["sleep", "0.1"])
"#;

#[test]
fn nesting_and_times() {
    let finished = script(&[], STRUCTURE);
    let sent: std::collections::BTreeMap<String, Vec<[i64; 2]>> = printed(&finished);
    let data = finished.dataset();
    data.assert_complete();
    let rows: Vec<Row> = data.rows(
        "SELECT name, op, user_id, parent_region_id, status, epoch_ns(region_start_ts), epoch_ns(region_end_ts), interval_ns \
         FROM region ORDER BY region_id",
    );
    let shape: Vec<_> = rows
        .iter()
        .map(|(name, op, id, parent, status, ..)| {
            (&**name, &**op, id.as_deref(), *parent, status.as_deref())
        })
        .collect();
    assert_eq!(
        shape,
        [
            ("outer", "region", Some("o"), None, Some("finished")),
            ("left", "region", Some("2"), Some(1), Some("error")),
            ("right", "region", Some("3"), Some(1), Some("finished")),
            ("event", "event", None, Some(1), None),
            ("phase", "phase", None, None, Some("finished")),
            ("killed", "region", None, None, Some("unfinished")),
            ("replaced", "region", None, None, Some("unfinished")),
        ]
    );
    // Times of the views are in microseconds.
    let within = |ts: i64, [before, after]: [i64; 2]| ts + 2000 > before && ts < after + 2000;
    for (name, _, _, _, _, start, end, length) in &rows {
        assert!(
            (end - start - i64::try_from(*length).unwrap()).abs() < 2000,
            "{name}"
        );
        match sent.get(name).map(|sent| &sent[..]) {
            Some([began, ended]) => {
                assert!(within(*start, *began), "{name} {start} {began:?}");
                assert!(within(*end, *ended), "{name} {end} {ended:?}");
            }
            Some([at]) => assert!(within(*end, *at), "{name} {end} {at:?}"),
            _ => {}
        }
    }
    assert_eq!(rows[4].7, 250_000_000);
    // The regions of a killed process end with it.
    let ends: Vec<(String, i64)> = data.rows(
        "SELECT name, epoch_ns(r.region_end_ts) - epoch_ns(p.end_ts) FROM region r JOIN process p \
         USING (host, pid, start_ts) WHERE r.status = 'unfinished' ORDER BY region_id",
    );
    assert_eq!(ends, [("killed".to_owned(), 0), ("replaced".to_owned(), 0)]);
    let printed: (String, String, String, String, String, String) = data.row(
        "SELECT attributes, tags, used, generated, kind, \"group\" FROM region WHERE name = 'outer'",
    );
    let expected = [
        r#"{"extra":7,"m":3,"n":2}"#,
        r#"["a","b"]"#,
        r#"["in"]"#,
        "\"out\"",
        "k",
        "g",
    ];
    let printed = [
        printed.0, printed.1, printed.2, printed.3, printed.4, printed.5,
    ];
    assert_eq!(printed, expected);
    let gauge: (String, f64, String, u64, String) =
        data.row("SELECT name, value, unit, parent_region_id, tags FROM region_gauge");
    assert_eq!(
        gauge,
        ("peak".into(), -1.5, "bytes".into(), 1, r#"["t"]"#.into())
    );
    // All regions with a length have usage.
    let with_usage: Vec<(String,)> = data.rows("SELECT name FROM region_usage ORDER BY region_id");
    let names: Vec<_> = with_usage.iter().map(|(name,)| &**name).collect();
    assert_eq!(names, ["outer", "left", "right", "killed", "replaced"]);
}

#[test]
fn open_region_ends_with_the_run() {
    // Blocks until the profiler has ended.
    let sleeper = r#"
parent = os.getppid()
signal.signal(signal.SIGINT, lambda *_: os.write(2, b"not yet\n"))
mark("start", "open", id="x"); mark("event", "ready")
while os.getppid() == parent: time.sleep(0.02)
"#;
    let start = || {
        let running = Profiler::new()
            .args(["-i", "50ms"])
            .command(&[
                &setting("PROFILER_TEST_PYTHON"),
                "-c",
                &format!("{MARKS}{sleeper}"),
            ])
            .start();
        let data = Dataset::new(running.run_dir());
        data.wait_for_row("region", "the region is stored", |row| {
            row.text("name") == Some("open")
        });
        running
    };
    let mut running = start();
    running.signal(rustix::process::Signal::INT);
    // This signal was forwarded to the command.
    running.wait_for("not yet");
    running.signal(rustix::process::Signal::INT);
    let finished = running.finish();
    let row: (String, bool) = finished
        .any_dataset()
        .row("SELECT status, region_end_ts IS NOT NULL FROM region WHERE name = 'open'");
    assert_eq!(row, ("run_ended".to_owned(), true));

    let running = start();
    let finished = running.kill();
    let data = finished.any_dataset();
    let socket = data.manifest()["socket"]
        .as_str()
        .expect("a path")
        .to_owned();
    assert!(Path::new(&socket).exists());
    crate::crash::recover(data.path());
    let row: (String, Option<String>, bool) =
        data.row("SELECT user_id, status, region_end_ts IS NULL FROM region WHERE name = 'open'");
    assert_eq!(row, ("x".to_owned(), None, true));
    // A socket without a reader is removed by the next profiler when it is old enough.
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    let times = rustix::fs::Timestamps {
        last_access: timespec(old),
        last_modification: timespec(old),
    };
    rustix::fs::utimensat(
        rustix::fs::CWD,
        &socket,
        &times,
        rustix::fs::AtFlags::empty(),
    )
    .expect("touched");
    script(&[], "pass").dataset();
    assert!(!Path::new(&socket).exists());
}

fn timespec(time: std::time::SystemTime) -> rustix::fs::Timespec {
    let since = time
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    rustix::fs::Timespec {
        tv_sec: since.as_secs().cast_signed(),
        tv_nsec: 0,
    }
}

/// The proportional memory is read beside the samples; here most answers come at a boundary.
#[test]
fn memory_that_is_read_at_a_boundary_is_in_the_timeline() {
    let text = "kept = []
for step in range(32):
    if step % 8 == 0: kept.append(b'x' * (30_000_000 << step // 8))
    mark('start', f'step {step}'); time.sleep(0.02); mark('end', f'step {step}')
import os, sys
while not os.path.exists(sys.argv[1]): time.sleep(0.01)";
    let directory = TempDir::new().expect("a directory");
    let enough = directory.path().join("enough");
    let profiler = Profiler::new()
        .args(["-i", "400ms"])
        .command(&[
            &setting("PROFILER_TEST_PYTHON"),
            "-c",
            &format!("{MARKS}{text}"),
            enough.to_str().expect("UTF-8"),
        ])
        .start();
    // 450 MB; a reading follows each growth by a quarter.
    let most = 450_000_000 / 5 * 4;
    let data = Dataset::new(profiler.run_dir());
    data.wait_for_row("usage", "all memory is read", |row| {
        row.u64("pss") >= Some(most)
    });
    std::fs::write(enough, "").expect("written");
    let finished = profiler.finish();
    let data = finished.dataset();
    let (of_process, of_target): (u64, u64) =
        data.row("SELECT (SELECT max(pss) FROM usage), (SELECT max(target_pss_sum) FROM timeline)");
    assert!(of_target >= most, "{of_target}");
    assert_eq!(of_process, of_target);
}
