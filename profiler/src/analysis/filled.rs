//! Tables from which rows of sleeping processes are left out, with a row of each process at every
//! sample.

use std::collections::HashMap;

use arrow::{
    array::{RecordBatch, UInt32Array},
    compute::{concat_batches, take_record_batch},
    datatypes::SchemaRef,
    error::ArrowError,
};

use super::{
    rows::{ProcessKey, processes, times},
    stored_run::{StoredHost, StoredRun},
};
use crate::{
    output::dataset::{
        Manifest,
        sparse::{FilledRow, Part, fill, is_sparse},
    },
    schema::Sparse,
};

/// Columns that it needs.
pub const COLUMNS: [&str; 4] = ["ts", "interval_ns", "pid", "start_ts"];

/// Longest time between the rows of a process, µs.
pub const PERIOD_US: i64 = Sparse::PERIOD_S as i64 * 1_000_000;

/// Adds the rows that were left out. Stored rows are pushed in the order of their time.
pub struct FilledRows<'a> {
    sparse: &'static Sparse,
    run: &'a StoredRun,
    host: &'a StoredHost,
    /// Those of the stored rows.
    times: Option<(i64, i64)>,
    /// Read with the first rows of a file from which rows were left out.
    facts: Option<Facts>,
    /// Rows of the present time.
    present: Vec<RecordBatch>,
    ts: i64,
    processes: Option<Processes>,
}

/// What the rows of other tables tell.
struct Facts {
    /// Times of all samples in their order; without any, those of the rows.
    samples: Vec<i64>,
    /// Ends of processes.
    ends: HashMap<ProcessKey, i64>,
    /// Starts of sessions.
    starts: Vec<i64>,
}

/// Processes that can be without a row at the next sample.
struct Processes {
    /// Last stored row of each.
    rows: RecordBatch,
    /// By row.
    known: Vec<Known>,
    /// Time of the last rows.
    at: i64,
}

struct Known {
    key: ProcessKey,
    /// Time of its last stored row.
    stored_at: i64,
    /// Time of its last row.
    until: i64,
    /// Time between the two, ns.
    filled_ns: u64,
}

impl<'a> FilledRows<'a> {
    /// Without rows.
    pub fn new(
        sparse: &'static Sparse,
        run: &'a StoredRun,
        host: &'a StoredHost,
        times: Option<(i64, i64)>,
    ) -> Self {
        Self {
            sparse,
            run,
            host,
            times,
            facts: None,
            present: Vec::new(),
            ts: i64::MIN,
            processes: None,
        }
    }

    /// Adds stored rows, and passes those of earlier times on.
    ///
    /// # Errors
    ///
    /// When Arrow cannot combine the rows.
    pub fn push(
        &mut self,
        batch: &RecordBatch,
        rows: &mut impl FnMut(&RecordBatch),
    ) -> Result<(), ArrowError> {
        if !is_sparse(batch.schema_ref()) {
            self.end_sample(rows)?;
            self.processes = None;
            rows(batch);
            return Ok(());
        }
        if self.facts.is_none() {
            self.facts = Some(Facts::read(self.run, self.host, self.times));
        }
        let all = times(batch, "ts");
        let mut first = 0;
        for row in 1..=all.len() {
            if row < all.len() && all[row] == all[first] {
                continue;
            }
            let part = batch.slice(first, row - first);
            let ts = all[first];
            first = row;
            match ts {
                // A row without a time has no neighbours.
                None => rows(&part),
                Some(ts) => {
                    if ts != self.ts {
                        self.end_sample(rows)?;
                        self.begin_sample(ts, rows)?;
                    }
                    self.present.push(part);
                }
            }
        }
        Ok(())
    }

    /// Passes all rows on, with those of samples after the last stored rows.
    ///
    /// # Errors
    ///
    /// When Arrow cannot combine the rows.
    pub fn finish(&mut self, rows: &mut impl FnMut(&RecordBatch)) -> Result<(), ArrowError> {
        self.end_sample(rows)?;
        self.fill_until(i64::MAX, rows)
    }

    fn begin_sample(
        &mut self,
        ts: i64,
        rows: &mut impl FnMut(&RecordBatch),
    ) -> Result<(), ArrowError> {
        if ts < self.ts {
            // The clock was set back, or the files overlap.
            self.processes = None;
        }
        self.fill_until(ts, rows)?;
        self.ts = ts;
        Ok(())
    }

