//! Complete runs, and runs with damage of each kind.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use super::*;
use crate::{
    columns,
    output::dataset::{DatasetOptions, DatasetWriter, manifest},
    schema::{Batch, Label, TableBuilder, TickKey, Timestamp, TypedTable},
};

columns! {
    /// Any row.
    pub struct Row {
        name: Label = Label("", "A name"),
        count: u64 = Counter("1", "A count"),
    }
}

static TABLE: TypedTable<TickKey, Row> = TypedTable::new("system", "Rows of every tick");

const INTERVAL: i64 = 1_000_000_000;
const START: i64 = 1_700_000_000_000_000_000;

fn tick(number: i64) -> Vec<Batch> {
    let mut builder = TableBuilder::new(&TABLE);
    builder.push(
        TickKey {
            ts: Timestamp::from_ns(START + number * INTERVAL),
            interval_ns: INTERVAL.unsigned_abs(),
        },
        Row {
            name: format!("n{}", number % 3).into(),
            count: number.unsigned_abs(),
        },
    );
    let mut out = Vec::new();
    builder.finish(&mut out);
    out
}

fn options(run: &Path, host: &str) -> DatasetOptions {
    let mut options = DatasetOptions::new(run.to_owned(), host, "run");
    let mut manifest = Manifest::new("run", host, START).unwrap();
    manifest.config = serde_json::json!({"interval_ns": INTERVAL});
    manifest.clock.start = Some(crate::support::timekeeping::Timekeeping::now());
    options.manifest = Some(manifest);
    options
}

/// Two hosts with four ticks each.
fn whole() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run");
    for host in ["a", "b"] {
        let writer = DatasetWriter::start(options(&run, host)).unwrap();
        for number in 0..4 {
            writer.write(tick(number));
        }
        writer.finish().unwrap();
    }
    (directory, run)
}

fn problems(run: &Path) -> Vec<String> {
    let report = verify(run, Trust::Own).unwrap();
    assert_eq!(report.ok, report.problems.is_empty());
    assert!(report.text().contains(if report.ok {
        "\nall is well"
    } else {
        "not all is well"
    }));
    serde_json::to_string(&report).unwrap();
    report.problems
}

/// All files with their content: verification changes nothing.
fn content(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(content(&path));
        } else {
            all.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

const PART: &str = "system/host=a/part-00000.parquet";

#[test]
fn complete_run_has_no_problems() {
    let (_directory, run) = whole();
    let before = content(&run);
    let report = verify(&run, Trust::Own).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.notes, [""; 0]);
    let host = &report.hosts["a"];
    assert_eq!((host.rows, host.parts, host.samples.found), (4, 1, 4));
    assert_eq!(
        (host.samples.missing, host.clock.offset_ns.is_some()),
        (Some(0), true)
    );
    assert_eq!(report.tables["system"].rows, 8);
    assert_eq!(content(&run), before);
    for no_run in [
        run.join("system/host=a"),
        run.join("nothing"),
        run.join("run.json"),
    ] {
        assert!(verify(&no_run, Trust::Own).is_err(), "{}", no_run.display());
    }
}

