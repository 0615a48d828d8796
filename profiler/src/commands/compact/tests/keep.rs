//! Resolutions of older rows, their removal, and files that are written again.

use std::ops::Range;

use arrow::{
    array::Array as _,
    datatypes::{Float64Type, UInt32Type},
};

use super::*;

const DAY_US: i64 = 86_400_000_000;
const SECOND_US: i64 = 1_000_000;

/// A row of `tasks`.
#[derive(Clone, Debug, PartialEq)]
struct Task {
    run: String,
    host: String,
    pid: u32,
    name: String,
    ts: i64,
    interval_ns: u64,
    count: u64,
    buckets: Option<Vec<u64>>,
    level: Option<u64>,
    extremes: Option<(u64, u64)>,
    share: f64,
    state: String,
}

/// All rows of `tasks` in a dataset, by the reader of `summary`.
fn tasks(out: &Path) -> Vec<Task> {
    let mut all = Vec::new();
    for run in ["a", "b"].map(|run| out.join(run)) {
        if !run.exists() {
            continue;
        }
        let stored = StoredRun::open(&run, Trust::Own).unwrap();
        let columns = [
            "run",
            "ts",
            "interval_ns",
            "pid",
            "name",
            "count",
            "buckets",
            "level",
            "level_min",
            "level_max",
            "share",
            "state",
        ];
        for host in stored.hosts.iter() {
            let read = stored.read("tasks", host, &columns, |batch| {
                let number = |column: &str, row: usize| {
                    let column = batch.column_by_name(column)?;
                    let column = column.as_primitive::<UInt64Type>();
                    column.is_valid(row).then(|| column.value(row))
                };
                let text = |column: &str, row| {
                    let texts = arrow::compute::cast(&batch[column], &DataType::Utf8).unwrap();
                    texts.as_string::<i32>().value(row).to_owned()
                };
                for row in 0..batch.num_rows() {
                    let buckets = batch["buckets"].as_list::<i32>();
                    let buckets = buckets.is_valid(row).then(|| buckets.value(row));
                    all.push(Task {
                        run: text("run", row),
                        host: host.name.clone(),
                        pid: batch["pid"].as_primitive::<UInt32Type>().value(row),
                        name: text("name", row),
                        ts: batch["ts"]
                            .as_primitive::<TimestampMicrosecondType>()
                            .value(row),
                        interval_ns: number("interval_ns", row).unwrap(),
                        count: number("count", row).unwrap(),
                        buckets: buckets
                            .map(|of| of.as_primitive::<UInt64Type>().values().to_vec()),
                        level: number("level", row),
                        extremes: number("level_min", row).zip(number("level_max", row)),
                        share: batch["share"].as_primitive::<Float64Type>().value(row),
                        state: text("state", row),
                    });
                }
            });
            assert_eq!(read, Ok(()));
        }
    }
    all.sort_by_key(|task| {
        let Task {
            run,
            host,
            pid,
            name,
            ts,
            ..
        } = task.clone();
        (run, host, pid, name, ts)
    });
    all
}

/// What rows become with periods of this length, computed one series and period at a time.
fn expected(all: &[Task], period_us: i64) -> Vec<Task> {
    let mut periods: BTreeMap<_, Vec<Task>> = BTreeMap::new();
    for row in all {
        let Task {
            run,
            host,
            pid,
            name,
            ..
        } = row.clone();
        let end = (row.ts + period_us - 1).div_euclid(period_us) * period_us;
        periods
            .entry((run, host, pid, name, end))
            .or_default()
            .push(row.clone());
    }
    let merged = periods.into_iter().map(|((.., end), rows)| {
        let last = rows.last().unwrap();
        let levels: Vec<u64> = rows.iter().filter_map(|row| row.level).collect();
        let extremes = levels
            .iter()
            .min()
            .copied()
            .zip(levels.iter().max().copied());
        // All rows cover a second, but not every series has one in each.
        let of_run = all
            .iter()
            .filter(|row| (&row.run, &row.host) == (&last.run, &last.host));
        let times = of_run.map(|row| row.ts);
        let first = times.clone().min().unwrap() - SECOND_US;
        let ts = times.max().unwrap().min(end);
        let covered = ts - first.max(end - period_us);
        let seconds = (covered / SECOND_US).unsigned_abs();
        let mean = (levels.iter().sum::<u64>() + seconds / 2) / seconds;
        let lists: Vec<_> = rows.iter().filter_map(|row| row.buckets.as_ref()).collect();
        Task {
            ts,
            interval_ns: covered.unsigned_abs() * 1000,
            count: rows.iter().map(|row| row.count).sum(),
            buckets: (!lists.is_empty()).then(|| {
                (0..2)
                    .map(|bucket| lists.iter().map(|list| list[bucket]).sum())
                    .collect()
            }),
            level: extremes.map(|_| mean),
            extremes,
            share: rows
                .iter()
                .map(|row| row.share * row.interval_ns as f64)
                .sum::<f64>()
                / rows.iter().map(|row| row.interval_ns as f64).sum::<f64>(),
            ..last.clone()
        }
    });
    merged.collect()
}