    /// Adds the samples without any stored row until this time.
    fn fill_until(
        &mut self,
        ts: i64,
        rows: &mut impl FnMut(&RecordBatch),
    ) -> Result<(), ArrowError> {
        let Some(facts) = &self.facts else {
            return Ok(());
        };
        let (Some(processes), sparse) = (&mut self.processes, self.sparse) else {
            return Ok(());
        };
        let first = facts
            .samples
            .partition_point(|sample| *sample <= processes.at);
        for &sample in facts.samples[first..]
            .iter()
            .take_while(|sample| **sample < ts)
        {
            if processes.known.is_empty() {
                break;
            }
            rows(&processes.at(facts, sparse, None, sample)?);
        }
        Ok(())
    }

    /// Passes the rows of the present time on.
    fn end_sample(&mut self, rows: &mut impl FnMut(&RecordBatch)) -> Result<(), ArrowError> {
        let Some(batch) = self.present.first() else {
            return Ok(());
        };
        let stored = concat_batches(&batch.schema(), &self.present)?;
        self.present.clear();
        let Some(facts) = &self.facts else {
            return Ok(());
        };
        let schema = stored.schema();
        // Another version of the profiler can have other columns.
        let known = self
            .processes
            .take()
            .filter(|known| known.rows.schema() == schema);
        let mut processes = known.unwrap_or_else(|| Processes::none(schema));
        rows(&processes.at(facts, self.sparse, Some(&stored), self.ts)?);
        self.processes = Some(processes);
        Ok(())
    }
}

impl Facts {
    fn read(run: &StoredRun, host: &StoredHost, span: Option<(i64, i64)>) -> Self {
        let mut samples = Vec::new();
        let tables = ["system", "timeline", "overhead"];
        if let Some(table) = tables.iter().find(|table| host.tables.contains(**table)) {
            // What cannot be read is reported by those who read the rows.
            let _ = run.read_stored(table, host, &["ts"], span, |batch| {
                let all = times(batch, "ts").into_iter().flatten();
                // Row groups are read whole.
                samples
                    .extend(all.filter(|ts| span.is_none_or(|(from, to)| *ts > from && *ts <= to)));
            });
        }
        samples.sort_unstable();
        samples.dedup();
        let mut ends = HashMap::new();
        let _ = run.read("process", host, &["pid", "start_ts", "end_ts"], |batch| {
            let rows = processes(batch).into_iter().zip(times(batch, "end_ts"));
            ends.extend(rows.filter_map(|(process, end)| Some((process?, end?))));
        });
        let sessions = host.manifest.iter().flat_map(Manifest::sessions);
        let mut starts: Vec<i64> = sessions.map(|session| session.start_ts / 1000).collect();
        starts.sort_unstable();
        Self {
            samples,
            ends,
            starts,
        }
    }

    fn is_sample(&self, ts: i64) -> bool {
        self.samples.is_empty() || self.samples.binary_search(&ts).is_ok()
    }

    /// Whether a session has begun between two times.
    fn is_restarted(&self, from: i64, to: i64) -> bool {
        let next = self.starts.partition_point(|start| *start <= from);
        self.starts.get(next).is_some_and(|start| *start <= to)
    }
}

impl Processes {
    fn none(schema: SchemaRef) -> Self {
        Self {
            rows: RecordBatch::new_empty(schema),
            known: Vec::new(),
            at: i64::MIN,
        }
    }

