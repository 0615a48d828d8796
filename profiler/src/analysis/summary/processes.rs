//! Identities of the processes of a host.

use crate::analysis::{
    rows::{ProcessKey, Texts, integers, numbers, processes, times},
    stored_run::{StoredHost, StoredRun},
};

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub key: ProcessKey,
    pub comm: String,
    pub cmdline: String,
    pub uid: Option<i64>,
    /// Id of the batch job.
    pub job: Option<String>,
    /// Rank in a parallel program.
    pub rank: Option<i64>,
    /// Time for which it was followed, ns.
    pub interval_ns: Option<f64>,
    /// End, µs since 1970-01-01 UTC; `None` if it lived at the end of the run.
    pub end: Option<i64>,
    pub exit_code: Option<i64>,
    pub exit_signal: Option<i64>,
}

const COLUMNS: [&str; 11] = [
    "pid",
    "start_ts",
    "comm",
    "cmdline",
    "uid",
    "job_id",
    "task_rank",
    "interval_ns",
    "end_ts",
    "exit_code",
    "exit_signal",
];

/// Reads the processes of a host.
pub fn read_processes(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> Vec<Process> {
    let mut all = Vec::new();
    let read = run.read("process", host, &COLUMNS, |batch| {
        let [comms, cmdlines, jobs] =
            ["comm", "cmdline", "job_id"].map(|name| Texts::of(batch, name));
        let [uids, ranks, codes, signals] =
            ["uid", "task_rank", "exit_code", "exit_signal"].map(|name| integers(batch, name));
        let lengths = numbers(batch, "interval_ns");
        let ends = times(batch, "end_ts");
        for (row, key) in processes(batch).into_iter().enumerate() {
            let Some(key) = key else { continue };
            all.push(Process {
                key,
                comm: comms.get(row).unwrap_or_default().to_owned(),
                cmdline: cmdlines.get(row).unwrap_or_default().to_owned(),
                uid: uids[row],
                job: jobs.get(row).map(str::to_owned),
                rank: ranks[row],
                interval_ns: Some(lengths[row]).filter(|length| !length.is_nan()),
                end: ends[row],
                exit_code: codes[row],
                exit_signal: signals[row],
            });
        }
    });
    failures.extend(read.err().into_iter().flatten());
    all
}
