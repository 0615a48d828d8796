//! Recovery of the runs of killed profilers.

use super::*;

#[test]
fn a_killed_run_is_recovered() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    for n in 0..5 {
        writer.write(tick(n, 10));
    }
    writer.write(lives(&[(1, "sh", false), (2, "true", false)]));
    writer.write(lives(&[(2, "true", true)]));
    wait(&writer, 7);

    let error = recover_all_hosts(&run).unwrap_err();
    assert!(matches!(error, RecoverError::Running { .. }));
    assert_eq!(recover_runs(out.path(), "node1").len(), 0);
    kill(writer, &run);
    assert_eq!(recover_runs(out.path(), "node2").len(), 0);
    let reports = recover_runs(out.path(), "node1");
    let [(path, Ok(report))] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(path, &run);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.rows["ticks"], 50);
    assert_eq!(read(&run, &TICKS), expected(0..5, 10));
    assert_eq!(
        read_lives(&run),
        BTreeMap::from([
            (1, ("sh".to_owned(), false)),
            (2, ("true".to_owned(), true)),
        ])
    );
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Recovered);
    assert_eq!(manifest.tables["ticks"].rows, 50);
    assert_eq!(manifest.tables["lives"].rows, 2);
    // Once more changes nothing.
    assert_eq!(recover_runs(out.path(), "node1").len(), 0);
    assert_eq!(recover_own(&run), RecoveryReport::default());
    assert_eq!(names(&run.join("ticks/host=node1")), ["part-00000.parquet"]);
    assert!(run.join("views.sql").exists());
}

/// It is reported, once: the run counts as recovered, so that later starts do not try again.
#[test]
fn an_unreadable_part_does_not_keep_a_run_from_being_recovered() {
    let out = TempDir::new().unwrap();
    let (run, writer) = start(&out);
    writer.write(tick(0, 10));
    wait(&writer, 1);
    kill(writer, &run);
    let broken = run.join("ticks/host=node1/part-00007.parquet");
    fs::write(&broken, "no Parquet").unwrap();
    let report = recover_own(&run);
    let [error] = &report.errors[..] else {
        panic!("{report:?}")
    };
    assert!(error.contains("part-00007.parquet: "), "{error}");
    let manifest = manifest(&run);
    assert_eq!(manifest.state, manifest::State::Recovered);
    let ticks = &manifest.tables["ticks"];
    assert_eq!((ticks.parts, ticks.rows, ticks.in_journal), (2, 10, 0));
    assert_eq!(recover_runs(out.path(), "node1").len(), 0);
}

/// Whether a process of another machine lives is unknown here. Its writes are visible.
#[test]
fn another_machine_is_left_alone_while_it_writes() {
    let out = TempDir::new().unwrap();
    let run = out.path().join("run");
    for host in ["node1", "far"] {
        let mut options = DatasetOptions::new(run.clone(), host, "run");
        let mut manifest = Manifest::new("run", host, 5).unwrap();
        manifest.config = serde_json::json!({"interval_ns": 10_000_000_000_u64});
        options.manifest = Some(manifest);
        let writer = DatasetWriter::start(options).unwrap();
        writer.write(tick(0, 10));
        wait(&writer, 1);
        writer.shared.lock().manifest = None;
        std::mem::forget(writer);
        let journal = run.join(format!("ticks/host={host}/_part-00000.arrows"));
        // Without the lock: file servers need not have any.
        let bytes = fs::read(&journal).unwrap();
        fs::remove_file(&journal).unwrap();
        fs::write(&journal, bytes).unwrap();
    }
    let far = run.join("run.far.json");
    let file = |path: &Path| File::options().write(true).open(path).unwrap();
    let mut value: Manifest = serde_json::from_slice(&fs::read(&far).unwrap()).unwrap();
    value.process.boot_id = "another".to_owned();
    fs::write(&far, serde_json::to_vec(&value).unwrap()).unwrap();
    let journal = run.join("ticks/host=far/_part-00000.arrows");
    let before = std::time::SystemTime::now() - Duration::from_secs(140);
    let row = run.join("run/host=far/part-00000.parquet");
    for path in [&far, &journal, &row] {
        file(path).set_modified(before).unwrap();
    }
    let report = recover_all_hosts(&run).unwrap();
    assert!(
        report.errors[1].contains("node1 is being written"),
        "{report:?}"
    );
    assert!(
        report.errors[0].contains("far wrote 140 s ago"),
        "{report:?}"
    );
    assert_eq!((report.journals.len(), report.is_complete()), (0, false));
    assert!(journal.exists());
    // 120 s, and three intervals of 10 s.
    for path in [&far, &journal, &row] {
        file(path)
            .set_modified(before - Duration::from_secs(20))
            .unwrap();
    }
    let report = recover_all_hosts(&run).unwrap();
    assert_eq!(report.errors.len(), 1, "{report:?}");
    assert_eq!(report.rows["ticks"], 10);
    assert!(!journal.exists() && run.join("ticks/host=node1/_part-00000.arrows").exists());
    let value: Manifest = serde_json::from_slice(&fs::read(&far).unwrap()).unwrap();
    assert_eq!(value.state, manifest::State::Recovered);
}

