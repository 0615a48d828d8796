//! Figures over time, reduced to as many intervals as a plot has room for: the minimum, maximum and
//! mean of each, so that no peak disappears.

use std::collections::BTreeMap;

/// The time of a plot, divided into intervals of equal length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// µs since 1970-01-01 UTC.
    pub start: i64,
    pub end: i64,
    /// Number of intervals.
    pub intervals: usize,
}

/// Values in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub min: f64,
    pub max: f64,
    /// Sum of values times seconds.
    integral: f64,
    seconds: f64,
}

/// A figure over time; intervals without a value are gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Series(Vec<Interval>);

impl Span {
    /// Seconds of one interval.
    pub fn step(&self) -> f64 {
        (self.end - self.start) as f64 / 1e6 / self.intervals as f64
    }

    /// Position of a time, in intervals.
    pub fn position(&self, ts: i64) -> f64 {
        (ts - self.start) as f64 / 1e6 / self.step()
    }
}

impl Interval {
    const EMPTY: Self = Self {
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        integral: 0.0,
        seconds: 0.0,
    };

    /// Mean over time; `None` for a gap.
    pub fn mean(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.integral / self.seconds)
    }
}

impl Series {
    /// Without values.
    pub fn new(span: &Span) -> Self {
        Self(vec![Interval::EMPTY; span.intervals])
    }

    /// Adds the value of the `seconds` until `ts`.
    pub fn add(&mut self, span: &Span, ts: i64, seconds: f64, value: f64) {
        let end = span.position(ts);
        let begin = end - seconds / span.step();
        let last = span.intervals - 1;
        if end < 0.0 || begin > span.intervals as f64 {
            return;
        }
        // A reading at a boundary belongs to the interval before it.
        let (first, until) = (
            clamped(begin.floor(), last),
            clamped(end.ceil() - 1.0, last),
        );
        for index in first..=until.max(first) {
            let interval = &mut self.0[index];
            let covered = end.min(index as f64 + 1.0) - begin.max(index as f64);
            let covered = covered.max(0.0) * span.step();
            interval.min = interval.min.min(value);
            interval.max = interval.max.max(value);
            interval.integral += value * covered.max(1e-9);
            interval.seconds += covered.max(1e-9);
        }
    }

    /// Adds values of 0 for the time in which another figure has values and this one has none.
    pub fn fill(&mut self, known: &Self) {
        for (own, known) in self.0.iter_mut().zip(&known.0) {
            if own.seconds < known.seconds {
                own.seconds = known.seconds;
                own.min = own.min.min(0.0);
                own.max = own.max.max(0.0);
            }
        }
    }

    /// All intervals.
    pub fn intervals(&self) -> &[Interval] {
        &self.0
    }

    /// Means of all intervals.
    pub fn means(&self) -> Vec<Option<f64>> {
        self.0.iter().map(Interval::mean).collect()
    }

    /// The mean over the time with values.
    pub fn mean(&self) -> Option<f64> {
        let integral: f64 = self.0.iter().map(|interval| interval.integral).sum();
        let seconds: f64 = self.0.iter().map(|interval| interval.seconds).sum();
        (seconds > 0.0).then(|| integral / seconds)
    }

    /// The largest value.
    pub fn max(&self) -> Option<f64> {
        let values = self.0.iter().filter(|interval| interval.seconds > 0.0);
        values.map(|interval| interval.max).reduce(f64::max)
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|interval| interval.seconds == 0.0)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the range of the index"
)]
fn clamped(position: f64, last: usize) -> usize {
    position.clamp(0.0, last as f64) as usize
}

/// Sums of the means of several hosts: a host that has ended is absent, not 0.
pub fn summed(series: &[&Series]) -> Vec<Option<f64>> {
    combined(series, |values| values.iter().sum())
}

/// Means over several hosts.
pub fn averaged(series: &[&Series]) -> Vec<Option<f64>> {
    combined(series, |values| {
        values.iter().sum::<f64>() / values.len() as f64
    })
}

fn combined(series: &[&Series], combine: impl Fn(&[f64]) -> f64) -> Vec<Option<f64>> {
    let length = series.first().map_or(0, |series| series.0.len());
    (0..length)
        .map(|index| {
            let values = series.iter().filter_map(|series| series.0[index].mean());
            let values: Vec<f64> = values.collect();
            (!values.is_empty()).then(|| combine(&values))
        })
        .collect()
}

/// Series by name of a group.
pub type Named = BTreeMap<String, Series>;

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span {
        start: 10_000_000,
        end: 20_000_000,
        intervals: 10,
    };

    #[test]
    fn long_samples_fill_the_intervals_that_they_cover() {
        let mut series = Series::new(&SPAN);
        series.add(&SPAN, 13_000_000, 2.0, 5.0);
        series.add(&SPAN, 13_500_000, 0.5, 9.0);
        let means = series.means();
        assert_eq!(means[0], None);
        assert_eq!((means[1], means[2]), (Some(5.0), Some(5.0)));
        assert_eq!(means[3], Some(9.0));
        assert_eq!(means[4], None);
    }

    #[test]
    fn peaks_of_short_samples_remain() {
        let mut series = Series::new(&SPAN);
        for number in 1..=10 {
            let value = if number == 4 { 100.0 } else { 1.0 };
            series.add(&SPAN, 10_000_000 + number * 100_000, 0.1, value);
        }
        let interval = series.intervals()[0];
        assert_eq!((interval.min, interval.max), (1.0, 100.0));
        let mean = interval.mean().unwrap();
        assert!((mean - 10.9).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn time_without_operations_counts() {
        let (mut series, mut sampled) = (Series::new(&SPAN), Series::new(&SPAN));
        series.add(&SPAN, 11_500_000, 0.25, 8.0);
        sampled.add(&SPAN, 13_000_000, 2.0, 1.0);
        series.fill(&sampled);
        assert_eq!(series.means()[..4], [None, Some(2.0), Some(0.0), None]);
        let interval = series.intervals()[1];
        assert_eq!((interval.min, interval.max), (0.0, 8.0));
    }

    #[test]
    fn an_ended_host_is_absent() {
        let (mut a, mut b) = (Series::new(&SPAN), Series::new(&SPAN));
        a.add(&SPAN, 12_000_000, 2.0, 1.0);
        b.add(&SPAN, 11_000_000, 1.0, 3.0);
        assert_eq!(summed(&[&a, &b])[..3], [Some(4.0), Some(1.0), None]);
        assert_eq!(averaged(&[&a, &b])[..3], [Some(2.0), Some(1.0), None]);
    }

    #[test]
    fn samples_outside_the_span_do_no_harm() {
        let mut series = Series::new(&SPAN);
        series.add(&SPAN, 0, 1.0, 1.0);
        series.add(&SPAN, i64::MAX / 2, 1.0, 1.0);
        assert!(series.is_empty());
        series.add(&SPAN, 12_000_000, 0.0, 2.0);
        assert_eq!(series.means()[2], Some(2.0));
    }
}
