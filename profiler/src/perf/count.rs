//! Counts of one event, of however many threads, CPUs or instances.

/// What was counted, and for how much of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// As the counters had it.
    pub raw: u64,
    /// Time that it was wanted, ns.
    pub enabled: u64,
    /// Time that it was on a counter, ns.
    pub running: u64,
    /// Scaled to the time wanted, of those parts that were on a counter at all.
    scaled: f64,
    /// The time wanted of those parts.
    known: u64,
}

impl Count {
    /// Adds what one counter said.
    pub fn add(&mut self, raw: u64, enabled: u64, running: u64) {
        self.raw += raw;
        self.enabled += enabled;
        self.running += running;
        if running != 0 {
            // Each for itself: they may have had different shares of the time.
            self.scaled += raw as f64 * (enabled as f64 / running as f64);
            self.known += enabled;
        }
    }

    /// Adds another's.
    pub fn add_count(&mut self, other: &Self) {
        self.raw += other.raw;
        self.enabled += other.enabled;
        self.running += other.running;
        self.scaled += other.scaled;
        self.known += other.known;
    }

    /// The count for the whole time that it was wanted, by the share of it that was counted; null when none was.
    pub fn value(&self) -> Option<f64> {
        if self.enabled == 0 {
            // Nobody ran.
            return Some(self.raw as f64);
        }
        (self.known != 0).then(|| self.scaled * (self.enabled as f64 / self.known as f64))
    }

    /// The share of the time that it was on a counter; null when nobody ran.
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
    fn a_share_of_the_time_stands_for_all_of_it() {
        assert_eq!(count(&[(100, 50, 50)]).value(), Some(100.0));
        assert_eq!(count(&[(100, 50, 25)]).value(), Some(200.0));
        // A thread that was counted half of the time, and one that was counted always.
        let two = count(&[(100, 10, 5), (100, 10, 10)]);
        assert_eq!((two.value(), two.quality()), (Some(300.0), Some(0.75)));
        assert_eq!(two.raw, 200);
        // Of one nothing is known: it is taken to be like the other.
        assert_eq!(count(&[(100, 10, 10), (0, 10, 0)]).value(), Some(200.0));
    }

    #[test]
    fn what_was_never_counted_is_null_and_who_never_ran_is_zero() {
        let never = count(&[(0, 10, 0)]);
        assert_eq!((never.value(), never.quality()), (None, Some(0.0)));
        assert_eq!(count(&[]).value(), Some(0.0));
        assert_eq!(count(&[]).quality(), None);
    }

    #[test]
    fn sums_of_sums_are_sums() {
        let parts = [(100, 10, 5), (100, 10, 10), (0, 10, 0)];
        let mut sum = Count::default();
        for part in parts {
            sum.add_count(&count(&[part]));
        }
        assert_eq!(sum, count(&parts));
    }
}