    /// All rows at a time: the stored ones and, at a sample, those that were left out.
    fn at(
        &mut self,
        facts: &Facts,
        sparse: &Sparse,
        stored: Option<&RecordBatch>,
        ts: i64,
    ) -> Result<RecordBatch, ArrowError> {
        let all = match stored {
            Some(stored) => concat_batches(&stored.schema(), [stored, &self.rows])?,
            None => self.rows.clone(),
        };
        let keys = stored.map(processes).unwrap_or_default();
        let number = |row: usize| u32::try_from(row).unwrap_or(u32::MAX);
        let mut rows: Vec<_> = (0..keys.len())
            .map(|row| FilledRow::stored(number(row)))
            .collect();
        let with_row: HashMap<_, _> = keys
            .iter()
            .enumerate()
            .filter_map(|(row, key)| Some(((*key)?, row)))
            .collect();
        let mut known = Vec::new();
        // Of all rows.
        let mut kept = Vec::new();
        let is_alive = |key: &ProcessKey| facts.ends.get(key).is_none_or(|end| *end > ts);
        for (row, key) in keys.iter().enumerate() {
            let Some(key) = key.filter(is_alive) else {
                continue;
            };
            if with_row.get(&key) != Some(&row) {
                continue;
            }
            kept.push(number(row));
            known.push(Known {
                key,
                stored_at: ts,
                until: ts,
                filled_ns: 0,
            });
        }
        let is_sample = facts.is_sample(ts);
        let is_restarted = facts.is_restarted(self.at, ts);
        for (index, mut process) in self.known.drain(..).enumerate() {
            if let Some(&row) = with_row.get(&process.key) {
                let filled_ns = process.filled_ns;
                rows[row].part = Part::Stored { filled_ns };
                continue;
            }
            let is_late = ts.saturating_sub(process.stored_at) > PERIOD_US;
            if !is_alive(&process.key) || is_restarted || is_late {
                continue;
            }
            let of = number(keys.len() + index);
            if is_sample {
                let us = ts.saturating_sub(process.until).unsigned_abs();
                let interval_ns = us.saturating_mul(1000);
                rows.push(FilledRow {
                    of,
                    part: Part::Asleep { ts, interval_ns },
                });
                process.until = ts;
                process.filled_ns += interval_ns;
            }
            kept.push(of);
            known.push(process);
        }
        self.rows = take_record_batch(&all, &UInt32Array::from(kept))?;
        self.known = known;
        self.at = ts;
        fill(&all, sparse, &rows)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        analysis::rows::numbers,
        import::{Row, batches},
        output::dataset::{DatasetOptions, DatasetWriter, foreign_file::Trust},
        sources::dataset_schema,
    };

    const START: i64 = 1_767_323_045_000_000;

    /// Time after this number of ms.
    fn at(ms: i64) -> i64 {
        START + ms * 1000
    }

    fn row(columns: Value, ms: i64) -> Row {
        let Value::Object(mut row) = columns else {
            panic!("{columns} is no object");
        };
        row.insert("ts".to_owned(), at(ms).into());
        row
    }

    /// A run with samples at each second until 10, these rows: pid, second, ms, `rss`, and these ends of
    /// processes, ms.
    fn run(rows: &[(u32, i64, u64, u64)], ends: &[(u32, i64)], sparse: bool) -> StoredRun {
        let directory = tempfile::tempdir().expect("a directory");
        let mut tables: BTreeMap<_, Vec<Row>> = BTreeMap::new();
        for second in 1..=10 {
            let interval = json!({ "interval_ns": 1_000_000_000 });
            tables
                .entry("system")
                .or_default()
                .push(row(interval, second * 1000));
        }
        for &(pid, second, ms, rss) in rows {
            let key = json!({
                "pid": pid, "start_ts": START, "interval_ns": ms * 1_000_000,
            });
            let of = |columns: Value| {
                let mut row = row(columns, second * 1000);
                row.extend(key.as_object().expect("an object").clone());
                row
            };
            let usage = json!({ "rss": rss, "pss": rss / 2, "user_ns": 7, "state": "S" });
            tables.entry("usage").or_default().push(of(usage));
            let sched = json!({ "sleep_ns": ms * 1_000_000 - 7, "oncpu_ns": 7 });
            tables.entry("sched").or_default().push(of(sched));
        }
        for &(pid, end) in ends {
            let process = json!({ "pid": pid, "start_ts": START, "end_ts": at(end) });
            tables
                .entry("process")
                .or_default()
                .push(row(process, 10_000));
        }
        let manifest = Manifest::new("run", "node1", (START - 1_000_000) * 1000);
        let writer = DatasetWriter::start(DatasetOptions {
            manifest: Some(manifest.expect("a manifest")),
            schema: dataset_schema(),
            all_nullable: true,
            sparse,
            ..DatasetOptions::new(directory.path().join("run"), "node1", "run")
        });
        let writer = writer.expect("a writer");
        writer.write(batches(tables).expect("rows"));
        writer.finish().expect("written");
        let run = StoredRun::open(&directory.keep().join("run"), Trust::Own);
        run.expect("a run")
    }

