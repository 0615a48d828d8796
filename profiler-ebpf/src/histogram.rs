//! Histograms of durations.

/// Number of buckets. The first counts durations below 64 ns. Then each octave has four buckets of
/// equal width, so that the middle of a bucket is within 12.5 % of its durations. The last bucket is
/// open-ended, from 16 minutes.
pub const BUCKETS: usize = 137;

/// The first octave with buckets of its own begins at 2 to this power, ns.
const FIRST_OCTAVE: u32 = 6;

shared! {
    /// Histogram of durations, with their sum and the largest of each reading.
    ///
    /// A reading copies the buckets first, and a duration is added to them last: whatever is in a
    /// bucket is also in the sum.
    #[derive(PartialEq, Eq)]
    pub struct Histogram {
        /// Number of durations in each bucket.
        pub buckets: [u64; BUCKETS],
        /// Sum of all durations, ns.
        pub sum: u64,
        /// [`EpochMax`] of the last reading in which there was a duration.
        pub peak: u64,
        /// [`EpochMax`] of the reading before that one.
        pub previous_peak: u64,
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
        buckets: [0; BUCKETS],
        sum: 0,
        peak: 0,
        previous_peak: 0,
    };

    /// Whether there are no durations. Only those in the first bucket can be 0.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.buckets[0] | self.sum == 0
    }

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

/// Index of the bucket that counts `ns`.
#[expect(clippy::cast_possible_truncation, reason = "below BUCKETS")]
#[inline(always)]
pub fn bucket(ns: u64) -> usize {
    let octave = log2(ns);
    if octave < FIRST_OCTAVE {
        return 0;
    }
    let quarter = (ns >> (octave - 2)) & 3;
    let bucket = limited((u64::from(octave - FIRST_OCTAVE) << 2 | quarter) + 1);
    if bucket < BUCKETS as u64 {
        bucket as usize
    } else {
        BUCKETS - 1
    }
}

/// The bucket, at most 255: with an instruction that the compiler cannot remove, because the verifier
/// of Linux 6.1 does not derive a limit from the ones before it.
#[cfg(target_arch = "bpf")]
#[inline(always)]
fn limited(mut bucket: u64) -> u64 {
    // SAFETY: arithmetic.
    unsafe {
        core::arch::asm!("{0} &= 255", inout(reg) bucket, options(pure, nomem, nostack));
    }
    bucket
}

#[cfg(not(target_arch = "bpf"))]
fn limited(bucket: u64) -> u64 {
    bucket & 255
}

/// Least duration of a bucket, ns.
#[inline(always)]
pub fn lowest(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        _ => (4 + (bucket as u64 - 1) % 4) << ((bucket - 1) / 4 + FIRST_OCTAVE as usize - 2),
    }
}

/// Index of the highest bit that is set; 0 without any. BPF has no instruction for it, and the verifier
/// follows both sides of each branch: three halvings leave a byte, whose index is looked up.
#[inline(always)]
fn log2(value: u64) -> u32 {
    let mut rest = value;
    let mut log = 0;
    macro_rules! halve {
        ($($bits:literal)*) => {$(
            if rest >> $bits != 0 {
                rest >>= $bits;
                log += $bits;
            }
        )*};
    }
    halve!(32 16 8);
    log + u32::from(LOG2[(rest & 255) as usize])
}

static LOG2: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 2;
    while byte < 256 {
        table[byte] = table[byte / 2] + 1;
        byte += 1;
    }
    table
};

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
