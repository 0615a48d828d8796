//! Rows of sleeping processes that were left out, before they are reduced: the gauges of a process
//! count for all of its time.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Bound,
    sync::Arc,
};

use arrow::{
    array::{AsArray as _, RecordBatch},
    compute::concat_batches,
    datatypes::{TimestampMicrosecondType, UInt64Type},
};

use super::{
    super::{check::places, sort::SortKey},
    INTERVAL, TS,
};
use crate::{
    output::dataset::sparse::{FilledRow, Part, fill},
    schema::Sparse,
};

/// Times of the samples of each run of a host, µs since 1970-01-01 UTC.
#[derive(Default)]
pub struct Samples(BTreeMap<String, BTreeSet<i64>>);

impl Samples {
    /// Adds a row of a run.
    pub fn add(&mut self, run: &str, ts: i64) {
        match self.0.get_mut(run) {
            Some(times) => {
                times.insert(ts);
            }
            None => {
                self.0.insert(run.to_owned(), BTreeSet::from([ts]));
            }
        }
    }
}

/// Fills rows that are sorted by series and time.
pub struct Filler {
    sparse: Sparse,
    series: Arc<SortKey>,
    samples: Samples,
    /// The row before.
    last: Option<RecordBatch>,
}

impl Filler {
    /// `series` are the columns of a series.
    pub fn new(sparse: &Sparse, series: Arc<SortKey>, samples: Samples) -> Self {
        Self {
            // Sums remain as they are.
            sparse: Sparse {
                asleep: None,
                occasional: sparse.occasional,
            },
            series,
            samples,
            last: None,
        }
    }

    /// The next rows, with those before them that were left out.
    ///
    /// # Errors
    ///
    /// When the rows have other columns.
    pub fn fill(&mut self, batch: &RecordBatch) -> io::Result<RecordBatch> {
        let known = self.last.take();
        let first = usize::from(known.is_some());
        let all = concat_batches(&batch.schema(), known.iter().chain([batch]));
        let all = all.map_err(io::Error::other)?;
        let column = |name: &str| {
            let column = all.column_by_name(name);
            column.ok_or_else(|| io::Error::other(format!("no column {name}")))
        };
        let ts = column(TS)?.as_primitive::<TimestampMicrosecondType>();
        let interval = column(INTERVAL)?.as_primitive::<UInt64Type>();
        let (series, places) = (self.series.of(&all)?, places(&all)?);
        let number = |row: usize| u32::try_from(row).map_err(io::Error::other);
        let mut rows = Vec::with_capacity(all.num_rows());
        for row in first..all.num_rows() {
            let at = ts.value(row);
            let us = i64::try_from(interval.value(row) / 1000).unwrap_or(i64::MAX);
            let mut from = at.saturating_sub(us);
            // The gauges of the first row of a file are as in the one before it, which is not there.
            let mut of = row;
            if row > 0 && series.row(row - 1).data() == series.row(row).data() {
                (of, from) = (row - 1, from.max(ts.value(row - 1)));
            }
            let samples = self.samples.0.get(&places.of(row).1);
            let bounds = (Bound::Excluded(from), Bound::Excluded(at));
            let mut filled_ns = 0;
            let missing = samples.filter(|_| from < at).into_iter();
            for &sample in missing.flat_map(|samples| samples.range(bounds)) {
                let interval_ns = sample.abs_diff(from).saturating_mul(1000);
                let part = Part::Asleep {
                    ts: sample,
                    interval_ns,
                };
                rows.push(FilledRow {
                    of: number(of)?,
                    part,
                });
                filled_ns += interval_ns;
                from = sample;
            }
            rows.push(FilledRow {
                of: number(row)?,
                part: Part::Stored { filled_ns },
            });
        }
        self.last = all.num_rows().checked_sub(1).map(|last| all.slice(last, 1));
        fill(&all, &self.sparse, &rows).map_err(io::Error::other)
    }
}
