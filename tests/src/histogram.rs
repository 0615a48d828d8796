//! Buckets of histograms, computed independently of the profiler.

/// Number of buckets.
pub const BUCKETS: usize = 137;

/// Durations of a bucket, ns: from the first one to below the second.
pub fn edges(bucket: usize) -> (u64, u64) {
    let edge = |bucket: usize| {
        if bucket == 0 {
            return 0;
        }
        let octave = 64_u64 << ((bucket - 1) / 4);
        octave + octave / 4 * ((bucket - 1) % 4) as u64
    };
    match bucket + 1 {
        BUCKETS => (edge(bucket), u64::MAX),
        next => (edge(bucket), edge(next)),
    }
}

/// Least and greatest possible sum of the durations in a histogram, ns.
pub fn bounds(counts: &[u64]) -> (u64, u64) {
    let bound = |limit: fn((u64, u64)) -> u64| {
        let each = counts.iter().enumerate();
        each.map(|(bucket, count)| count * limit(edges(bucket)))
            .sum()
    };
    (bound(|(first, _)| first), bound(|(_, end)| end - 1))
}
