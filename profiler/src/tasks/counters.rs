//! Increases and sums of the counters of tasks.

use profiler_ebpf::{
    histogram::{BUCKETS, Histogram, bucket, lowest},
    record::Totals,
};

use crate::schema::Buckets;

/// User and system time of a process or thread.
///
/// Time on CPU is exact, and is split in the ratio sampled by the timer interrupt. Neither part
/// ever decreases. This is the algorithm of `cputime_adjust` in kernel/sched/cputime.c, and yields
/// the values of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// User time, ns.
    pub user: u64,
    /// System time, ns.
    pub system: u64,
}

impl CpuTime {
    /// Updates the times from `totals` and returns the increases.
    #[must_use]
    pub fn advance(&mut self, totals: &Totals) -> Self {
        let before = *self;
        let exact = totals.oncpu;
        if self.user + self.system < exact {
            let sampled = u128::from(totals.utime) + u128::from(totals.stime);
            let share = if totals.stime == 0 {
                0
            } else if totals.utime == 0 {
                exact
            } else {
                let scaled = u128::from(totals.stime) * u128::from(exact) / sampled;
                u64::try_from(scaled).unwrap_or(exact)
            };
            self.system = share.max(self.system);
            self.user = exact.saturating_sub(self.system);
            if self.user < before.user {
                self.user = before.user;
                self.system = exact - self.user;
            }
        }
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
        }
    }
}

/// Increase of a latency histogram over an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Number of values.
    pub count: u64,
    /// Their sum, ns.
    pub sum: u64,
    /// Largest value, ns.
    pub max: u64,
    /// Their distribution over the buckets of [`Histogram`].
    pub buckets: Buckets,
}

impl Latency {
    /// Adds another increase.
    pub fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.sum += more.sum;
        self.max = self.max.max(more.max);
        let (buckets, more) = (&mut self.buckets.0, &more.buckets.0);
        buckets.resize(buckets.len().max(more.len()), 0);
        for (sum, count) in buckets.iter_mut().zip(more) {
            *sum += count;
        }
    }
}

/// Adds an increase, if there is one.
pub fn add_latency(sum: &mut Option<Latency>, more: Option<&Latency>) {
    match (sum, more) {
        (Some(sum), Some(more)) => sum.add(more),
        (sum @ None, Some(more)) => *sum = Some(more.clone()),
        (_, None) => {}
    }
}

/// Sum of the histograms of several threads.
#[derive(Clone, Debug, Default)]
pub struct LatencySum {
    sum: u64,
    max: u64,
    /// All [`BUCKETS`]; none before the first value: most processes of a node do not run.
    buckets: Vec<u64>,
}

impl LatencySum {
    /// No values. Keeps its memory.
    pub fn clear(&mut self) {
        (self.sum, self.max) = (0, 0);
        self.buckets.fill(0);
    }

    fn buckets(&mut self) -> &mut [u64] {
        self.buckets.resize(BUCKETS, 0);
        &mut self.buckets
    }

    /// Adds the histogram of a live thread, with the maximum of the interval before reading
    /// `epoch`.
    pub fn add(&mut self, histogram: &Histogram, epoch: u32) {
        self.sum = self.sum.wrapping_add(histogram.sum);
        self.max = self.max.max(histogram.max_in(epoch.wrapping_sub(1)));
        for (sum, count) in self.buckets().iter_mut().zip(&histogram.buckets) {
            *sum = sum.wrapping_add(*count);
        }
    }

    /// Adds the histogram of an ended thread or process, which may have ended during reading
    /// `epoch`.
    pub fn add_ended(&mut self, histogram: &Histogram, epoch: u32) {
        self.max = self.max.max(histogram.max_in(epoch));
        self.add(histogram, epoch);
    }

    /// Adds a duration that is not in a histogram yet. Its maximum counts where it is new.
    pub fn add_one(&mut self, ns: u64, is_new: bool) {
        self.sum = self.sum.wrapping_add(ns);
        self.buckets()[bucket(ns)] += 1;
        if is_new {
            self.max = self.max.max(ns);
        }
    }