fn assert_same(found: &[Task], expected: &[Task]) {
    let rounded = |tasks: &[Task]| -> Vec<Task> {
        let share = |task: &Task| (task.share * 1e9).round();
        let tasks = tasks.iter();
        tasks
            .map(|task| Task {
                share: share(task),
                ..task.clone()
            })
            .collect()
    };
    assert_eq!(rounded(found), rounded(expected));
}

/// One run of two hosts and another one, of more than one period and series each.
fn longer() -> TempDir {
    let out = TempDir::new().unwrap();
    profile(&out.path().join("a"), "node1", 3..25);
    profile(&out.path().join("a"), "node2", 4..9);
    profile(&out.path().join("b"), "node1", 20..33);
    out
}

/// Keeps all rows, in one file a day.
fn large() -> Options {
    Options {
        limits: Limits {
            file_bytes: 1 << 20,
            ..SMALL
        },
        ..options()
    }
}

fn keeping(keep: &str, days: i64) -> Options {
    Options {
        keep: keep.parse().unwrap(),
        now_us: START.div_euclid(DAY_US) * DAY_US + days * DAY_US,
        ..options()
    }
}

fn reduce(out: &Path, options: &Options) -> CompactReport {
    let report = compact(out, options, &mut |_| Ok(())).unwrap();
    assert_eq!(report.failed, []);
    report
}

#[test]
fn older_rows_become_one_for_each_series_and_period() {
    let out = longer();
    let raw = tasks(out.path());
    // The rows are of the day after `START`, which is over for 7 days at the end of the ninth.
    reduce(out.path(), &keeping("raw=7d,5s=90d,10s=1y", 8));
    assert_eq!(tasks(out.path()), raw);
    let report = reduce(out.path(), &keeping("raw=7d,5s=90d,10s=1y", 9));
    let of_tasks = report
        .tables
        .iter()
        .find(|table| table.name == "tasks")
        .unwrap();
    assert_eq!(of_tasks.rows, raw.len() as u64);
    let five = expected(&raw, 5 * SECOND_US);
    assert!(five.len() < raw.len() && of_tasks.new_rows == five.len() as u64);
    assert_same(&tasks(out.path()), &five);
    assert_eq!(
        reduce(out.path(), &keeping("raw=7d,5s=90d,10s=1y", 9)).tables,
        []
    );
    // Periods of periods are those of the original rows.
    reduce(out.path(), &keeping("raw=7d,5s=90d,10s=1y", 92));
    let mut ten = expected(&raw, 10 * SECOND_US);
    // Except that means are those of means.
    let of_means = expected(&five, 10 * SECOND_US);
    for (ten, of_means) in ten.iter_mut().zip(of_means) {
        ten.share = of_means.share;
    }
    let found = tasks(out.path());
    assert_eq!(found.len(), ten.len());
    for (found, ten) in found.iter().zip(&ten) {
        // The means of the first level are rounded.
        let level = found.level.zip(ten.level).map(|(a, b)| a.abs_diff(b));
        assert!(level.is_none_or(|error| error <= 1), "{found:?} {ten:?}");
        let same = Task {
            level: ten.level,
            ..found.clone()
        };
        assert_same(&[same], std::slice::from_ref(ten));
    }
    for run in ["a", "b"] {
        let report = verify(&out.path().join(run), Trust::Own).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(
            report.notes.iter().any(|note| note.contains("older days")),
            "{:?}",
            report.notes
        );
    }
}

