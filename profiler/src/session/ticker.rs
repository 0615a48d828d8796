//! Ticks at absolute times on `CLOCK_MONOTONIC`: a late tick does not shift later ones.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::read,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::io::unix::AsyncFd;

use super::readiness::readable;
use crate::support::clock::{monotonic_ns, timer_ns};

/// A timer of the kernel (`timerfd_create(2)`).
pub struct Ticker {
    timer: AsyncFd<OwnedFd>,
    start: u64,
    interval: u64,
    count: u64,
    /// Deadlines for each tick.
    backoff: u64,
    /// Deadlines that have passed since the last tick.
    skipped: u64,
}

/// A tick, with the missed ticks before it.
#[derive(Clone, Copy, Debug)]
pub struct Expiration {
    /// Deadlines that have passed: 1 if no tick was missed.
    pub passed: u64,
    /// Time since the last of them, ns.
    pub late_ns: u64,
}

impl Ticker {
    /// Ticks at `start` + n × `interval`, n ≥ 1.
    pub fn new(start: u64, interval: Duration) -> io::Result<Self> {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let times = Itimerspec {
            it_interval: timespec(interval),
            it_value: timespec(timer_ns(start + interval)),
        };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &times)?;
        let timer = readable(timer)?;
        Ok(Self {
            timer,
            start,
            interval,
            count: 0,
            backoff: 1,
            skipped: 0,
        })
    }

    /// Ticks only at every `backoff`-th deadline.
    pub fn backoff(&mut self, backoff: u64) {
        self.backoff = backoff.max(1);
    }

    /// Waits for the next deadline.
    pub async fn next(&mut self) -> io::Result<Expiration> {
        loop {
            let mut guard = self.timer.readable().await?;
            // Not readable any more.
            let Ok(passed) = guard.try_io(|timer| expirations(timer.get_ref())) else {
                continue;
            };
            let passed = passed?;
            self.count += passed;
            self.skipped += passed;
            if self.skipped < self.backoff {
                continue;
            }
            let passed = std::mem::take(&mut self.skipped);
            let deadline = self.start + self.count * self.interval;
            return Ok(Expiration {
                passed,
                late_ns: monotonic_ns().saturating_sub(deadline),
            });
        }
    }

    /// The deadlines that have passed since [`Ticker::next`] returned, as a tick that is due.
    pub fn expired(mut self) -> io::Result<Option<Expiration>> {
        let read = self.count - self.skipped;
        let passed = self.pending()?;
        let deadline = self.start + (read + passed) * self.interval;
        Ok((passed != 0).then(|| Expiration {
            passed,
            late_ns: monotonic_ns().saturating_sub(deadline),
        }))
    }

    /// Deadlines that have passed since [`Ticker::next`] returned.
    pub fn pending(&mut self) -> io::Result<u64> {
        let skipped = std::mem::take(&mut self.skipped);
        match expirations(self.timer.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(skipped),
            passed => Ok(passed? + skipped),
        }
    }
}

/// Deadlines since the last read; `WouldBlock` when there is none.
fn expirations(timer: &OwnedFd) -> io::Result<u64> {
    let mut passed = [0; 8];
    read(timer, &mut passed)?;
    Ok(u64::from_ne_bytes(passed))
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    }
}
