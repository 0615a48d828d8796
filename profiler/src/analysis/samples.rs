//! The values of each reading, for formats with samples.

use std::collections::{BTreeMap, HashMap};

use super::{
    figure::{Figure, OverTime},
    scan::{Collect, OfReading},
};

/// Values of a reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time that its first value covers, s. Tables can have rows at times of their own, and rows of
    /// processes cover the time since the last mark.
    pub seconds: f64,
    /// In the order of the figures; NaN for null.
    pub values: Vec<f64>,
}

/// Numbers of the values in a sample, by number of the figure and group.
pub type Places = HashMap<(usize, String), Vec<usize>>;

/// Samples by time, µs since 1970-01-01 UTC.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    pub by_time: BTreeMap<i64, Sample>,
    /// Others do not count.
    places: Places,
    /// Number of values.
    width: usize,
}

impl Samples {
    /// None yet, of `width` values.
    pub fn new(places: Places, width: usize) -> Self {
        Self {
            by_time: BTreeMap::new(),
            places,
            width,
        }
    }

    /// Adds the values of others of the same width.
    pub fn merge(&mut self, others: Self) {
        for (ts, other) in others.by_time {
            let Some(own) = self.by_time.get_mut(&ts) else {
                self.by_time.insert(ts, other);
                continue;
            };
            if own.values[0].is_nan() {
                own.seconds = other.seconds;
            }
            let known = other.values.iter().enumerate();
            for (place, value) in known.filter(|(_, value)| !value.is_nan()) {
                own.values[place] = *value;
            }
        }
    }
}

impl Collect for Samples {
    fn add(&mut self, _figures: &[Figure], group: &str, at: (i64, f64), values: &[OfReading]) {
        let sample = self.by_time.entry(at.0).or_insert_with(|| Sample {
            seconds: at.1,
            values: vec![f64::NAN; self.width],
        });
        for &OfReading { index, value, .. } in values {
            let places = self.places.get(&(index, group.to_owned()));
            for &place in places.into_iter().flatten() {
                sample.values[place] = value;
                if place == 0 {
                    sample.seconds = at.1;
                }
            }
        }
    }
}

impl Sample {
    /// Adds what was read since the sample before at other times: increases are added up, other values
    /// kept if this sample has none.
    pub fn include(&mut self, over_time: &[OverTime], earlier: &[f64]) {
        for ((value, earlier), over_time) in self.values.iter_mut().zip(earlier).zip(over_time) {
            if value.is_nan() {
                *value = *earlier;
            } else if *over_time == OverTime::Sum && !earlier.is_nan() {
                *value += earlier;
            }
        }
    }

    /// Adds the sample that follows: counters are summed, gauges time-averaged. `over_time` has an
    /// entry for each value.
    pub fn append(&mut self, over_time: &[OverTime], next: &Self) {
        let seconds = self.seconds + next.seconds;
        self.values.resize(over_time.len(), f64::NAN);
        let values = self.values.iter_mut().zip(&next.values);
        for ((value, next_value), over_time) in values.zip(over_time) {
            *value = match over_time {
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
    use crate::analysis::{catalog::NODE, figure::Coverage};

    #[test]
    fn appended_samples_are_added_up_or_averaged() {
        let index = |name: &str| NODE.iter().position(|figure| figure.name == name);
        let mean = index("node_cpu_utilization_percent").expect("declared");
        let sum = index("node_disk_read_bytes").expect("declared");
        let places = [
            ((mean, String::new()), vec![0]),
            ((sum, String::new()), vec![1]),
        ];
        let of = |index, value| OfReading {
            index,
            value,
            rows: Coverage::default(),
        };
        let mut samples = Samples::new(places.into(), 2);
        samples.add(NODE, "", (1, 1.0), &[of(mean, 10.0), of(sum, 5.0)]);
        samples.add(NODE, "", (2, 3.0), &[of(mean, 50.0)]);
        samples.add(NODE, "another", (2, 3.0), &[of(mean, 70.0)]);
        let mut others = Samples::new(Places::new(), 2);
        others.add(NODE, "", (3, 1.0), &[]);
        samples.merge(others);
        let mut all = Sample::default();
        for sample in samples.by_time.values() {
            all.append(&[OverTime::Mean, OverTime::Sum], sample);
        }
        assert_eq!(all.values, [40.0, 5.0]);
        assert!((all.seconds - 5.0).abs() < 1e-9);
        all.include(&[OverTime::Mean, OverTime::Sum], &[20.0, 2.0]);
        assert_eq!(all.values, [40.0, 7.0]);
        let mut without = Sample {
            seconds: 1.0,
            values: vec![f64::NAN; 2],
        };
        without.include(&[OverTime::Mean, OverTime::Sum], &[20.0, 2.0]);
        assert_eq!(without.values, [20.0, 2.0]);
    }
}