/// Finer rows were asked for when coarser ones exist already.
#[test]
fn reduced_rows_keep_their_extremes() {
    let out = longer();
    reduce(out.path(), &keeping("raw=1d,10s=1y", 9));
    let reduced = tasks(out.path());
    fs::remove_dir_all(out.path().join("a")).unwrap();
    reduce(out.path(), &large());
    let b: Vec<_> = reduced.into_iter().filter(|task| task.run == "b").collect();
    assert!(b.iter().any(|task| task.extremes.is_some()));
    assert_eq!(tasks(out.path()), b);
}

#[test]
fn rows_that_come_late_are_reduced_too() {
    let out = longer();
    let raw = tasks(out.path());
    fs::rename(out.path().join("b"), out.path().join(".b")).unwrap();
    let options = keeping("raw=1d,10s=1y", 9);
    reduce(out.path(), &options);
    fs::rename(out.path().join(".b"), out.path().join("b")).unwrap();
    reduce(out.path(), &options);
    assert_same(&tasks(out.path()), &expected(&raw, 10 * SECOND_US));
}

/// Stops a reduction after each of its steps, as a kill does, and completes it.
#[test]
fn interrupted_reduction_changes_no_sum() {
    let original = longer();
    reduce(original.path(), &large());
    let sums = |out: &Path| {
        let mut sums: BTreeMap<_, u64> = BTreeMap::new();
        for Task {
            run,
            host,
            pid,
            count,
            ..
        } in tasks(out)
        {
            *sums.entry((run, host, pid)).or_default() += count;
        }
        sums
    };
    let before = sums(original.path());
    let options = Options {
        limits: large().limits,
        ..keeping("raw=7d,10s=90d", 9)
    };
    let work = TempDir::new().unwrap();
    for steps in 0.. {
        let out = work.path().join(steps.to_string());
        copy(original.path(), &out);
        let mut left = steps;
        let killed = compact(&out, &options, &mut |step| {
            if left == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::Interrupted,
                    format!("{step:?}"),
                ));
            }
            left -= 1;
            Ok(())
        });
        assert_eq!(sums(&out), before, "after step {steps}: {killed:?}");
        reduce(&out, &options);
        assert_eq!(sums(&out), before, "after step {steps} and completion");
        let stored = files(&out.join("compacted"));
        let compacted =
            |run: &str| fs::read_to_string(out.join(run).join("compacted.json")).unwrap();
        let known = compacted("a") + &compacted("b");
        for file in stored.iter().filter(|file| file.extension().is_some()) {
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(known.contains(name), "{name} is of no run");
        }
        if killed.is_ok() {
            assert!(steps > 15, "{steps} steps");
            break;
        }
    }
}

#[test]
fn rows_beyond_the_last_level_are_removed_with_their_runs() {
    let out = TempDir::new().unwrap();
    let days = |first: i64| -> Range<i64> { first * 86_400 + 10..first * 86_400 + 13 };
    profile(&out.path().join("a"), "node1", days(0));
    profile(&out.path().join("b"), "node1", days(0));
    profile(&out.path().join("b"), "node1", days(5));
    run_all(out.path());
    let raw = tasks(out.path());
    let report = reduce(out.path(), &keeping("raw=3d", 6));
    assert_eq!(report.removed, ["a"]);
    assert!(!out.path().join("a").exists());
    let late: Vec<_> = raw
        .iter()
        .filter(|task| task.ts > START + 3 * DAY_US)
        .cloned()
        .collect();
    assert_eq!(late.len(), 9);
    assert_eq!(tasks(out.path()), late);
    assert_eq!(
        verify(&out.path().join("b"), Trust::Own).unwrap().problems,
        Vec::<String>::new()
    );
    // Rows that are too old when they come are not written at all.
    profile(&out.path().join("c"), "node1", days(0));
    let report = reduce(out.path(), &keeping("raw=3d", 6));
    assert_eq!((report.tables[0].rows, report.tables[0].new_rows), (6, 0));
    assert_eq!(report.removed, ["c"]);
}

