//! Which rows of a run are exported.

use std::collections::{BTreeSet, HashSet};

use arrow::{array::RecordBatch, compute::kernels::cast_utils::string_to_timestamp_nanos};

use crate::{
    analysis::{
        rows::{ProcessKey, Texts, numbers, processes, times},
        stored_run::{StoredHost, StoredRun},
    },
    failure::{Failure, Reason},
    support::{
        log::harmless_message,
        names,
        units::{duration, format_ns},
    },
};

/// A time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Since the start of the run, µs.
    Since(i64),
    /// µs since 1970-01-01 UTC.
    At(i64),
}

impl Moment {
    /// `90s` since the start of the run, or RFC 3339.
    pub fn parse(text: &str) -> Result<Self, String> {
        let micros = |since: std::time::Duration| i64::try_from(since.as_micros()).ok();
        if let Some(since) = duration(text).ok().and_then(micros) {
            return Ok(Self::Since(since));
        }
        string_to_timestamp_nanos(text)
            .map(|ns| Self::At(ns / 1000))
            .map_err(|_| "neither a duration like 90s nor a time like 2026-01-31T12:00:00Z".into())
    }

    /// µs since 1970-01-01 UTC.
    fn in_run(self, run: &StoredRun) -> i64 {
        match self {
            Self::At(ts) => ts,
            Self::Since(since) => {
                let (start, _) = run.start_and_end();
                (start.unwrap_or(0) / 1000).saturating_add(since)
            }
        }
    }
}

/// Options that select rows.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub from: Option<Moment>,
    pub to: Option<Moment>,
    /// Name of regions.
    pub region: Option<String>,
    /// Batch job.
    pub job: Option<String>,
}

/// Refuses a name that is in no row of any run.
fn check_name(
    what: &str,
    table: &str,
    column: &'static str,
    given: &str,
    runs: &[StoredRun],
) -> Result<(), Failure> {
    let mut known = BTreeSet::new();
    let mut is_read = true;
    for run in runs {
        for host in run.hosts.iter() {
            let read = run.read(table, host, &[column], |batch| {
                let texts = Texts::of(batch, column);
                let names = (0..batch.num_rows()).filter_map(|row| texts.get(row));
                known.extend(names.map(str::to_owned));
            });
            is_read &= read.is_ok();
        }
    }
    if known.contains(given) || !is_read {
        return Ok(());
    }
    let message = names::unknown(what, given, known.iter().map(String::as_str));
    Err(Failure::new(Reason::Usage, harmless_message(&message)))
}

/// The rows of a host that a selection has.
pub struct Selected {
    /// Times of which a row must overlap one, µs; none if all rows do.
    times: Option<Vec<(i64, i64)>>,
    /// Processes to which a row must belong if it belongs to any.
    processes: Option<HashSet<ProcessKey>>,
}

/// Columns that decide, besides those that are exported.
pub const COLUMNS: [&str; 8] = [
    "ts",
    "interval_ns",
    "pid",
    "start_ts",
    "end_ts",
    "region_start_ts",
    "region_end_ts",
    "name",
];

impl Selection {
    /// Refuses names and times that no run has.
    ///
    /// # Errors
    ///
    /// With the names that exist.
    pub fn check(&self, runs: &[StoredRun]) -> Result<(), Failure> {
        if let Some(name) = &self.region {
            check_name("region", "region", "name", name, runs)?;
        }
        if let Some(job) = &self.job {
            check_name("job", "process", "job_id", job, runs)?;
        }
        let refused: Option<Vec<String>> = runs.iter().map(|run| self.outside(run)).collect();
        match refused.and_then(|reasons| reasons.into_iter().next()) {
            Some(why) => Err(Failure::new(Reason::Usage, why)),
            None => Ok(()),
        }
    }

    /// Why no time of a run is selected.
    fn outside(&self, run: &StoredRun) -> Option<String> {
        let [from, to] = [self.from, self.to].map(|moment| Some(moment?.in_run(run)));
        let (start, end) = run.start_and_end();
        let [start, end] = [start, end].map(|ns| ns.map(|ns| ns / 1000));
        let is_after = |a: Option<i64>, b: Option<i64>| a.zip(b).is_some_and(|(a, b)| a > b);
        if is_after(from, to) {
            return Some("--from is after --to".to_owned());
        }
        if is_after(from, end) {
            let length = end.zip(start).map_or(0, |(end, start)| end - start);
            let length = format_ns(u64::try_from(length).unwrap_or(0).saturating_mul(1000));
            return Some(format!(
                "--from is after the end of the run, which took {length}"
            ));
        }
        is_after(start, to).then(|| "--to is before the start of the run".to_owned())
    }

