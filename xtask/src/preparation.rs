//! Time spent on building and installing, which `cargo xtask test` reports for each tier.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

thread_local! {
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static IS_TIMED: Cell<bool> = const { Cell::new(false) };
}

/// Counts the time of `work`, once if it is nested.
pub fn timed<T>(work: impl FnOnce() -> T) -> T {
    if IS_TIMED.replace(true) {
        return work();
    }
    let begin = Instant::now();
    let result = work();
    IS_TIMED.set(false);
    SPENT.set(SPENT.get() + begin.elapsed());
    result
}

/// The time of this thread since the last call.
pub fn take() -> Duration {
    SPENT.take()
}

#[cfg(test)]
mod tests {
    use std::{thread::sleep, time::Duration};

    use super::{take, timed};

    #[test]
    fn nested_work_counts_once() {
        let step = Duration::from_millis(20);
        let spent = timed(|| {
            timed(|| sleep(step));
            sleep(step);
            take()
        });
        assert_eq!(spent, Duration::ZERO);
        let total = take();
        assert!(total >= 2 * step, "{total:?}");
        assert_eq!(take(), Duration::ZERO);
    }
}
