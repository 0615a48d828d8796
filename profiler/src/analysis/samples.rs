//! The values of each reading, for formats with samples.

use std::collections::BTreeMap;

use super::{
    figure::{Figure, OverTime},
    scan::Collect,
};

/// Values of a reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time that it covers, s.
    pub seconds: f64,
    /// In the order of the figures; NaN for null.
    pub values: Vec<f64>,
}

/// Samples of a group by time, µs since 1970-01-01 UTC.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub BTreeMap<i64, Sample>);

impl Collect for Samples {
    fn add(&mut self, figures: &[Figure], _group: &str, at: (i64, f64), values: &[(usize, f64)]) {
        let sample = self.0.entry(at.0).or_insert_with(|| Sample {
            seconds: at.1,
            values: vec![f64::NAN; figures.len()],
        });
        // Some tables have rows only at every tenth reading, for example.
        sample.seconds = sample.seconds.min(at.1);
        for &(index, value) in values {
            sample.values[index] = value;
        }
    }
}

impl Sample {
    /// Adds the sample that follows: increases are added up, other values averaged.
    pub fn append(&mut self, figures: &[Figure], next: &Self) {
        let seconds = self.seconds + next.seconds;
        self.values.resize(figures.len(), f64::NAN);
        for ((value, next_value), figure) in self.values.iter_mut().zip(&next.values).zip(figures) {
            *value = match figure.over_time {
                _ if value.is_nan() => *next_value,
                _ if next_value.is_nan() => *value,
                OverTime::Sum => *value + next_value,
                _ => (*value * self.seconds + next_value * next.seconds) / seconds,
            };
        }
        self.seconds = seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::catalog::NODE;

    #[test]
    fn appended_samples_are_added_up_or_averaged() {
        let index = |name: &str| NODE.iter().position(|figure| figure.name == name);
        let mean = index("cpu_avg_utilization_pct").expect("declared");
        let sum = index("total_disk_io_read_mb").expect("declared");
        let mut samples = Samples::default();
        samples.add(NODE, "", (1, 1.0), &[(mean, 10.0), (sum, 5.0)]);
        samples.add(NODE, "", (2, 3.0), &[(mean, 50.0)]);
        let mut all = Sample::default();
        for sample in samples.0.values() {
            all.append(NODE, sample);
        }
        assert_eq!((all.values[mean], all.values[sum]), (40.0, 5.0));
        assert!((all.seconds - 4.0).abs() < 1e-9);
    }
}