#[test]
fn oldest_days_are_removed_until_the_size_is_met() {
    let out = TempDir::new().unwrap();
    for day in [0, 1, 2] {
        profile(
            &out.path().join("a"),
            "node1",
            day * 86_400 + 10..day * 86_400 + 13,
        );
    }
    run_all(out.path());
    let raw = tasks(out.path());
    let bytes = |day: &str| -> u64 {
        let files = files(&out.path().join("compacted")).into_iter();
        let of_day = files.filter(|file| file.to_str().unwrap().contains(day));
        of_day.map(|file| file.metadata().unwrap().len()).sum()
    };
    let max_bytes = Some(bytes("day=2023-11-17") + bytes("day=2023-11-16") / 2);
    reduce(
        out.path(),
        &Options {
            max_bytes,
            ..options()
        },
    );
    let late = raw.into_iter().filter(|task| task.ts > START + 2 * DAY_US);
    let late: Vec<_> = late.collect();
    assert_eq!(late.len(), 9);
    assert_eq!(tasks(out.path()), late);
}

#[test]
fn small_files_of_a_day_are_merged() {
    let out = dataset();
    reduce(out.path(), &large());
    profile(&out.path().join("b"), "node1", 10..13);
    let before = all_rows(out.path());
    let count = || files(&out.path().join("compacted/tasks")).len();
    assert_eq!(count(), 2);
    reduce(out.path(), &large());
    assert_eq!(all_rows(out.path()), before);
    assert_eq!(count(), 2, "one file a day");
    for run in ["a", "b"] {
        assert_eq!(
            verify(&out.path().join(run), Trust::Own).unwrap().problems,
            Vec::<String>::new()
        );
    }
    assert_eq!(reduce(out.path(), &large()).tables, []);
}

#[test]
fn compacted_files_are_verified_as_a_whole() {
    let out = dataset();
    run_all(out.path());
    let compacted = out.path().join("compacted");
    let verified = || verify(&compacted, Trust::Own).unwrap();
    let well = verified();
    assert_eq!((&well.problems[..], &well.notes[..]), (&[][..], &[][..]));
    let tables: Vec<_> = well
        .tables
        .iter()
        .map(|(name, of)| (&**name, of.rows, of.hosts))
        .collect();
    assert_eq!(tables, [("node", 14, 2), ("tasks", 21, 2)]);
    let problem = |what: &str| {
        let problems = verified().problems;
        assert!(
            problems.iter().any(|problem| problem.contains(what)),
            "{what}: {problems:?}"
        );
    };
    // A damaged file, a missing one, a stray one, an interruption.
    let files = files(&compacted.join("tasks"));
    let good = fs::read(&files[0]).unwrap();
    fs::write(&files[0], &good[..good.len() / 2]).unwrap();
    problem("part-00000.parquet: ");
    fs::remove_file(&files[0]).unwrap();
    problem("missing, with rows of");
    problem("instead of");
    fs::write(&files[0], good).unwrap();
    assert!(verified().ok);
    fs::write(
        compacted.join("commit.json"),
        r#"{"table":"tasks","files":[],"removed":[],"runs":{}}"#,
    )
    .unwrap();
    problem("interrupted");
    fs::remove_file(compacted.join("commit.json")).unwrap();
    fs::remove_dir_all(out.path().join("a")).unwrap();
    assert!(
        verified()
            .notes
            .iter()
            .any(|note| note.contains("tasks: 15 rows of runs"))
    );
}

#[test]
fn rows_of_removed_runs_are_removed() {
    let out = dataset();
    run_all(out.path());
    let kept = rows(&out.path().join("b"));
    fs::remove_dir_all(out.path().join("a")).unwrap();
    reduce(out.path(), &options());
    assert_eq!(rows(&out.path().join("b")), kept);
    for file in files(&out.path().join("compacted")) {
        if file.extension().is_some_and(|of| of == "parquet") {
            let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(file).unwrap());
            for batch in reader.unwrap().build().unwrap().map(Result::unwrap) {
                let runs = batch["run"].as_string::<i32>();
                assert!(runs.iter().all(|run| run == Some("b")));
            }
        }
    }
    // Without knowing what a run has, its rows could be removed.
    fs::write(out.path().join("b/compacted.json"), "{").unwrap();
    let report = reduce(out.path(), &options());
    assert_eq!((report.tables.len(), &*report.skipped[0].name), (0, "b"));
}

/// `NAME_min` and `NAME_max` are columns of reduced rows only.
#[test]
fn no_column_is_taken_for_an_extreme() {
    for table in crate::sources::dataset_schema().tables() {
        for column in table.columns() {
            for ending in ["_min", "_max"] {
                let gauge = column.name.strip_suffix(ending);
                let taken = table.columns().any(|of| Some(of.name) == gauge);
                assert!(!taken, "{}.{}", table.name, column.name);
            }
        }
    }
}
