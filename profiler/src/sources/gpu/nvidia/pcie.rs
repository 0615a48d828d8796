//! Bytes over PCIe, from a counter that may be narrower than what the link carries in an interval.

use super::fields::Value;

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Direction {
    before: Option<Value>,
}

impl Direction {
    /// What was added. `fastest` is the link's, bytes per second; `rate` the mean that another counter tells.
    pub(super) fn advance(
        &mut self,
        now: Option<Value>,
        interval_ns: u64,
        fastest: Option<f64>,
        rate: Option<f64>,
    ) -> Option<u64> {
        const WRAP: f64 = 4_294_967_296.0;
        let seconds = interval_ns as f64 / 1e9;
        let before = std::mem::replace(&mut self.before, now);
        let by_rate = || {
            let bytes = (rate? * seconds).round();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the cast saturates, and rates are not negative"
            )]
            Some(bytes as u64)
        };
        match (before, now) {
            (Some(Value::Wide(before)), Some(Value::Wide(now))) => now.checked_sub(before),
            (Some(Value::Narrow(before)), Some(Value::Narrow(now)))
                if fastest.is_some_and(|fastest| fastest * seconds < WRAP) =>
            {
                Some(now.wrapping_sub(before).into())
            }
            _ => by_rate(),
        }
    }
}

/// What a link carries at most, bytes per second: before any overhead of packets.
pub(super) fn fastest(generation: u32, width: u32) -> Option<f64> {
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
    fn a_narrow_counter_counts_only_what_cannot_have_wrapped_unseen() {
        let fourth = fastest(4, 16);
        let mut tx = Direction::default();
        let narrow = |value| Some(Value::Narrow(value));
        assert_eq!(tx.advance(narrow(u32::MAX), 100 * MS, fourth, None), None);
        assert_eq!(tx.advance(narrow(9), 100 * MS, fourth, None), Some(10));
        // 31.5 GB/s for 200 ms are more than 2^32 bytes.
        assert_eq!(tx.advance(narrow(20), 200 * MS, fourth, None), None);
        let rate = Some(5e9);
        let counted = tx.advance(narrow(30), 1000 * MS, fourth, rate);
        assert_eq!(counted, Some(5_000_000_000), "by its rate");
        assert_eq!(tx.advance(narrow(40), 100 * MS, None, None), None);
        assert_eq!(tx.advance(None, 100 * MS, fourth, None), None);
        assert_eq!(tx.advance(narrow(40), 100 * MS, fourth, None), None);
    }

    #[test]
    fn a_wide_counter_that_falls_was_reset() {
        let mut rx = Direction::default();
        let wide = |value| Some(Value::Wide(value));
        assert_eq!(rx.advance(wide(7), 1, None, None), None);
        assert_eq!(
            rx.advance(wide(1 << 40), 1, None, None),
            Some((1 << 40) - 7)
        );
        assert_eq!(rx.advance(wide(5), 1, None, None), None);
        assert_eq!(fastest(9, 16), None);
    }
}
