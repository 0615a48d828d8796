//! How often operations of each kind were made, and quantiles of their durations.

use std::collections::BTreeMap;

use arrow::{
    array::{Array as _, AsArray as _, RecordBatch},
    compute::cast,
    datatypes::{DataType, Field, Float64Type},
};
use profiler_ebpf::histogram::{BUCKETS, lowest};

use super::{DerivedFigure, Figures};
use crate::analysis::{
    figure::Unit,
    rows::{Texts, numbers},
    stored_run::{StoredHost, StoredRun},
};

/// A query for a quantile.
macro_rules! quantile {
    ($share:literal, $name:literal) => {
        concat!(
            r"WITH counts AS (
  SELECT kind, unnest(range(len(buckets))) AS bucket, unnest(buckets) AS n FROM latency WHERE tid IS NULL
), sums AS (
  SELECT kind, bucket, sum(n) AS n FROM counts GROUP BY ALL
), ranks AS (
  SELECT kind, bucket, sum(n) OVER (PARTITION BY kind ORDER BY bucket) AS up_to,
    sum(n) OVER (PARTITION BY kind) AS total FROM sums
), longest AS (
  SELECT kind, max(max_ns) AS max_ns FROM latency WHERE tid IS NULL GROUP BY kind
)
SELECT kind, least(hist_middle(min(bucket) FILTER (up_to >= ",
            $share,
            " * total)), any_value(max_ns)) / 1e9 AS ",
            $name,
            " FROM ranks JOIN longest USING (kind) GROUP BY kind"
        )
    };
}

const RATE: DerivedFigure = DerivedFigure {
    name: "latency_per_s",
    unit: Unit::Named("per second"),
    help: "Operations per second of the sampled time, on all nodes",
    sql: "SELECT kind, sum(count) / (SELECT sum(interval_ns) / 1e9 / count(DISTINCT host) FROM system) \
          AS latency_per_s FROM latency WHERE tid IS NULL GROUP BY kind",
};

const MEDIAN: DerivedFigure = DerivedFigure {
    name: "latency_p50_s",
    unit: Unit::Seconds,
    help: "Median duration, within 12.5 %",
    sql: quantile!(0.50, "latency_p50_s"),
};

const P99: DerivedFigure = DerivedFigure {
    name: "latency_p99_s",
    unit: Unit::Seconds,
    help: "99th percentile of the durations, within 12.5 %",
    sql: quantile!(0.99, "latency_p99_s"),
};

pub(super) const ALL: [DerivedFigure; 3] = [RATE, MEDIAN, P99];

/// Durations of operations: counts by bucket, and the longest, ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    buckets: Vec<f64>,
    longest: f64,
}

impl Histogram {
    pub(super) fn add(&mut self, other: &Self) {
        let length = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(length, 0.0);
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
        self.longest = self.longest.max(other.longest);
    }

    /// A quantile, s; `None` without operations.
    fn quantile(&self, share: f64) -> Option<f64> {
        let total: f64 = self.buckets.iter().sum();
        let mut up_to = 0.0;
        let bucket = self.buckets.iter().position(|count| {
            up_to += count;
            up_to > 0.0 && up_to >= share * total
        })?;
        let least = lowest(bucket) as f64;
        let middle = if bucket + 1 < BUCKETS {
            f64::midpoint(least, lowest(bucket + 1) as f64)
        } else {
            least
        };
        Some(middle.min(self.longest) / 1e9)
    }
}

/// Histograms by kind.
pub(super) type Histograms = BTreeMap<String, Histogram>;

/// Reads the histograms of a host.
pub(super) fn read_histograms(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> Histograms {
    const COLUMNS: [&str; 4] = ["tid", "kind", "max_ns", "buckets"];
    let mut histograms = Histograms::new();
    let read = run.read("latency", host, &COLUMNS, |batch| {
        add_rows(batch, &mut histograms);
    });
    failures.extend(read.err().into_iter().flatten());
    histograms
}

fn add_rows(batch: &RecordBatch, histograms: &mut Histograms) {
    let kinds = Texts::of(batch, "kind");
    let [threads, longest] = ["tid", "max_ns"].map(|name| numbers(batch, name));
    let list = DataType::List(Field::new_list_field(DataType::Float64, true).into());
    let buckets = batch.column_by_name("buckets");
    let Some(buckets) = buckets.and_then(|buckets| cast(buckets, &list).ok()) else {
        return;
    };
    let buckets = buckets.as_list::<i32>();
    for row in 0..batch.num_rows() {
        let Some(kind) = kinds.get(row) else { continue };
        if !threads[row].is_nan() || buckets.is_null(row) {
            continue;
        }
        if !histograms.contains_key(kind) {
            histograms.insert(kind.to_owned(), Histogram::default());
        }
        let counts = buckets.value(row);
        let counts = counts.as_primitive::<Float64Type>().values();
        if let Some(sum) = histograms.get_mut(kind) {
            sum.add(&Histogram {
                buckets: counts.iter().take(BUCKETS).copied().collect(),
                longest: longest[row],
            });
        }
    }
}

/// Adds the figures of a kind. `seconds` is the sampled time.
pub(super) fn add_figures(histogram: &Histogram, seconds: Option<f64>, figures: &mut Figures) {
    let count = histogram.buckets.iter().sum::<f64>();
    let rate = seconds.map(|seconds| count / seconds);
    let values = [rate, histogram.quantile(0.5), histogram.quantile(0.99)];
    let known = ALL.into_iter().zip(values);
    let known = known.filter_map(|(figure, value)| Some((figure.name, value?)));
    figures.known.extend(known);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[f64], longest: f64) -> Histogram {
        let buckets = buckets.to_vec();
        Histogram { buckets, longest }
    }

    #[test]
    fn quantiles_are_middles_of_buckets() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        // From 64 to 80 and from 80 to 96 ns.
        let mut of_hosts = histogram(&[0.0, 50.0], 79.0);
        assert_eq!(of_hosts.quantile(0.99), Some(72e-9));
        of_hosts.add(&histogram(&[0.0, 0.0, 49.0], 95.0));
        assert_eq!(of_hosts.quantile(0.5), Some(72e-9));
        assert_eq!(of_hosts.quantile(0.99), Some(88e-9));
        of_hosts.add(&histogram(&[0.0, 0.0, 2.0], 86.0));
        assert_eq!(of_hosts.quantile(0.5), Some(88e-9));
        assert_eq!(histogram(&[0.0, 0.0, 1.0], 81.0).quantile(0.5), Some(81e-9));
    }
}