/// Its name becomes a part of that of a temporary file.
#[test]
fn a_host_whose_name_is_a_path_is_ignored() {
    let out = TempDir::new().unwrap();
    let run = out.path().join("run");
    fs::create_dir_all(run.join(".run.json.x")).unwrap();
    let beside = out.path().join("beside.tmp");
    fs::write(&beside, "mine").unwrap();
    let mut manifest = Manifest::new("run", "x/../../beside", 5).unwrap();
    manifest.state = manifest::State::Incomplete;
    let text = serde_json::to_vec(&manifest).unwrap();
    fs::write(run.join("run.json"), &text).unwrap();
    recover_all_hosts(&run).unwrap();
    assert_eq!(fs::read(&beside).unwrap(), b"mine");
    assert_eq!(fs::read(run.join("run.json")).unwrap(), text);
}

#[test]
fn a_journal_in_use_is_left_alone() {
    let out = TempDir::new().unwrap();
    let mut options = options(&out);
    options.manifest = None;
    let run = options.run_dir.clone();
    let writer = DatasetWriter::start(options).unwrap();
    writer.write(tick(0, 10));
    wait(&writer, 1);
    let report = recover_own(&run);
    assert!(matches!(report.journals[..], [(_, JournalOutcome::InUse)]));
    assert!(!report.is_complete());
    writer.finish().unwrap();
    assert_eq!(read(&run, &TICKS), expected(0..1, 10));
}

/// A journal of the ticks `0..ticks`, and the offsets at which its batches end.
fn journal_of(ticks: i64) -> (Vec<u8>, Vec<usize>) {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let path = run.join("ticks/host=node1/_part-00000.arrows");
    let writer = DatasetWriter::start(options).unwrap();
    let mut ends = Vec::new();
    for n in 0..ticks {
        writer.write(tick(n, 3));
        wait(&writer, n.cast_unsigned() + 1);
        ends.push(usize::try_from(path.metadata().unwrap().len()).unwrap());
    }
    let bytes = fs::read(path).unwrap();
    (bytes, ends)
}

/// A directory on which syncing costs nothing, if there is one.
fn in_memory() -> TempDir {
    TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap()
}

/// Recovers a run with this journal.
fn recover_bytes(bytes: &[u8]) -> (TempDir, RecoveryReport) {
    let out = in_memory();
    let directory = out.path().join("ticks/host=node1");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("_part-00000.arrows"), bytes).unwrap();
    let report = recover_own(out.path());
    (out, report)
}

#[test]
fn every_whole_batch_of_a_torn_journal_is_recovered() {
    let (bytes, ends) = journal_of(3);
    for length in 0..=bytes.len() {
        let (out, report) = recover_bytes(&bytes[..length]);
        let whole = ends.iter().filter(|&&end| end <= length).count();
        let directory = out.path().join("ticks/host=node1");
        let [(_, outcome)] = &report.journals[..] else {
            panic!("{length}: {report:?}")
        };
        if whole == 0 {
            assert_eq!(*outcome, JournalOutcome::Empty, "{length}");
            assert!(names(&directory).is_empty(), "{length}");
        } else {
            assert!(
                matches!(outcome, JournalOutcome::Recovered { .. }),
                "{length}: {outcome:?}"
            );
            assert_eq!(names(&directory), ["part-00000.parquet"], "{length}");
            let ticks = i64::try_from(whole).unwrap();
            assert_eq!(read(out.path(), &TICKS), expected(0..ticks, 3), "{length}");
        }
        assert!(report.is_complete(), "{length}");
    }
}

#[test]
fn a_damaged_journal_is_kept_and_breaks_nothing() {
    let (bytes, ends) = journal_of(2);
    for offset in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[offset] ^= [0xff, 0x01, 0x80][offset % 3];
        let (out, report) = recover_bytes(&damaged);
        let directory = out.path().join("ticks/host=node1");
        let [(_, outcome)] = &report.journals[..] else {
            panic!("{offset}: {report:?}")
        };
        // Nothing before the damage is lost; nothing disappears without a word.
        match outcome {
            JournalOutcome::Recovered { rows, .. } | JournalOutcome::Damaged { rows, .. } => {
                assert!(*rows >= 3 || offset < ends[0], "{offset}: {outcome:?}");
            }
            JournalOutcome::Empty => assert!(offset < ends[0], "{offset}"),
            JournalOutcome::Failed { .. } => {}
            other => panic!("{offset}: {other:?}"),
        }
        let kept = names(&directory)
            .iter()
            .any(|name| name.contains(".arrows"));
        let expected = matches!(
            outcome,
            JournalOutcome::Damaged { .. } | JournalOutcome::Failed { .. }
        );
        assert_eq!(kept, expected, "{offset}: {outcome:?}");
    }
}