    /// What it selects on a host. Files that cannot be read are added to `failures`.
    pub fn on(&self, run: &StoredRun, host: &StoredHost, failures: &mut Vec<String>) -> Selected {
        let from = self.from.map_or(i64::MIN, |from| from.in_run(run));
        let to = self.to.map_or(i64::MAX, |to| to.in_run(run));
        let mut times = vec![(from, to)];
        if let Some(name) = &self.region {
            times.clear();
            let columns = ["name", "region_start_ts", "region_end_ts"];
            let read = run.read("region", host, &columns, |batch| {
                let names = Texts::of(batch, "name");
                let [starts, ends] =
                    ["region_start_ts", "region_end_ts"].map(|name| self::times(batch, name));
                for row in 0..batch.num_rows() {
                    if let (Some(of), Some(start)) = (names.get(row), starts[row])
                        && of == name
                    {
                        let end = ends[row].unwrap_or(i64::MAX);
                        times.push((start.max(from), end.min(to)));
                    }
                }
            });
            failures.extend(read.err().into_iter().flatten());
        }
        let processes = self.job.as_ref().map(|job| {
            let mut members = HashSet::new();
            let read = run.read("process", host, &["pid", "start_ts", "job_id"], |batch| {
                let jobs = Texts::of(batch, "job_id");
                let rows = processes(batch).into_iter().enumerate();
                let of_job = rows.filter(|(row, _)| jobs.get(*row) == Some(job));
                members.extend(of_job.filter_map(|(_, key)| key));
            });
            failures.extend(read.err().into_iter().flatten());
            members
        });
        let is_limited = self.region.is_some() || self.from.is_some() || self.to.is_some();
        Selected {
            times: is_limited.then_some(times),
            processes,
        }
    }
}

impl Selected {
    /// Whether a sample of the `seconds` until `ts` is selected.
    pub fn has(&self, ts: i64, seconds: f64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let begin = ts.saturating_sub((seconds * 1e6) as i64);
        self.times.as_ref().is_none_or(|times| {
            let mut times = times.iter();
            times.any(|(from, to)| begin < *to && ts > *from)
        })
    }

    /// Whether each row is selected; `None` if all are.
    pub fn rows(&self, batch: &RecordBatch) -> Option<Vec<bool>> {
        if self.times.is_none() && self.processes.is_none() {
            return None;
        }
        let mut selected = vec![true; batch.num_rows()];
        if let Some(times) = &self.times {
            for (row, (begin, end)) in spans(batch).into_iter().enumerate() {
                let overlaps = |(from, to): &(i64, i64)| begin < *to && end > *from;
                selected[row] = times.iter().any(overlaps);
            }
        }
        if let Some(members) = &self.processes {
            for (row, key) in processes(batch).into_iter().enumerate() {
                selected[row] &= key.is_none_or(|key| members.contains(&key));
            }
        }
        Some(selected)
    }
}

/// The time of each row, µs: of a process or region its life, otherwise the interval until `ts`. Rows
/// without a time are in all.
fn spans(batch: &RecordBatch) -> Vec<(i64, i64)> {
    let has = |name: &str| batch.column_by_name(name).is_some();
    let life = [("region_start_ts", "region_end_ts"), ("start_ts", "end_ts")];
    if let Some((start, end)) = life.into_iter().find(|(_, end)| has(end)) {
        let ends = times(batch, end)
            .into_iter()
            .map(|end| end.unwrap_or(i64::MAX));
        let starts = times(batch, start)
            .into_iter()
            .map(|start| start.unwrap_or(i64::MIN));
        return starts.zip(ends).collect();
    }
    if !has("ts") {
        return vec![(i64::MIN, i64::MAX); batch.num_rows()];
    }
    let lengths = numbers(batch, "interval_ns");
    let spans = times(batch, "ts").into_iter().zip(lengths);
    spans
        .map(|(ts, length)| {
            let end = ts.unwrap_or(i64::MAX);
            #[expect(clippy::cast_possible_truncation, reason = "saturates; null is 0")]
            let length = (length / 1e3) as i64;
            // A moment has a length, so that it overlaps the time that it is in.
            (end.saturating_sub(length.max(1)), end)
        })
        .collect()
}