    /// The values of a column by pid and second, with the seconds that they cover.
    fn values(run: &StoredRun, table: &str, column: &str) -> BTreeMap<(u32, i64), (f64, f64)> {
        let mut found = BTreeMap::new();
        let read = run.read(table, &run.hosts[0], &[column], |batch| {
            let values = numbers(batch, column)
                .into_iter()
                .zip(numbers(batch, "interval_ns"));
            let keys = processes(batch).into_iter().zip(times(batch, "ts"));
            for ((process, ts), (value, interval)) in keys.zip(values) {
                let second = (ts.expect("a time") - START) / 1_000_000;
                let key = (process.expect("a process").0, second);
                assert!(
                    found.insert(key, (value, interval / 1e9)).is_none(),
                    "{key:?}"
                );
            }
        });
        read.expect("it is read");
        found
    }

    fn of(all: &BTreeMap<(u32, i64), (f64, f64)>, pid: u32) -> Vec<(i64, f64, f64)> {
        let of = all.iter().filter(|((of, _), _)| *of == pid);
        of.map(|((_, second), (value, seconds))| (*second, *value, *seconds))
            .collect()
    }

    /// One process changes once and is there until the run is killed; one ends.
    const ROWS: [(u32, i64, u64, u64); 4] = [
        (1, 1, 1000, 10),
        (2, 1, 1000, 30),
        (2, 4, 2500, 0),
        (1, 6, 5000, 20),
    ];

    #[test]
    fn sleeping_processes_have_a_row_at_each_sample() {
        let run = run(&ROWS, &[(2, 3500)], true);
        let rss = values(&run, "usage", "rss");
        let first: Vec<_> = (1..6).map(|second| (second, 10.0, 1.0)).collect();
        let then: Vec<_> = (6..=10).map(|second| (second, 20.0, 1.0)).collect();
        assert_eq!(of(&rss, 1), [first, then].concat());
        let ended = [
            (1, 30.0, 1.0),
            (2, 30.0, 1.0),
            (3, 30.0, 1.0),
            (4, 0.0, 0.5),
        ];
        assert_eq!(of(&rss, 2), ended);
        let known = values(&run, "usage", "pss");
        let known: Vec<_> = of(&known, 1)
            .into_iter()
            .filter(|(_, pss, _)| !pss.is_nan())
            .collect();
        assert_eq!(known, [(1, 5.0, 1.0), (6, 10.0, 1.0)]);
        let sum = |table, column| -> Option<f64> {
            let all = of(&values(&run, table, column), 1);
            all.iter()
                .filter(|(second, ..)| *second <= 6)
                .map(|(_, value, _)| *value)
                .reduce(|sum, value| sum + value)
        };
        assert_eq!(sum("usage", "user_ns"), Some(14.0));
        assert_eq!(sum("sched", "sleep_ns"), Some(6e9 - 14.0));
    }

    #[test]
    fn part_of_a_run_has_the_same_rows() {
        let run = run(&ROWS, &[(2, 3500)], true);
        let mut all = values(&run, "usage", "rss");
        all.retain(|(_, second), _| (3..=7).contains(second));
        let part = run.between(at(2000), at(7000));
        assert_eq!(values(&part, "usage", "rss"), all);
    }

    #[test]
    fn full_recordings_remain_as_they_are() {
        let run = run(&ROWS, &[(2, 3500)], false);
        assert_eq!(values(&run, "usage", "rss").len(), ROWS.len());
    }

    #[test]
    fn processes_are_unknown_between_sessions() {
        let mut run = run(
            &[(1, 1, 1000, 10), (3, 1, 1000, 30), (1, 7, 1000, 10)],
            &[],
            true,
        );
        let hosts = std::sync::Arc::get_mut(&mut run.hosts).expect("the only one");
        let manifest = hosts[0].manifest.as_mut().expect("a manifest");
        manifest.earlier = vec![manifest.clone()];
        manifest.start_ts = at(4500) * 1000;
        let rss = values(&run, "usage", "rss");
        let seconds = |pid| -> Vec<_> { of(&rss, pid).iter().map(|row| row.0).collect() };
        assert_eq!(seconds(1), [1, 2, 3, 4, 7, 8, 9, 10]);
        assert_eq!(seconds(3), [1, 2, 3, 4]);
    }
}
