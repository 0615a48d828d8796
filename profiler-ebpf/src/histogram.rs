//! Histograms of durations.

/// Number of log2 buckets: bucket i counts durations in [2^i, 2^(i+1)) ns. The last bucket is
/// open-ended; 2^39 ns are 9 minutes.
pub const BUCKETS: usize = 40;

shared! {
    /// Log2 histogram of durations, with their sum and the largest of each reading.
    #[derive(PartialEq, Eq)]
    pub struct Histogram {
        /// Sum of all durations, ns.
        pub sum: u64,
        /// [`EpochMax`] of the last reading in which there was a duration.
        pub peak: u64,
        /// [`EpochMax`] of the reading before that one.
        pub previous_peak: u64,
        /// Number of durations in each bucket.
        pub buckets: [u64; BUCKETS],
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Histogram {
    /// No durations.
    pub const EMPTY: Self = Self {
        sum: 0,
        peak: 0,
        previous_peak: 0,
        buckets: [0; BUCKETS],
    };

    /// Largest duration of reading `epoch`, ns; 0 if there was none.
    #[inline(always)]
    pub fn max_in(&self, epoch: u32) -> u64 {
        if EpochMax(self.peak).is_of(epoch) {
            EpochMax(self.peak).ns()
        } else if EpochMax(self.previous_peak).is_of(epoch) {
            EpochMax(self.previous_peak).ns()
        } else {
            0
        }
    }
}

/// The largest duration of a reading, in one word, so that it can be replaced atomically: the low
/// 16 bits of the reading's number above 48 bits of ns (78 hours).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochMax(pub u64);

impl EpochMax {
    const BITS: u32 = 48;

    /// A duration of reading `epoch`; longer ones are cut to 48 bits.
    #[inline(always)]
    pub fn new(epoch: u32, ns: u64) -> Self {
        let most = (1 << Self::BITS) - 1;
        let ns = if ns < most { ns } else { most };
        Self(u64::from(epoch) << Self::BITS | ns)
    }

    /// Whether it belongs to reading `epoch`.
    #[inline(always)]
    pub fn is_of(self, epoch: u32) -> bool {
        self.0 >> Self::BITS == u64::from(epoch & 0xffff)
    }

    /// The duration, ns.
    #[inline(always)]
    pub fn ns(self) -> u64 {
        self.0 & ((1 << Self::BITS) - 1)
    }
}