#[test]
fn files_that_are_no_journals() {
    let (out, report) = recover_bytes(b"no Arrow stream at all, but long enough to be one");
    let directory = out.path().join("ticks/host=node1");
    assert!(matches!(
        report.journals[..],
        [(_, JournalOutcome::Damaged { .. })]
    ));
    assert_eq!(names(&directory), ["_part-00000.arrows.corrupt"]);
    assert!(!report.is_complete());
    // It is kept, and not found again.
    assert_eq!(recover_own(out.path()), RecoveryReport::default());

    let (out, report) = recover_bytes(b"");
    let directory = out.path().join("ticks/host=node1");
    assert!(matches!(report.journals[..], [(_, JournalOutcome::Empty)]));
    assert!(names(&directory).is_empty());
}

#[test]
fn a_journal_whose_part_exists_is_stale() {
    let (bytes, _) = journal_of(2);
    let (out, _) = recover_bytes(&bytes);
    // As after a crash between the rename and the removal.
    let directory = out.path().join("ticks/host=node1");
    fs::write(directory.join("_part-00000.arrows"), &bytes).unwrap();
    fs::write(directory.join(".part-00001.parquet.tmp"), "half").unwrap();
    let report = recover_own(out.path());
    assert!(matches!(report.journals[..], [(_, JournalOutcome::Stale)]));
    assert_eq!(names(&directory), ["part-00000.parquet"]);
    assert_eq!(read(out.path(), &TICKS), expected(0..2, 3));
}

#[test]
fn lifetimes_are_stored_once_whenever_the_profiler_is_killed() {
    // Checkpoints at every point between the same rows; at each the journals are as a crash would
    // leave them.
    let rows: [&[_]; 4] = [
        &[(1, "sh", false), (2, "a", false), (3, "b", true)],
        &[(2, "a2", true), (4, "c", false)],
        &[(1, "sh2", false)],
        &[(4, "c2", true), (5, "d", false)],
    ];
    let want = BTreeMap::from([
        (1, ("sh2".to_owned(), false)),
        (2, ("a2".to_owned(), true)),
        (3, ("b".to_owned(), true)),
        (4, ("c2".to_owned(), true)),
        (5, ("d".to_owned(), false)),
    ]);
    for checkpoints in 0..16_u8 {
        let out = TempDir::new().unwrap();
        let mut options = options(&out);
        options.checkpoint = Duration::from_secs(3600);
        let run = options.run_dir.clone();
        let mut writer = WriterThread::new(options).unwrap();
        let mut stale = Vec::new();
        for (n, rows) in rows.iter().enumerate() {
            writer.test_tick(lives(rows));
            let directory = run.join("lives/host=node1");
            let before: Vec<_> = names(&directory)
                .into_iter()
                .map(|name| {
                    (
                        directory.join(&name),
                        fs::read(directory.join(name)).unwrap(),
                    )
                })
                .collect();
            if checkpoints & (1 << n) != 0 {
                writer.test_checkpoint();
                stale.extend(before);
            }
        }
        drop(writer);
        // Journals that were removed last may still be there.
        for (path, bytes) in stale {
            if !path.exists() {
                fs::write(path, bytes).unwrap();
            }
        }
        let text = fs::read_to_string(run.join("run.json")).unwrap();
        let mut value: Manifest = serde_json::from_str(&text).unwrap();
        value.process.start_ticks += 2;
        fs::write(run.join("run.json"), serde_json::to_vec(&value).unwrap()).unwrap();
        let report = recover_own(&run);
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(read_lives(&run), want, "{checkpoints:b}");
        assert_eq!(recover_own(&run).journals, [], "{checkpoints:b}");
        assert_eq!(read_lives(&run), want, "{checkpoints:b}");
    }
}

#[test]
fn lifetimes_of_a_torn_journal_are_those_of_its_whole_batches() {
    let out = TempDir::new().unwrap();
    let options = options(&out);
    let run = options.run_dir.clone();
    let path = run.join("lives/host=node1/_part-00000.arrows");
    let rows: [&[_]; 3] = [
        &[(1, "sh", false), (2, "a", false)],
        &[(2, "b", true)],
        &[(1, "c", true), (3, "d", false)],
    ];
    let writer = DatasetWriter::start(options).unwrap();
    let mut states = vec![(0, BTreeMap::new())];
    for (n, rows) in rows.iter().enumerate() {
        writer.write(lives(rows));
        wait(&writer, n as u64 + 1);
        let mut state = states[n].1.clone();
        for &(pid, name, ended) in *rows {
            state.insert(pid, (name.to_owned(), ended));
        }
        states.push((
            usize::try_from(path.metadata().unwrap().len()).unwrap(),
            state,
        ));
    }
    let bytes = fs::read(path).unwrap();
    for length in 0..=bytes.len() {
        let out = in_memory();
        let directory = out.path().join("lives/host=node1");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("_part-00000.arrows"), &bytes[..length]).unwrap();
        let report = recover_own(out.path());
        assert!(report.is_complete(), "{length}: {report:?}");
        let (_, want) = states.iter().rfind(|(end, _)| *end <= length).unwrap();
        let found = read_lives(out.path());
        assert_eq!(found, *want, "{length}");
    }
}
