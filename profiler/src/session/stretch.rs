//! Longer intervals if reading the processes from `/proc` costs too much.

use std::time::Duration;

use crate::support::units::format_ns;

/// Largest share of a core for reading the processes: one part of this many.
const SHARE: u64 = 20;

/// Largest factor.
const FACTOR_MAX: u64 = 1024;

/// The factor by which intervals are longer than requested, a power of two.
#[derive(Debug)]
pub struct Stretch {
    interval_ns: u64,
    factor: u64,
    /// Largest factor that was reported.
    reported: u64,
}

impl Stretch {
    /// Intervals as requested.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval_ns: u64::try_from(interval.as_nanos())
                .unwrap_or(u64::MAX)
                .max(1),
            factor: 1,
            reported: 1,
        }
    }

    /// The factor after a reading that cost this much CPU time.
    pub fn update(&mut self, cpu_ns: u64) -> u64 {
        let needed = cpu_ns.saturating_mul(SHARE).div_ceil(self.interval_ns);
        let needed = needed.clamp(1, FACTOR_MAX).next_power_of_two();
        // A reading that is a little cheaper does not shorten the interval again.
        if needed > self.factor || needed < self.factor / 2 {
            self.factor = needed;
        }
        self.factor
    }

    /// A message when the factor is larger than ever before.
    pub fn report(&mut self, processes: usize, cpu_ns: u64) -> Option<String> {
        (self.factor > self.reported).then(|| {
            self.reported = self.factor;
            format!(
                "reading {processes} processes from /proc takes {} of CPU time: samples every {} \
                 instead of {}",
                format_ns(cpu_ns),
                format_ns(self.interval_ns.saturating_mul(self.factor)),
                format_ns(self.interval_ns),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_take_at_most_a_twentieth_of_a_core() {
        let mut stretch = Stretch::new(Duration::from_millis(100));
        assert_eq!(stretch.update(5_000_000), 1);
        assert_eq!(stretch.report(10, 5_000_000), None);
        assert_eq!(stretch.update(6_000_000), 2);
        let text = stretch.report(10, 6_000_000).expect("a message");
        assert!(
            text.contains("every 200.0 ms instead of 100.0 ms"),
            "{text}"
        );
        assert_eq!(stretch.report(10, 6_000_000), None);
        // 80 ms are a twentieth of 1.6 s.
        assert_eq!(stretch.update(80_000_000), 16);
        assert_eq!(stretch.update(40_000_000), 16);
        assert_eq!(stretch.update(20_000_000), 4);
        assert_eq!(stretch.update(u64::MAX), 1024);
    }
}
