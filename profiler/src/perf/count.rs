//! Counts of an event, summed over threads, CPUs or instances of a PMU.

use super::open_group::Increase;

/// Adds an increase of a group to the counts of its events, which have these indices.
pub(super) fn add_increase(
    counts: &mut [Option<Count>],
    indices: &[usize],
    increase: &Increase<'_>,
) {
    for (index, raw) in indices.iter().zip(increase.counts) {
        let count = counts[*index].get_or_insert_default();
        count.add(*raw, increase.enabled, increase.running);
    }
}

/// Count of an event, with the times for which it was enabled and running.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// Unscaled count.
    pub raw: u64,
    /// Time for which it was enabled, summed over counters, ns.
    pub enabled: u64,
    /// Time for which it was on a counter, summed over counters, ns.
    pub running: u64,
    /// Sum of the scaled counts of counters with `running` above 0.
    scaled: f64,
    /// Enabled time of these counters, ns.
    counted: u64,
}

impl Count {
    /// Adds the increase of one counter.
    pub fn add(&mut self, raw: u64, enabled: u64, running: u64) {
        self.raw += raw;
        self.enabled += enabled;
        self.running += running;
        if running != 0 {
            // Each counter is scaled separately, because the ratios can differ.
            self.scaled += raw as f64 * (enabled as f64 / running as f64);
            self.counted += enabled;
        }
    }

    /// Adds another count of the same event.
    pub fn add_count(&mut self, other: &Self) {
        self.raw += other.raw;
        self.enabled += other.enabled;
        self.running += other.running;
        self.scaled += other.scaled;
        self.counted += other.counted;
    }

    /// The count scaled to the enabled time; `None` if the event was enabled and never on a
    /// counter.
    pub fn value(&self) -> Option<f64> {
        if self.enabled == 0 {
            // No thread was running.
            return Some(self.raw as f64);
        }
        (self.counted != 0).then(|| self.scaled * (self.enabled as f64 / self.counted as f64))
    }

    /// Ratio of running to enabled time; `None` if no thread was running.
    pub fn quality(&self) -> Option<f64> {
        (self.enabled != 0).then(|| self.running as f64 / self.enabled as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(parts: &[(u64, u64, u64)]) -> Count {
        let mut count = Count::default();
        for &(raw, enabled, running) in parts {
            count.add(raw, enabled, running);
        }
        count
    }

    #[test]
    fn counts_are_scaled_to_the_enabled_time() {
        assert_eq!(count(&[(100, 50, 50)]).value(), Some(100.0));
        assert_eq!(count(&[(100, 50, 25)]).value(), Some(200.0));
        // A thread that was counted for half of the time, and one for all of it.
        let two = count(&[(100, 10, 5), (100, 10, 10)]);
        assert_eq!((two.value(), two.quality()), (Some(300.0), Some(0.75)));
        assert_eq!(two.raw, 200);
        // A thread that was never counted is assumed to be like the other.
        assert_eq!(count(&[(100, 10, 10), (0, 10, 0)]).value(), Some(200.0));
    }

    #[test]
    fn never_counted_is_null_and_never_enabled_is_zero() {
        let never = count(&[(0, 10, 0)]);
        assert_eq!((never.value(), never.quality()), (None, Some(0.0)));
        assert_eq!(count(&[]).value(), Some(0.0));
        assert_eq!(count(&[]).quality(), None);
    }

    #[test]
    fn addition_is_associative() {
        let parts = [(100, 10, 5), (100, 10, 10), (0, 10, 0)];
        let mut sum = Count::default();
        for part in parts {
            sum.add_count(&count(&[part]));
        }
        assert_eq!(sum, count(&parts));
    }
}
