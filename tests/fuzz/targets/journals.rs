//! A journal: recovery stores the rows that `verify` counted.

#![no_main]

use fuzz::{
    panics,
    run::{HOST, Run},
};
use libfuzzer_sys::fuzz_target;
use profiler::output::dataset::recover::{JournalOutcome, RecoveryReport};

/// Any table, because the schema is in the journal.
const TABLE: &str = "usage";

thread_local! {
    static RUN: Run = Run::new("journals");
}

fuzz_target!(init: panics::install_hook(), |data: &[u8]| {
    RUN.with(|run| panics::guarded(|| check(run, data)));
});

fn check(run: &Run, data: &[u8]) {
    run.begin();
    run.put_journal(TABLE, 0, data);
    let before = run.verify();
    let report = run.recover();
    let after = run.verify();
    let stored = after.hosts[HOST].rows;
    assert_eq!(stored, report.rows.values().sum::<u64>());
    let [(_, outcome)] = &report.journals[..] else {
        // A decoder has panicked: nothing is changed.
        assert!(report.journals.is_empty() && !report.errors.is_empty());
        assert_eq!(run.files(TABLE), ["_part-00000.arrows"]);
        return;
    };
    let (rows, files) = match outcome {
        JournalOutcome::Recovered { rows, .. } => (*rows, &["part-00000.parquet"][..]),
        JournalOutcome::Empty => (0, &[][..]),
        JournalOutcome::Damaged { rows: 0, .. } => (0, &["_part-00000.arrows.corrupt"][..]),
        JournalOutcome::Damaged { rows, .. } => (
            *rows,
            &["_part-00000.arrows.corrupt", "part-00000.parquet"][..],
        ),
        JournalOutcome::Failed { .. } => (0, &["_part-00000.arrows"][..]),
        JournalOutcome::Stale | JournalOutcome::InUse => panic!("{outcome:?}"),
    };
    assert_eq!((stored, run.files(TABLE)), (rows, owned(files)));
    let counted = before.hosts[HOST].in_journals;
    match outcome {
        // Only the last row of each key is stored.
        JournalOutcome::Recovered { .. } => assert!(rows <= counted),
        JournalOutcome::Empty => assert_eq!(counted, 0),
        _ => {}
    }
    if !matches!(outcome, JournalOutcome::Failed { .. }) {
        assert_eq!(run.recover(), RecoveryReport::default());
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
