//! Tables from which rows of sleeping processes are left out, with a row of each process at every
//! sample.

use std::collections::HashMap;

use arrow::{
    array::{RecordBatch, UInt32Array},
    compute::{concat_batches, take_record_batch},
    datatypes::SchemaRef,
    error::ArrowError,
};

use super::rows::{ProcessKey, integers, processes, times};
use crate::{
    output::dataset::sparse::{FilledRow, Part, fill, is_sparse},
    schema::Sparse,
};

/// Columns that it needs.
pub const COLUMNS: [&str; 4] = ["ts", "interval_ns", "pid", "start_ts"];

/// Longest time between the rows of a process, µs.
pub const PERIOD_US: i64 = Sparse::PERIOD_S as i64 * 1_000_000;

/// Adds the rows that were left out. Stored rows are pushed in the order of their time.
pub struct FilledRows<F> {
    sparse: &'static Sparse,
    /// Called with the first rows of a file from which rows were left out.
    read_facts: F,
    facts: Option<Facts>,
    /// Rows of the present time.
    present: Vec<RecordBatch>,
    ts: i64,
    processes: Option<Processes>,
}

/// What is known before the rows are filled; times are µs since 1970-01-01 UTC.
pub struct Facts {
    /// Times of all samples in their order.
    samples: Vec<i64>,
    /// Ends of processes.
    ends: HashMap<ProcessKey, i64>,
    /// Starts of sessions in their order.
    starts: Vec<i64>,
    /// Times of the rows after which rows were left out, in their order.
    left_out_after: HashMap<ProcessKey, Vec<i64>>,
}

/// Finds out where rows were left out. Rows can also be lost: then the next one does not cover their time.
pub struct GapFinder {
    facts: Facts,
    /// Time of the last row of each process.
    last: HashMap<ProcessKey, i64>,
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
    /// Time of its last row.
    until: i64,
    /// Time between its last stored row and that one, ns.
    filled_ns: u64,
}

impl<F: FnMut() -> Facts> FilledRows<F> {
    /// Without rows.
    pub fn new(sparse: &'static Sparse, read_facts: F) -> Self {
        Self {
            sparse,
            read_facts,
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
            self.facts = Some((self.read_facts)());
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
        let later = facts.samples_after(processes.at).iter();
        for &sample in later.take_while(|sample| **sample < ts) {
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

impl GapFinder {
    /// Without rows.
    pub fn new(samples: Vec<i64>, ends: HashMap<ProcessKey, i64>, starts: Vec<i64>) -> Self {
        Self {
            facts: Facts {
                samples,
                ends,
                starts,
                left_out_after: HashMap::new(),
            },
            last: HashMap::new(),
        }
    }

    /// Adds stored rows, in the order of their time.
    pub fn push(&mut self, batch: &RecordBatch) {
        if !is_sparse(batch.schema_ref()) {
            self.last.clear();
            return;
        }
        let rows = times(batch, "ts").into_iter().zip(processes(batch));
        for ((ts, key), interval) in rows.zip(integers(batch, "interval_ns")) {
            let (Some(ts), Some(key), Some(interval)) = (ts, key, interval) else {
                continue;
            };
            let Some(before) = self.last.insert(key, ts) else {
                continue;
            };
            let facts = &mut self.facts;
            let until = facts.ends.get(&key).map_or(ts, |end| ts.min(*end));
            let missing = facts.samples_after(before).first();
            let Some(missing) = missing.filter(|missing| **missing < until) else {
                continue;
            };
            let from = until.saturating_sub(interval / 1000);
            // Clocks are not exactly as fast as each other.
            let is_covered = from.saturating_sub(before) <= missing.saturating_sub(from);
            if is_covered || facts.is_open(key, before) && facts.is_restarted(before, ts) {
                facts.left_out_after.entry(key).or_default().push(before);
            }
        }
    }

    /// The facts with the samples until a time.
    pub fn finish(self, until: i64) -> Facts {
        let Self { mut facts, last } = self;
        for (key, ts) in last {
            if facts.is_open(key, ts) {
                facts.left_out_after.entry(key).or_default().push(ts);
            }
        }
        for after in facts.left_out_after.values_mut() {
            after.sort_unstable();
        }
        facts.samples.retain(|sample| *sample <= until);
        facts
    }
}

impl Facts {
    fn is_sample(&self, ts: i64) -> bool {
        self.samples.binary_search(&ts).is_ok()
    }

    fn samples_after(&self, ts: i64) -> &[i64] {
        &self.samples[self.samples.partition_point(|sample| *sample <= ts)..]
    }

    /// Start of the session after the one at a time.
    fn next_start(&self, ts: i64) -> Option<i64> {
        let next = self.starts.partition_point(|start| *start <= ts);
        self.starts.get(next).copied()
    }

    /// Whether a session has begun between two times.
    fn is_restarted(&self, from: i64, to: i64) -> bool {
        self.next_start(from).is_some_and(|start| start <= to)
    }

    /// Whether a process, of which this is the last row of a session, slept until the session was killed.
    fn is_open(&self, key: ProcessKey, ts: i64) -> bool {
        let next = self.next_start(ts).unwrap_or(i64::MAX);
        let later = self.samples_after(ts);
        let of_session = &later[..later.partition_point(|sample| *sample < next)];
        let is_recent = |last: &i64| last.saturating_sub(ts) <= PERIOD_US;
        !self.ends.contains_key(&key) && of_session.last().is_some_and(is_recent)
    }

    /// Whether rows were left out after one.
    fn is_followed(&self, key: ProcessKey, ts: i64) -> bool {
        let after = self.left_out_after.get(&key);
        after.is_some_and(|after| after.binary_search(&ts).is_ok())
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
        for (row, key) in keys.iter().enumerate() {
            let Some(key) = key.filter(|key| with_row.get(key) == Some(&row)) else {
                continue;
            };
            if !facts.is_followed(key, ts) {
                continue;
            }
            kept.push(number(row));
            known.push(Known {
                key,
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
            let has_ended = facts.ends.get(&process.key).is_some_and(|end| *end <= ts);
            if has_ended || is_restarted {
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
