//! From rows to parts.

use super::*;

#[test]
fn rows_come_back_as_they_were() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    for n in 0..20 {
        writer.write(tick(n, 10));
    }
    let summary = writer.finish().unwrap();
    assert!(summary.is_complete());
    assert_eq!(summary.errors, 0, "{summary:?}");
    assert_eq!(summary.tables["ticks"].rows, 200);
    let directory = run.join("ticks/host=node1");
    assert_eq!(names(&directory), ["part-00000.parquet"]);
    assert_eq!(read(&run, &TICKS), expected(0..20, 10));
    assert_eq!(names(&run), ["run", "run.json", "ticks", "views.sql"]);
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Complete);
    assert_eq!(manifest.tables["ticks"].rows, 200);
    assert!(manifest.end_ts.unwrap() > manifest.start_ts);
}

#[test]
fn files_say_where_they_come_from() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    writer.write(tick(0, 10));
    writer.finish().unwrap();
    let file = File::open(run.join("ticks/host=node1/part-00000.parquet")).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let values: BTreeMap<_, _> = reader
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .unwrap()
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_deref().unwrap()))
        .collect();
    assert_eq!(values[metadata::RUN_ID], "run");
    assert_eq!(values[metadata::HOSTNAME], "node1");
    assert_eq!(values[metadata::TABLE], "ticks");
    assert_eq!(
        values[metadata::SCHEMA_VERSION],
        crate::schema::SCHEMA_VERSION.to_string()
    );
    assert_eq!(reader.schema().field(3).metadata()["unit"], "bytes");
    let group = reader.metadata().row_group(0);
    assert_eq!(group.sorting_columns().unwrap()[0].column_idx, 0);
    assert!(group.column(0).statistics().is_some());
    assert!(group.column(0).offset_index_offset().is_some());
    assert!(group.column(0).column_index_offset().is_some());
}

#[test]
fn rows_are_sorted_by_ts() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    for n in [5, 3, 4] {
        writer.write(tick(n, 2000));
    }
    writer.finish().unwrap();
    let rows = read(&run, &TICKS);
    let ts = rows["ts"].as_primitive::<TimestampMicrosecondType>();
    assert_eq!(ts.len(), 6000);
    assert!(ts.values().is_sorted());
}

#[test]
fn each_checkpoint_makes_a_part_and_ends_its_journal() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.checkpoint = Duration::from_millis(1);
    options.sync = true;
    let run = options.run_dir.clone();
    let writer = DatasetWriter::start(options).unwrap();
    for n in 0..3 {
        writer.write(tick(n, 10));
        while writer.stats().parts <= n.cast_unsigned() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let directory = run.join("ticks/host=node1");
    assert_eq!(
        names(&directory),
        [
            "part-00000.parquet",
            "part-00001.parquet",
            "part-00002.parquet"
        ]
    );
    assert!(run.join("views.sql").exists());
    assert_eq!(manifest(&run).state, manifest::State::Running);
    writer.finish().unwrap();
    assert_eq!(read(&run, &TICKS), expected(0..3, 10));
}

#[test]
fn large_tables_get_several_row_groups_and_stay_whole() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    for n in 0..12 {
        writer.write(tick(n, 10_000));
        wait(&writer, n.cast_unsigned());
    }
    let summary = writer.finish().unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    assert_eq!(read(&run, &TICKS), expected(0..12, 10_000));
}

#[test]
fn a_run_that_is_continued_keeps_what_it_has() {
    let out = TempDir::new().unwrap();
    for n in 0..3 {
        let options = options(&out);
        let writer = DatasetWriter::start(options).unwrap();
        writer.write(tick(n, 10));
        writer.finish().unwrap();
    }
    assert_eq!(read(&out.path().join("run"), &TICKS), expected(0..3, 10));
}

#[test]
fn hosts_share_a_run() {
    let out = TempDir::new().unwrap();
    let sinks: Vec<_> = ["node1", "node2"]
        .into_iter()
        .map(|host| {
            let mut options = options(&out);
            options.hostname = host.to_owned();
            options.manifest = Some(Manifest::new("run", host, 5).unwrap());
            DatasetWriter::start(options).unwrap()
        })
        .collect();
    for writer in sinks {
        writer.write(tick(0, 10));
        writer.finish().unwrap();
    }
    let run = out.path().join("run");
    assert_eq!(names(&run.join("ticks")), ["host=node1", "host=node2"]);
    assert_eq!(
        names(&run),
        ["run", "run.json", "run.node2.json", "ticks", "views.sql"]
    );
    for host in ["node1", "node2"] {
        let file = run.join(format!("run/host={host}/part-00000.parquet"));
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap();
        let rows = reader.build().unwrap().next().unwrap().unwrap();
        assert_eq!(rows.num_rows(), 1);
        assert_eq!(rows["rows"].as_primitive::<UInt64Type>().value(0), 10);
    }
}

