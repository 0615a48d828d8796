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
            let samples = self.samples.0.get(&places.of(row).1);
            let us = i64::try_from(interval.value(row) / 1000).unwrap_or(i64::MAX);
            // The gauges of the first row of a file are as in the one before it, which is not there.
            let (mut of, mut from) = (row, at.saturating_sub(us));
            if row > 0 && series.row(row - 1).data() == series.row(row).data() {
                // The interval of an ended process ends before its `ts`, after the sample before.
                let before = samples.and_then(|samples| samples.range(..at).next_back());
                let end = before.map_or(at, |before| *before);
                let last = ts.value(row - 1);
                let is_lost = end.saturating_sub(us) > last;
                (of, from) = (row - 1, if is_lost { at } else { last });
            }
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::{
        array::{
            Array as _, ArrayRef, StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
        },
        datatypes::{DataType, Field, Schema},
    };

    use super::*;

    /// Rows of two processes: pid, second, seconds, gauge, counter.
    fn batch(rows: &[(u32, i64, u64, u64, u64)]) -> RecordBatch {
        let kind = |name: &str, data_type: DataType, kind: &str| {
            let metadata = HashMap::from([("kind".to_owned(), kind.to_owned())]);
            Field::new(name, data_type, true).with_metadata(metadata)
        };
        let ts: TimestampMicrosecondArray =
            rows.iter().map(|row| Some(row.1 * 1_000_000)).collect();
        let numbers = |of: fn(&(u32, i64, u64, u64, u64)) -> u64| -> ArrayRef {
            Arc::new(
                rows.iter()
                    .map(|row| Some(of(row)))
                    .collect::<UInt64Array>(),
            )
        };
        let texts =
            |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text; rows.len()])) };
        let columns: [(Field, ArrayRef); 7] = [
            (kind(TS, ts.data_type().clone(), "label"), Arc::new(ts)),
            (
                kind(INTERVAL, DataType::UInt64, "gauge"),
                numbers(|row| row.2 * 1_000_000_000),
            ),
            (
                kind("pid", DataType::UInt32, "label"),
                Arc::new(rows.iter().map(|row| Some(row.0)).collect::<UInt32Array>()),
            ),
            (kind("rss", DataType::UInt64, "gauge"), numbers(|row| row.3)),
            (
                kind("count", DataType::UInt64, "counter"),
                numbers(|row| row.4),
            ),
            (kind("run", DataType::Utf8, "label"), texts("r")),
            (kind("host", DataType::Utf8, "label"), texts("h")),
        ];
        let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
    }

    #[test]
    fn gauges_count_until_the_next_row_and_counters_once() {
        let sparse = Sparse {
            asleep: Some("count"),
            occasional: &[],
        };
        let mut samples = Samples::default();
        (1..=6).for_each(|second| samples.add("r", second * 1_000_000));
        let rows = [
            batch(&[(1, 1, 1, 10, 7), (1, 4, 3, 20, 8)]),
            // The first row of this one is not in the file.
            // Before the last one, rows are lost.
            batch(&[(1, 5, 1, 30, 9), (2, 3, 4, 40, 5), (2, 6, 1, 50, 6)]),
        ];
        let series = SortKey::new(&rows[0].schema(), &["pid", "run", "host"]).unwrap();
        let mut filler = Filler::new(&sparse, Arc::new(series), samples);
        let mut found = Vec::new();
        for batch in &rows {
            let filled = filler.fill(batch).unwrap();
            let ts = filled.column(0).as_primitive::<TimestampMicrosecondType>();
            let number = |column: usize, row: usize| {
                filled
                    .column(column)
                    .as_primitive::<UInt64Type>()
                    .value(row)
            };
            found.extend((0..filled.num_rows()).map(|row| {
                let seconds = number(1, row) / 1_000_000_000;
                (
                    ts.value(row) / 1_000_000,
                    seconds,
                    number(3, row),
                    number(4, row),
                )
            }));
        }
        let expected = [
            (1, 1, 10, 7),
            (2, 1, 10, 0),
            (3, 1, 10, 0),
            (4, 1, 20, 8),
            (5, 1, 30, 9),
            (1, 2, 40, 0),
            (2, 1, 40, 0),
            (3, 1, 40, 5),
            (6, 1, 50, 6),
        ];
        assert_eq!(found, expected);
    }
}
