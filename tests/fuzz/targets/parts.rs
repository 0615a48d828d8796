//! A Parquet file, as read by `verify`, the views and recovery.

#![no_main]

use fuzz::{
    panics,
    run::{HOST, KEYED, Run},
};
use libfuzzer_sys::fuzz_target;
use profiler::output::dataset::recover::JournalOutcome;

thread_local! {
    static RUN: Run = Run::new("parts");
}

fuzz_target!(init: panics::install_hook(), |data: &[u8]| {
    RUN.with(|run| panics::guarded(|| check(run, data)));
});

/// Recovery reads the keys of Parquet files. If a file is unreadable, the journal is kept.
fn check(run: &Run, data: &[u8]) {
    let (table, journal) = KEYED;
    run.begin();
    run.put_part(table, 0, data);
    run.put_journal(table, 1, journal);
    let before = run.verify();
    let report = run.recover();
    let after = run.verify();
    let recovered = report.rows.get(table).copied().unwrap_or(0);
    assert_eq!(after.hosts[HOST].rows, before.hosts[HOST].rows + recovered);
    let is_kept = after.hosts[HOST].in_journals != 0;
    match &report.journals[..] {
        [] => assert!(is_kept && !report.errors.is_empty()),
        [(_, JournalOutcome::Failed { .. })] => assert!(is_kept),
        [(_, JournalOutcome::Recovered { rows, .. })] => assert!(!is_kept && *rows == recovered),
        [(_, JournalOutcome::Stale)] => assert!(!is_kept && recovered == 0),
        other => panic!("{other:?}"),
    }
}