#[test]
fn only_the_last_row_of_a_lifetime_is_stored() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.checkpoint = Duration::from_millis(20);
    let run = options.run_dir.clone();
    let writer = DatasetWriter::start(options).unwrap();
    writer.write(lives(&[(1, "sh", false), (2, "true", false)]));
    writer.write(lives(&[(2, "true", true), (3, "cat", false)]));
    while writer.stats().parts < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([(2, ("true".to_owned(), true))])
    );
    writer.write(lives(&[(1, "bash", false), (3, "cat", true)]));
    let summary = writer.finish().unwrap();
    assert_eq!(summary.tables["lives"].rows, 3);
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([
            (1, ("bash".to_owned(), false)),
            (2, ("true".to_owned(), true)),
            (3, ("cat".to_owned(), true)),
        ])
    );
}

#[test]
fn a_journal_of_open_lifetimes_does_not_grow_without_end() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.checkpoint = Duration::from_millis(1);
    let run = options.run_dir.clone();
    let writer = DatasetWriter::start(options).unwrap();
    for n in 0..5000 {
        writer.write(lives(&[(1, "sh", false)]));
        if n % 100 == 0 {
            wait(&writer, n);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    wait(&writer, 5000);
    let directory = run.join("lives/host=node1");
    let journals = names(&directory);
    assert_eq!(journals.len(), 1, "{journals:?}");
    let size = directory.join(&journals[0]).metadata().unwrap().len();
    assert!(size < 2_000_000, "{size}");
    kill(writer, &run);
    recover_own(&run);
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([(1, ("sh".to_owned(), false))])
    );
}

#[test]
fn beyond_the_budget_the_oldest_ticks_are_dropped_and_counted() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    let size = tick(0, 1000)[0].rows.get_array_memory_size();
    options.memory_budget = 3 * size + size / 2;
    let run = options.run_dir.clone();
    let writer = DatasetWriter::start(options).unwrap();
    {
        // The writer is slow: it waits for the lock while ten ticks come.
        let mut state = writer.shared.lock();
        state.held_bytes = 0;
        for n in 0..10 {
            let batches = tick(n, 1000);
            state.push(Submission {
                batches,
                bytes: size,
            });
        }
    }
    let summary = writer.finish().unwrap();
    assert!(!summary.is_complete());
    assert_eq!(summary.tables["ticks"].dropped, 7000);
    assert_eq!(summary.tables["ticks"].rows, 3000);
    assert_eq!(read(&run, &TICKS), expected(7..10, 1000));
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Incomplete);
    assert_eq!(manifest.losses[0].count, 7000);
}

#[test]
fn nothing_is_left_behind_where_nothing_can_be_stored() {
    let out = TempDir::new().unwrap();
    fs::write(out.path().join("file"), "").unwrap();
    let mut options = options(&out);
    options.run_dir = out.path().join("file/run");
    assert!(matches!(
        DatasetWriter::start(options.clone()).unwrap_err(),
        OutputError::NotADirectory { .. }
    ));
    options.run_dir = out.path().join("run");
    options.hostname = "a/b".to_owned();
    assert!(matches!(
        DatasetWriter::start(options).unwrap_err(),
        OutputError::Name { .. }
    ));
    assert_eq!(names(out.path()), ["file"]);
}

#[test]
fn a_run_directory_that_vanishes_is_made_again() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    writer.write(tick(0, 10));
    wait(&writer, 1);
    fs::remove_dir_all(&run).unwrap();
    writer.write(tick(1, 10));
    wait(&writer, 2);
    let summary = writer.finish().unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    assert_eq!(read(&run, &TICKS), expected(0..2, 10));
    assert_eq!(manifest(&run).state, manifest::State::Complete);
}

#[test]
fn stats_count_what_happens() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let writer = DatasetWriter::start(options).unwrap();
    writer.write(tick(0, 10));
    writer.write(Vec::new());
    wait(&writer, 1);
    let stats = writer.stats();
    assert_eq!((stats.rows, stats.dropped, stats.errors), (10, 0, 0));
    assert!(stats.journal_bytes > 0 && stats.held_bytes > 0 && stats.write_ns > 0);
    let values = tick(0, 10)[0].rows["count"]
        .as_primitive::<UInt64Type>()
        .len();
    assert_eq!(values, 10);
    writer.finish().unwrap();
}

#[test]
fn many_lifetimes_do_not_wait_for_the_checkpoint() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    let mut rows: Vec<_> = (0..55_000).map(|pid| (pid, "true", pid > 0)).collect();
    writer.write(lives(&rows));
    wait(&writer, 1);
    assert_eq!(writer.stats().parts, 1);
    rows = (55_000..56_000).map(|pid| (pid, "true", true)).collect();
    rows.push((0, "sh", true));
    writer.write(lives(&rows));
    wait(&writer, 2);
    assert_eq!(writer.stats().parts, 1);
    writer.finish().unwrap();
    let lives = read_lives(&run);
    assert_eq!(lives.len(), 56_000);
    assert!(lives.values().all(|(_, ended)| *ended));
}
