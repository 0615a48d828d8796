//! Histograms over time: how long operations took.

use std::collections::BTreeMap;

use arrow::{
    array::{Array as _, AsArray as _, RecordBatch},
    compute::cast,
    datatypes::{DataType, Field, Float64Type},
};
use profiler_ebpf::histogram;

use crate::analysis::{
    rows::{Texts, numbers, times},
    series::Span,
    stored_run::{StoredHost, StoredRun},
};

/// Operations per second by kind, octave of the duration and interval.
pub type Latencies = BTreeMap<String, BTreeMap<u32, Vec<f64>>>;

/// Reads the histograms of a host.
pub fn read_latencies(run: &StoredRun, host: &StoredHost, span: &Span) -> Latencies {
    const COLUMNS: [&str; 5] = ["ts", "interval_ns", "tid", "kind", "buckets"];
    let mut latencies = Latencies::new();
    // What cannot be read is among the problems of the summary.
    let _ = run.read("latency", host, &COLUMNS, |batch| {
        add(batch, span, &mut latencies);
    });
    latencies
}

fn add(batch: &RecordBatch, span: &Span, latencies: &mut Latencies) {
    let kinds = Texts::of(batch, "kind");
    let (ends, lengths) = (times(batch, "ts"), numbers(batch, "interval_ns"));
    let threads = batch.column_by_name("tid");
    let list = DataType::List(Field::new_list_field(DataType::Float64, true).into());
    let buckets = batch.column_by_name("buckets");
    let Some(buckets) = buckets.and_then(|buckets| cast(buckets, &list).ok()) else {
        return;
    };
    let buckets = buckets.as_list::<i32>();
    for row in 0..batch.num_rows() {
        let of_thread = threads.is_some_and(|threads| !threads.is_null(row));
        let (Some(kind), Some(end)) = (kinds.get(row), ends[row]) else {
            continue;
        };
        if of_thread || buckets.is_null(row) {
            continue;
        }
        if !latencies.contains_key(kind) {
            latencies.insert(kind.to_owned(), BTreeMap::new());
        }
        let Some(octaves) = latencies.get_mut(kind) else {
            continue;
        };
        let counts = buckets.value(row);
        let counts = counts.as_primitive::<Float64Type>().values();
        for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            let octave = histogram::lowest(bucket).max(1).ilog2();
            let empty = || vec![0.0; span.intervals];
            spread(
                octaves.entry(octave).or_insert_with(empty),
                span,
                (end, lengths[row] / 1e9),
                *count,
            );
        }
    }
}

/// Adds operations to the intervals that the `seconds` until `end` cover.
fn spread(intervals: &mut [f64], span: &Span, (end, seconds): (i64, f64), count: f64) {
    let end = span.position(end);
    let begin = end - seconds.max(1e-9) / span.step();
    let length = end - begin;
    let limit = intervals.len();
    let (first, until) = (whole(begin, limit), whole(end.ceil(), limit));
    for (index, value) in intervals.iter_mut().enumerate().take(until).skip(first) {
        let covered = end.min(index as f64 + 1.0) - begin.max(index as f64);
        if covered > 0.0 {
            *value += count * covered / length / span.step();
        }
    }
}

/// A position as an index, within the limits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and the limit"
)]
fn whole(position: f64, limit: usize) -> usize {
    position.clamp(0.0, limit as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_spread_over_their_sample() {
        let span = Span {
            start: 0,
            end: 4_000_000,
            intervals: 4,
        };
        let mut intervals = vec![0.0; 4];
        spread(&mut intervals, &span, (3_000_000, 2.0), 10.0);
        assert_eq!(intervals, [0.0, 5.0, 5.0, 0.0]);
        spread(&mut intervals, &span, (1_000_000, 0.5), 1.0);
        assert_eq!(intervals, [1.0, 5.0, 5.0, 0.0]);
    }
}
