//! Tables from which rows of sleeping processes are left out, with a row of each process at every
//! sample.

use std::collections::HashMap;

use arrow::{
    array::{RecordBatch, UInt32Array},
    compute::{concat_batches, take_record_batch},
    datatypes::SchemaRef,
    error::ArrowError,
};

use super::rows::{ProcessKey, processes, times};
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

/// What other tables tell; times are µs since 1970-01-01 UTC.
pub struct Facts {
    /// Times of all samples in their order; without any, those of the rows.
    pub samples: Vec<i64>,
    /// Ends of processes.
    pub ends: HashMap<ProcessKey, i64>,
    /// Starts of sessions in their order.
    pub starts: Vec<i64>,
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
