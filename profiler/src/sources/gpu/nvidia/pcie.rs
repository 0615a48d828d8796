//! Bytes over PCIe, from a counter that may wrap several times in an interval.

use super::fields::Value;
use crate::support::delta::Range;

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Direction {
    before: Option<Value>,
}

impl Direction {
    /// Increase in the interval. `capacity` is that of the link, and `rate` the mean rate of
    /// another counter, in bytes per second.
    pub(super) fn advance(
        &mut self,
        now: Option<Value>,
        interval_ns: u64,
        capacity: Option<f64>,
        rate: Option<f64>,
    ) -> Option<u64> {
        let seconds = interval_ns as f64 / 1e9;
        let bytes = |rate: f64| whole(rate * seconds);
        let before = std::mem::replace(&mut self.before, now);
        let counted = match (before, now) {
            (Some(Value::Wide(before)), Some(Value::Wide(now))) => {
                return Range::Unlimited.increase(before, now, u64::MAX);
            }
            (Some(Value::Narrow(before)), Some(Value::Narrow(now))) => capacity
                .and_then(|rate| Range::BITS_32.increase(before.into(), now.into(), bytes(rate))),
            _ => None,
        };
        counted.or_else(|| rate.map(bytes))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and rates are not negative"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

/// Capacity of a link without the overhead of packets, bytes per second.
pub(super) fn capacity(generation: u32, width: u32) -> Option<f64> {
    let lane = match generation {
        1 => 0.25e9,
        2 => 0.5e9,
        3 => 0.985e9,
        4 => 1.97e9,
        5 => 3.94e9,
        6 => 8.0e9,
        _ => return None,
    };
    Some(lane * f64::from(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_narrow_counter_is_used_if_it_wraps_at_most_once() {
        let link = capacity(4, 16);
        let mut tx = Direction::default();
        let narrow = |value| Some(Value::Narrow(value));
        assert_eq!(tx.advance(narrow(u32::MAX), 100 * MS, link, None), None);
        assert_eq!(tx.advance(narrow(9), 100 * MS, link, None), Some(10));
        // 31.5 GB/s for 200 ms are more than 2^32 bytes.
        assert_eq!(tx.advance(narrow(20), 200 * MS, link, None), None);
        let rate = Some(5e9);
        let counted = tx.advance(narrow(30), 1000 * MS, link, rate);
        assert_eq!(counted, Some(5_000_000_000), "by its rate");
        assert_eq!(tx.advance(narrow(40), 100 * MS, None, None), None);
        assert_eq!(tx.advance(None, 100 * MS, link, None), None);
        assert_eq!(tx.advance(narrow(40), 100 * MS, link, None), None);
    }

    #[test]
    fn a_decrease_of_a_wide_counter_is_a_reset() {
        let mut rx = Direction::default();
        let wide = |value| Some(Value::Wide(value));
        assert_eq!(rx.advance(wide(7), 1, None, None), None);
        assert_eq!(
            rx.advance(wide(1 << 40), 1, None, None),
            Some((1 << 40) - 7)
        );
        assert_eq!(rx.advance(wide(5), 1, None, None), None);
        assert_eq!(capacity(9, 16), None);
    }
}