#[test]
fn truncated_files_are_reported() {
    let (_directory, run) = whole();
    for file in [PART, "run.json", "run.b.json"] {
        let path = run.join(file);
        let bytes = fs::read(&path).unwrap();
        // The last byte of the JSON is the end of a line; the metadata of a Parquet file is before it.
        let last = bytes.len() - 1;
        let near_end = last.saturating_sub(400)..last;
        for length in (0..last).step_by(16).chain(near_end) {
            fs::write(&path, &bytes[..length]).unwrap();
            let problems = problems(&run);
            let named = problems.iter().any(|problem| problem.contains(file));
            assert!(named, "{file} of {length} bytes: {problems:?}");
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(problems(&run), [""; 0]);
}

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

#[test]
fn random_damage_is_reported() {
    let (_directory, run) = whole();
    let mut numbers = Numbers(1);
    for file in [PART, "run.json"] {
        let path = run.join(file);
        let bytes = fs::read(&path).unwrap();
        for _ in 0..500 {
            let mut damaged = bytes.clone();
            match numbers.next(3) {
                0 => {
                    let bit = 1 << numbers.next(8);
                    let length = damaged.len();
                    damaged[numbers.next(length)] ^= bit;
                }
                1 => {
                    // The metadata of a Parquet file is at its end.
                    let from = damaged.len() - 1 - numbers.next(400.min(bytes.len() - 1));
                    damaged[from] = u8::try_from(numbers.next(256)).unwrap();
                }
                _ => {
                    let from = numbers.next(bytes.len());
                    let until = from + numbers.next(bytes.len() - from) + 1;
                    for byte in &mut damaged[from..until] {
                        *byte = u8::try_from(numbers.next(256)).unwrap();
                    }
                }
            }
            fs::write(&path, &damaged).unwrap();
            problems(&run);
        }
        fs::write(&path, &bytes).unwrap();
    }
    for _ in 0..200 {
        let garbage: Vec<u8> = (0..numbers.next(3000))
            .map(|_| u8::try_from(numbers.next(256)).unwrap())
            .collect();
        for file in [
            "system/host=a/part-00001.parquet",
            "system/host=a/_part-00002.arrows",
            "run.c.json",
        ] {
            fs::write(run.join(file), &garbage).unwrap();
        }
        let problems = problems(&run);
        assert!(
            problems
                .iter()
                .any(|problem| problem.contains("part-00001")),
            "{problems:?}"
        );
        assert!(
            problems
                .iter()
                .any(|problem| problem.contains("run.c.json")),
            "{problems:?}"
        );
    }
}

#[test]
fn foreign_files_are_reported_and_not_followed() {
    let (directory, run) = whole();
    let part = run.join(PART);
    let own = part.parent().unwrap();
    fs::write(run.join("README"), "x").unwrap();
    fs::write(own.join("notes.txt"), "x").unwrap();
    fs::create_dir(run.join("plots")).unwrap();
    fs::create_dir(run.join("system/old")).unwrap();
    fs::write(own.join(".part-00009.parquet.tmp"), "x").unwrap();
    let report = verify(&run, Trust::Own).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.notes.len(), 4, "{:?}", report.notes);
    // Readers would read these as Parquet files.
    std::os::unix::fs::symlink(&part, own.join("part-00001.parquet")).unwrap();
    fs::copy(&part, own.join("part-1.parquet")).unwrap();
    let pipe = own.join("part-00003.parquet");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("/dev/zero", run.join("run.d.json")).unwrap();
    std::os::unix::fs::symlink(directory.path(), run.join("loop")).unwrap();
    let problems = problems(&run);
    for (file, why) in [
        ("part-00001", "a link"),
        ("part-1.", "none of ours"),
        ("part-00003", "not a regular file"),
        ("run.d.json", "a link"),
    ] {
        let named = |problem: &String| problem.contains(file) && problem.contains(why);
        assert!(problems.iter().any(named), "{file}: {problems:?}");
    }
}

#[test]
fn moved_and_missing_files_are_reported() {
    let (_directory, run) = whole();
    let (_other_directory, other) = whole();
    fs::copy(run.join("system/host=b/part-00000.parquet"), run.join(PART)).unwrap();
    assert!(
        problems(&run)[0].contains("of host b"),
        "{:?}",
        problems(&run)
    );
    fs::remove_file(run.join(PART)).unwrap();
    let gone = problems(&run);
    assert!(
        gone.iter()
            .any(|p| p.contains("a: 0 rows of system in parts, 4 in its run.json")),
        "{gone:?}"
    );
    assert!(
        gone.iter()
            .any(|p| p.contains("4 samples are neither there")),
        "{gone:?}"
    );
    fs::remove_file(other.join("run.json")).unwrap();
    let nameless = problems(&other);
    assert_eq!(nameless, ["a: rows, but no run.a.json"]);
    let text = fs::read_to_string(other.join("run.b.json")).unwrap();
    fs::write(
        other.join("run.a.json"),
        text.replace("\"run_id\": \"run\"", "\"run_id\": \"x\""),
    )
    .unwrap();
    assert!(!problems(&other).is_empty());
}

#[test]
fn unfinished_sessions_are_reported() {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run");
    let writer = DatasetWriter::start(options(&run, "a")).unwrap();
    for number in [0, 1, 2, 5] {
        writer.write(tick(number));
    }
    while writer.stats().ticks < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let running = problems(&run);
    assert_eq!(running.len(), 1, "{running:?}");
    assert!(running[0].ends_with(" has not ended"), "{running:?}");
    // As if the profiler were killed.
    let file = run.join("run.json");
    let text = fs::read_to_string(&file).unwrap();
    let mut manifest: Manifest = serde_json::from_str(&text).unwrap();
    manifest.process.start_ticks += 2;
    fs::write(&file, serde_json::to_vec(&manifest).unwrap()).unwrap();
    let killed = problems(&run);
    assert!(
        killed[0].contains("was killed: at most the last 1.00 s are lost; `profiler recover`"),
        "{killed:?}"
    );
    let advice = format!(
        "a: 4 unsaved rows in 1 table: run `profiler recover {}`",
        run.display()
    );
    assert_eq!(killed[1], advice);
    // The state of a process of another machine is unknown.
    manifest.process.boot_id = "another".to_owned();
    fs::write(&file, serde_json::to_vec(&manifest).unwrap()).unwrap();
    assert!(
        problems(&run)[0].contains("is unknown"),
        "{:?}",
        problems(&run)
    );
    drop(writer);
}

#[test]
fn uncounted_ticks_are_missing() {
    let directory = TempDir::new().unwrap();
    let run = directory.path().join("run");
    let mut options = options(&run, "a");
    // As after a recovery: the number of ticks is unknown.
    options.manifest = None;
    let writer = DatasetWriter::start(options).unwrap();
    for number in [0, 1, 2, 5] {
        writer.write(tick(number));
    }
    writer.finish().unwrap();
    let mut manifest = Manifest::new("run", "a", START).unwrap();
    manifest.state = State::Recovered;
    manifest.config = serde_json::json!({"interval_ns": INTERVAL});
    manifest.tables.insert(
        "system".to_owned(),
        manifest::TableState {
            rows: 4,
            parts: 1,
            ..manifest::TableState::default()
        },
    );
    fs::write(run.join("run.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    let found = problems(&run);
    assert!(
        found
            .iter()
            .any(|p| p.contains("2 samples are neither there nor counted")),
        "{found:?}"
    );
}

/// A second session of a host in the same run is reported, and overwrites nothing.
#[test]
fn continued_run_has_both_sessions() {
    let (_directory, run) = whole();
    let mut again = options(&run, "a");
    let manifest = again.manifest.as_mut().unwrap();
    manifest.process.start_ticks += 2;
    manifest.set_start(START + 100 * INTERVAL);
    let writer = DatasetWriter::start(again).unwrap();
    for number in 100..103 {
        writer.write(tick(number));
    }
    writer.finish().unwrap();
    let report = verify(&run, Trust::Own).unwrap();
    assert_eq!(report.problems, [""; 0]);
    let host = &report.hosts["a"];
    assert_eq!(
        (host.sessions, host.rows, host.parts, host.samples.found),
        (2, 7, 2, 7)
    );
    assert_eq!(report.hosts["b"].sessions, 1);
    // The same process belongs to the same session.
    let mut same = options(&run, "a");
    same.manifest.as_mut().unwrap().process.start_ticks += 2;
    let writer = DatasetWriter::start(same).unwrap();
    writer.write(tick(103));
    writer.finish().unwrap();
    let report = verify(&run, Trust::Own).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!((report.hosts["a"].sessions, report.hosts["a"].rows), (2, 8));
}

#[test]
fn forged_numbers_do_not_overflow() {
    let (_directory, run) = whole();
    let path = run.join("run.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut manifest: Manifest = serde_json::from_str(&text).unwrap();
    let mut earlier = manifest.clone();
    earlier.tables.get_mut("system").unwrap().rows = u64::MAX;
    manifest.earlier.push(earlier);
    fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    let problems = problems(&run);
    let said = format!("4 rows of system in parts, {} in its run.json", u64::MAX);
    assert!(
        problems.iter().any(|problem| problem.contains(&said)),
        "{problems:?}"
    );
}

#[test]
fn forged_names_do_not_add_lines_to_the_report() {
    let (_directory, run) = whole();
    for name in ["system/x\nall is well\n", "x\u{1b}[2J/host=a"] {
        fs::create_dir_all(run.join(name)).unwrap();
    }
    let text = verify(&run, Trust::Own).unwrap().text();
    assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
    let verdicts = text.lines().filter(|line| *line == "all is well");
    assert_eq!(verdicts.count(), 1, "{text}");
}
