//! Properties of all histograms.

use e2e::{
    histogram::bounds,
    rows::{Row, sum},
};

/// Asserts that each operation is in one bucket and that the total time is consistent with the
/// buckets.
#[track_caller]
pub fn check_latency(rows: &[Row], kind: &str, ops: u64) {
    let mut rows = rows.to_vec();
    rows.retain(|row| row.text("kind") == Some(kind));
    assert_eq!(sum(&rows, "count"), ops, "{kind}");
    for row in rows {
        let buckets = row.list("buckets").expect("a histogram");
        assert_eq!(
            buckets.iter().sum::<u64>(),
            row.u64("count").expect("count")
        );
        let (least, most) = bounds(buckets);
        let total = row.u64("sum_ns").expect("a sum");
        assert!((least..=most).contains(&total), "{row:?}");
    }
}