    /// Raises `self` to `now` and returns the increase, if there is one.
    ///
    /// A value that is added during a reading can be in the sum and not in its bucket, or vice
    /// versa. The buckets take precedence: sum and maximum are limited to the range that the
    /// buckets allow, the sum also by the maximum, and the rest of the sum is part of the next
    /// increase.
    pub fn advance(&mut self, now: &Self) -> Option<Latency> {
        if now.buckets.is_empty() {
            return None;
        }
        self.raise(now.sum, now.max, &now.buckets)
    }

    /// As [`Self::advance`], to a single histogram, which may have ended during reading `epoch`.
    pub fn advance_to(&mut self, now: &Histogram, epoch: u32) -> Option<Latency> {
        let max = now.max_in(epoch).max(now.max_in(epoch.wrapping_sub(1)));
        self.raise(now.sum, max, &now.buckets)
    }

    fn raise(&mut self, now_sum: u64, now_max: u64, now_buckets: &[u64]) -> Option<Latency> {
        let mut buckets = [0; BUCKETS];
        let (mut least, mut most) = (0_u64, 0_u64);
        let published = self.buckets();
        for (bucket, increase) in buckets.iter_mut().enumerate() {
            let (published, now) = (&mut published[bucket], now_buckets[bucket]);
            *increase = now.saturating_sub(*published);
            *published = (*published).max(now);
            least = least.saturating_add(increase.saturating_mul(lowest(bucket)));
            most = most.saturating_add(increase.saturating_mul(highest(bucket)));
        }
        let last = buckets.iter().rposition(|count| *count != 0)?;
        let others = least.saturating_sub(lowest(last));
        let mut sum = now_sum.saturating_sub(self.sum);
        if sum < least || sum > most {
            // The maximum, if it is that of the last bucket, limits the sum more closely.
            if (lowest(last)..=highest(last)).contains(&now_max) {
                least = others.saturating_add(now_max);
                most = buckets[last].saturating_mul(now_max);
                for (bucket, increase) in buckets[..last].iter().enumerate() {
                    most = most.saturating_add(increase.saturating_mul(highest(bucket)));
                }
            }
            sum = sum.clamp(least, most);
        }
        self.sum = self.sum.saturating_add(sum);
        let count: u64 = buckets.iter().sum();
        // At least the mean, and at most the sum without the least values of the others.
        let max = now_max.min(highest(last)).min(sum - others);
        Some(Latency {
            count,
            sum,
            max: max.max(lowest(last)).max(sum.div_ceil(count)),
            buckets: Buckets(buckets[..=last].to_vec()),
        })
    }
}

/// Greatest value in a bucket.
fn highest(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        u64::MAX
    } else {
        lowest(bucket + 1) - 1
    }
}

#[cfg(test)]
mod tests {
    use profiler_ebpf::histogram::EpochMax;

    use super::*;

    #[test]
    fn cpu_time_is_split_as_in_the_kernel() {
        let mut time = CpuTime::default();
        let totals = Totals {
            utime: 3_000,
            stime: 1_000,
            oncpu: 8_000,
            ..Totals::default()
        };
        let first = time.advance(&totals);
        assert_eq!((first.user, first.system), (6_000, 2_000));
        // All later timer samples were in user mode: system time must not decrease.
        let totals = Totals {
            utime: 9_000,
            stime: 1_000,
            oncpu: 8_500,
            ..Totals::default()
        };
        let second = time.advance(&totals);
        assert_eq!((second.user, second.system), (500, 0));
        // No new time on CPU.
        let third = time.advance(&Totals {
            utime: 9_000,
            stime: 9_000,
            oncpu: 8_500,
            ..totals
        });
        assert_eq!((third.user, third.system), (0, 0));
    }

    #[test]
    fn counters_never_decrease() {
        let mut published = Totals::default();
        let mut sum = 0;
        for oncpu in [10, 4, 12, 12, 30] {
            let now = Totals {
                oncpu,
                ..Totals::default()
            };
            sum += published.advance(&now).oncpu;
        }
        assert_eq!(sum, 30);
    }

