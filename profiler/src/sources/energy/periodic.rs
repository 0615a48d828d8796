//! Work beside the loop: what takes long, and what is due more often than ticks are.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::privileges;

/// A thread that works until this is dropped. Nobody waits for it then: a driver may never answer.
pub(super) struct PeriodicTask {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl PeriodicTask {
    /// Works at once, and then again and again; what is late is not made up.
    pub(super) fn every(
        period: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            privileges::keep_for_sampling(&[]);
            let mut due = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    work();
                    due = (due + period).max(Instant::now());
                } else {
                    thread::park_timeout(left);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("energy".to_owned())
            .spawn(run)?
            .thread()
            .clone();
        Ok(Self { stop, thread })
    }
}

impl Drop for PeriodicTask {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    #[test]
    fn it_works_until_it_is_dropped() {
        let (sender, worked) = channel();
        let repeated = PeriodicTask::every(Duration::from_millis(5), move || {
            let _ = sender.send(());
        })
        .expect("a thread");
        for _ in 0..3 {
            worked
                .recv_timeout(Duration::from_secs(10))
                .expect("it works");
        }
        drop(repeated);
        // Its end of the channel goes with the thread.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            if worked.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
        panic!("it works on");
    }
}
