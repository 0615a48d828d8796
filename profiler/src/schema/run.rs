//! The table of the run itself, for accounting over many runs.

use super::{Label, Timestamp, TypedTable};
use crate::columns;

columns! {
    /// Times of a session.
    pub struct RunKey {
        start_ts: Timestamp = Label("us", "Start of the session"),
        end_ts: Option<Timestamp> = Label("us", "End of the session; null while it runs and if the profiler was killed"),
    }
}

columns! {
    /// One session of a run on one host.
    pub struct RunRow {
        state: Label = Label("", "running, complete, recovered (killed; its journals were converted to Parquet files) or incomplete (rows were lost)"),
        exit_code: Option<i32> = Label("", "Exit code of the profiled command, 128 + N if it was killed by signal N; null without a command, and if the command outlived its profile"),
        uid: Option<u32> = Label("", "User who started the profiler (before sudo); in job runs of `--split-by job`, the user of the job, null if unknown"),
        user: Option<Label> = Label("", "Name of that user"),
        scheduler: Option<Label> = Label("", "Scheduler of the job; null without a job"),
        job_id: Option<Label> = Label("", "Batch job that was profiled; null without a job"),
        labels: Option<String> = Label("", "Labels of the run, as a JSON object; null without labels"),
        target: String = Label("", "Target of the profile, as text"),
        command: String = Label("", "Command line of the profiler, quoted for sh(1)"),
        version: Label = Label("", "Version of the profiler"),
        kernel: Label = Label("", "Release of the kernel"),
        interval_ns: Option<u64> = Label("ns", "Time between samples"),
        samples: Option<u64> = Label("1", "Samples with rows; null while the run is running"),
        missed_samples: Option<u64> = Label("1", "Samples that were missed; null while the run is running"),
        rows: Option<u64> = Label("1", "Rows in Parquet files, without this table; null while the run is running"),
        lost_rows: Option<u64> = Label("1", "Rows that were lost; null while the run is running"),
        losses: Option<String> = Label("", "Everything that was not collected or not stored, as a JSON list of objects with `what`, `count` and `why`; null without losses"),
    }
}

/// The table.
pub static RUN: TypedTable<RunKey, RunRow> = TypedTable::new(
    "run",
    "One row per host and session of the profiler: user, command, times and result",
);