    #[test]
    fn buckets_are_quarters_of_octaves() {
        assert_eq!([0, 1, 63].map(bucket), [0; 3]);
        assert_eq!([64, 79, 80, 112, 127, 128].map(bucket), [1, 1, 2, 4, 4, 5]);
        for index in 0..BUCKETS {
            assert_eq!(bucket(lowest(index)), index);
            assert_eq!(bucket(highest(index)), index);
        }
        // The middle is within 12.5 % of all durations.
        for index in 1..BUCKETS - 1 {
            let (lowest, highest) = (lowest(index), highest(index));
            assert!((highest - lowest) * 4 < lowest, "{lowest}..={highest}");
        }
        assert_eq!(lowest(BUCKETS - 1), 7 << 37);
    }

    #[test]
    fn latency_increase() {
        let mut histogram = Histogram::EMPTY;
        let mut published = LatencySum::default();
        assert_eq!(published.advance(&LatencySum::default()), None);
        histogram.buckets[3] = 2;
        histogram.sum = 200;
        histogram.peak = EpochMax::new(4, 103).0;
        let mut now = LatencySum::default();
        now.add(&histogram, 5);
        let latency = published.advance(&now).expect("two values");
        assert_eq!((latency.count, latency.sum, latency.max), (2, 200, 103));
        assert_eq!(latency.buckets, Buckets(vec![0, 0, 0, 2]));
        assert_eq!(published.advance(&now), None);
    }

    /// The maximum can belong to a value that is not in its bucket yet.
    #[test]
    fn maximum_is_limited_by_the_buckets() {
        let mut published = LatencySum::default();
        let mut now = LatencySum {
            sum: 82_740,
            max: 114_590,
            ..LatencySum::default()
        };
        let (long, short, middle) = (bucket(82_740), bucket(5), bucket(100));
        assert_eq!(bucket(114_590), long + 1);
        now.buckets()[long] = 1;
        let latency = published.advance(&now).expect("a value");
        assert_eq!((latency.sum, latency.max), (82_740, 82_740));
        now.sum += 114_590 + 5;
        now.buckets()[long + 1] += 1;
        now.buckets()[short] += 1;
        let latency = published.advance(&now).expect("two values");
        assert_eq!((latency.sum, latency.max), (114_595, 114_590));
        // An outdated maximum, less than the mean.
        now.sum += 200;
        now.max = 60;
        now.buckets()[middle] += 2;
        let latency = published.advance(&now).expect("two values");
        assert_eq!((latency.sum, latency.max), (200, 100));
    }

    #[test]
    fn partially_added_values_are_not_lost() {
        let mut published = LatencySum::default();
        // In the sum, not in its bucket.
        let mut now = LatencySum {
            sum: 100,
            ..LatencySum::default()
        };
        assert_eq!(published.advance(&now), None);
        now.buckets()[3] = 1;
        let latency = published.advance(&now).expect("a value");
        assert_eq!((latency.count, latency.sum), (1, 100));
        // In its bucket, not in the sum: counted with the least value of the bucket for now.
        now.buckets()[3] = 2;
        let latency = published.advance(&now).expect("a value");
        assert_eq!((latency.count, latency.sum), (1, 96));
        now.sum = 100 + 110 + 105;
        now.buckets()[3] = 3;
        let latency = published.advance(&now).expect("a value");
        assert_eq!((latency.count, latency.sum), (1, 111));
    }

    /// The first use of a connection in an interval is often during the reading.
    #[test]
    fn values_are_exact_if_one_of_them_is_added_during_the_reading() {
        let mut published = LatencySum::default();
        let mut now = LatencySum {
            sum: 100 + 97,
            max: 100,
            ..LatencySum::default()
        };
        now.buckets()[3] = 1;
        let latency = published.advance(&now).expect("a value");
        assert_eq!((latency.count, latency.sum, latency.max), (1, 100, 100));
        now.max = 97;
        now.buckets()[3] = 2;
        let latency = published.advance(&now).expect("a value");
        assert_eq!((latency.count, latency.sum, latency.max), (1, 97, 97));
        // In the last bucket, which has no end.
        now.max = 1 << 41;
        now.buckets()[BUCKETS - 1] = 2;
        let latency = published.advance(&now).expect("two values");
        assert_eq!(latency.sum, (1 << 41) + lowest(BUCKETS - 1));
    }
}
