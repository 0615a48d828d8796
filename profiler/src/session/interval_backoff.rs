//! Longer intervals if samples cost too much.

use std::time::Duration;

use crate::support::units::format_ns;

/// Largest share of a core for reading the processes from `/proc`: one part of this many.
const READING_SHARE: u64 = 20;

/// Largest share of a core for the samples of a client of the service: one part of this many.
const CLIENT_SHARE: u64 = 10;

/// Samples of a client whose mean cost counts: this many, and for at least this time in ns; fewer if
/// they cost this CPU time in ns.
const SAMPLES: u64 = 4;
const PERIOD_NS: u64 = 1_000_000_000;
const PERIOD_CPU_NS: u64 = 400_000_000;

/// Largest factor.
const FACTOR_MAX: u64 = 1024;

/// The factor by which intervals are longer than requested, a power of two.
#[derive(Debug)]
pub struct IntervalBackoff {
    interval_ns: u64,
    factor: u64,
    /// Largest factor that was reported.
    reported: u64,
}

/// The costs that lengthen the intervals of a session.
#[derive(Debug)]
pub enum Budget {
    /// Of reading the processes, if that needs `/proc`.
    Reading(IntervalBackoff),
    /// Of samples, for a client of the service.
    Client(ClientBackoff),
}

impl IntervalBackoff {
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
        self.limit(cpu_ns, READING_SHARE)
    }

    fn limit(&mut self, cpu_ns: u64, share: u64) -> u64 {
        let needed = cpu_ns.saturating_mul(share).div_ceil(self.interval_ns);
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

/// The factor for a client of the service, by the mean cost of its samples.
#[derive(Debug)]
pub struct ClientBackoff {
    backoff: IntervalBackoff,
    /// Of the present period.
    samples: u64,
    cpu_ns: u64,
}

impl ClientBackoff {
    /// Intervals as requested.
    pub fn new(interval: Duration) -> Self {
        Self {
            backoff: IntervalBackoff::new(interval),
            samples: 0,
            cpu_ns: 0,
        }
    }

    /// The factor after a sample that cost this much CPU time.
    pub fn update(&mut self, cpu_ns: u64) -> u64 {
        self.samples += 1;
        self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
        let passed = self.samples.saturating_mul(self.interval_ns());
        let is_complete = self.samples >= SAMPLES && passed >= PERIOD_NS;
        if is_complete || self.cpu_ns >= PERIOD_CPU_NS {
            self.backoff.limit(self.cpu_ns / self.samples, CLIENT_SHARE);
            (self.samples, self.cpu_ns) = (0, 0);
        }
        self.backoff.factor
    }

    /// The present interval, ns.
    pub fn interval_ns(&self) -> u64 {
        self.backoff.interval_ns.saturating_mul(self.backoff.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_take_at_most_a_twentieth_of_a_core() {
        let mut backoff = IntervalBackoff::new(Duration::from_millis(100));
        assert_eq!(backoff.update(5_000_000), 1);
        assert_eq!(backoff.report(10, 5_000_000), None);
        assert_eq!(backoff.update(6_000_000), 2);
        let text = backoff.report(10, 6_000_000).expect("a message");
        assert!(
            text.contains("every 200.0 ms instead of 100.0 ms"),
            "{text}"
        );
        assert_eq!(backoff.report(10, 6_000_000), None);
        // 80 ms are a twentieth of 1.6 s.
        assert_eq!(backoff.update(80_000_000), 16);
        assert_eq!(backoff.update(40_000_000), 16);
        assert_eq!(backoff.update(20_000_000), 4);
        assert_eq!(backoff.update(u64::MAX), 1024);
    }

    #[test]
    fn samples_of_a_client_take_at_most_a_tenth_of_a_core_on_average() {
        let interval = Duration::from_millis(100);
        let mut backoff = ClientBackoff::new(interval);
        // One of ten samples is expensive.
        for sample in 0..100 {
            let cpu_ns = if sample % 10 == 0 {
                50_000_000
            } else {
                1_000_000
            };
            assert_eq!(backoff.update(cpu_ns), 1);
        }
        // After a second.
        let factors: Vec<_> = (0..10).map(|_| backoff.update(15_000_000)).collect();
        assert_eq!(factors, [&[1; 9][..], &[2]].concat());
        assert_eq!(backoff.interval_ns(), 200_000_000);
        // At once: 500 ms are a tenth of 5 s.
        assert_eq!(backoff.update(500_000_000), 64);
        assert_eq!((0..4).map(|_| backoff.update(1)).last(), Some(1));
    }
}
