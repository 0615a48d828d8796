//! Rate limits on marks: token buckets per process, per user and for all users together.

use std::collections::HashMap;

/// A rate per second, and the size of a burst.
#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
}

const fn rate(per_second: f64, burst: f64) -> Rate {
    Rate { per_second, burst }
}

/// Marks per process.
const PROCESS: Rate = rate(5_000.0, 10_000.0);

/// Marks and bytes per user.
const USER: [Rate; 2] = [
    rate(10_000.0, 20_000.0),
    rate((256 << 10) as f64, (4 << 20) as f64),
];

/// Marks and bytes that each user may send regardless of the others.
const RESERVE: [Rate; 2] = [
    rate(500.0, 1_000.0),
    rate((16 << 10) as f64, (256 << 10) as f64),
];

/// Marks and bytes of all users beyond the reserve of each.
const ALL: [Rate; 2] = [
    rate(20_000.0, 40_000.0),
    rate((1 << 20) as f64, (16 << 20) as f64),
];

/// Maximum number of processes, and of users, with buckets of their own.
const SENDERS: usize = 4096;

/// When the table of senders is full, those idle for this long are removed, ns: by then their
/// buckets are full again.
const IDLE: u64 = 20_000_000_000;

/// Users without buckets of their own share those of this uid, which no user has.
const OTHERS: u32 = u32::MAX;

/// Minimum time of an attempt to send a mark, ns: a system call takes longer.
const ATTEMPT: u64 = 100;

/// The limit that a mark exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// Marks per second.
    Marks,
    /// Bytes per second.
    Bytes,
}

/// The token buckets of all senders.
#[derive(Debug)]
pub struct Rates {
    /// Start, ns since 1970: the clock of marks is the wall clock.
    since: i64,
    processes: Senders<Process>,
    users: Senders<User>,
    all: [Bucket; 2],
}

#[derive(Debug)]
struct Process {
    bucket: Bucket,
    /// Time of its last mark, ns since 1970.
    sent: i64,
}

#[derive(Debug)]
struct User {
    buckets: [Bucket; 2],
    reserve: [Bucket; 2],
}

impl Rates {
    /// Full buckets at `now`, ns of `CLOCK_MONOTONIC`; `since` is the same time by the wall clock.
    pub fn new(now: u64, since: i64) -> Self {
        Self {
            since,
            processes: Senders::new(),
            users: Senders::new(),
            all: ALL.map(|rate| Bucket::full(rate, now)),
        }
    }

    /// Takes the tokens for a mark of this size.
    ///
    /// # Errors
    ///
    /// If the mark exceeds a limit.
    pub fn take(
        &mut self,
        pid: u32,
        uid: u32,
        bytes: usize,
        now: u64,
    ) -> Result<(), LimitExceeded> {
        let full = || Process {
            bucket: Bucket::full(PROCESS, now),
            sent: self.since,
        };
        // A process without its own bucket is limited by that of its user.
        if let Some(process) = self.processes.get(pid, now, full)
            && !process.bucket.take(PROCESS, 1.0, now)
        {
            return Err(LimitExceeded::Marks);
        }
        let full = || User {
            buckets: USER.map(|rate| Bucket::full(rate, now)),
            reserve: RESERVE.map(|rate| Bucket::full(rate, now)),
        };
        let user = if self.users.get(uid, now, full).is_some() {
            uid
        } else {
            OTHERS
        };
        let user = self.users.of.entry(user).or_insert_with(full);
        let amounts = [1.0, bytes as f64];
        let errors = [LimitExceeded::Marks, LimitExceeded::Bytes];
        for index in [0, 1] {
            let (amount, error) = (amounts[index], errors[index]);
            if !user.buckets[index].take(USER[index], amount, now) {
                return Err(error);
            }
            if !user.reserve[index].take(RESERVE[index], amount, now)
                && !self.all[index].take(ALL[index], amount, now)
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Upper bound on the marks that a process has failed to send between its last mark and this
    /// one, sent at `sent`, ns since 1970.
    pub fn most_attempts(&mut self, pid: u32, sent: i64) -> u64 {
        let process = self.processes.of.get_mut(&pid);
        let last = process.map_or(self.since, |process| {
            std::mem::replace(&mut process.sent, sent)
        });
        u64::try_from(sent.saturating_sub(last)).unwrap_or(0) / ATTEMPT
    }
}

/// Up to [`SENDERS`] senders, by pid or uid.
#[derive(Debug)]
struct Senders<T> {
    of: HashMap<u32, T>,
    swept: u64,
}

trait LastUsed {
    fn last_used(&self) -> u64;
}

impl LastUsed for Process {
    fn last_used(&self) -> u64 {
        self.bucket.at
    }
}

impl LastUsed for User {
    fn last_used(&self) -> u64 {
        self.buckets[0].at
    }
}

impl<T: LastUsed> Senders<T> {
    fn new() -> Self {
        Self {
            of: HashMap::new(),
            swept: 0,
        }
    }

    /// The entry of a sender; `None` if it is new and the table is full.
    fn get(&mut self, id: u32, now: u64, new: impl FnOnce() -> T) -> Option<&mut T> {
        if self.of.len() >= SENDERS && !self.of.contains_key(&id) {
            // Rarely, because it visits all senders.
            if now.saturating_sub(self.swept) >= IDLE / 20 {
                self.swept = now;
                self.of
                    .retain(|_, sender| now.saturating_sub(sender.last_used()) < IDLE);
            }
            if self.of.len() >= SENDERS {
                return None;
            }
        }
        Some(self.of.entry(id).or_insert_with(new))
    }
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: u64,
}

impl Bucket {
    fn full(rate: Rate, now: u64) -> Self {
        Self {
            tokens: rate.burst,
            at: now,
        }
    }

    fn take(&mut self, rate: Rate, amount: f64, now: u64) -> bool {
        let since = now.saturating_sub(std::mem::replace(&mut self.at, now));
        self.tokens = (self.tokens + since as f64 / 1e9 * rate.per_second).min(rate.burst);
        let enough = self.tokens >= amount;
        if enough {
            self.tokens -= amount;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn taken(rates: &mut Rates, pid: u32, uid: u32, bytes: usize, now: u64) -> usize {
        (0..100_000)
            .filter(|_| rates.take(pid, uid, bytes, now).is_ok())
            .count()
    }

    #[test]
    fn rates_are_limited_per_process_per_user_and_in_total() {
        let mut rates = Rates::new(0, 0);
        assert_eq!(taken(&mut rates, 1, 1, 1, 0), 10_000);
        assert_eq!(taken(&mut rates, 1, 1, 1, SECOND / 10), 500);
        // The burst limits even a sender that was idle for long.
        let later = 100 * SECOND;
        assert_eq!(taken(&mut rates, 1, 1, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 2, 1, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 3, 1, 1, later), 0);
        // The reserve of a user does not count towards the limit of all users.
        assert_eq!(taken(&mut rates, 4, 2, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 5, 2, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 6, 3, 1, later), 1_000 + 2_000);
        // Other users still have their reserve.
        for uid in 4..10 {
            assert_eq!(taken(&mut rates, 10 + uid, uid, 1, later), 1_000);
        }
    }

    #[test]
    fn bytes_are_limited() {
        let mut rates = Rates::new(0, 0);
        assert_eq!(taken(&mut rates, 1, 1, 8192, 0), 512);
        assert_eq!(taken(&mut rates, 2, 1, 8192, SECOND), 32);
        // Refused marks count, too: these two processes have no tokens left.
        assert_eq!(rates.take(2, 1, 8192, SECOND), Err(LimitExceeded::Marks));
        assert_eq!(rates.take(9, 1, 8192, SECOND), Err(LimitExceeded::Bytes));
        // A second user has the same limit; all users together are limited as well.
        assert_eq!(taken(&mut rates, 3, 2, 8192, SECOND), 512);
        for uid in 3..20 {
            taken(&mut rates, 10 + uid, uid, 8192, SECOND);
        }
        assert_eq!(taken(&mut rates, 40, 40, 8192, SECOND), 32);
    }

    #[test]
    fn the_number_of_senders_is_bounded() {
        let mut rates = Rates::new(0, 0);
        for sender in 0..100_000 {
            let now = u64::from(sender) * SECOND / 1000;
            let _ = rates.take(sender, sender, 100, now);
            let (processes, users) = (rates.processes.of.len(), rates.users.of.len());
            assert!(processes <= SENDERS && users <= SENDERS + 1, "{sender}");
        }
        // Known senders keep their buckets.
        assert_eq!(rates.take(99_999, 99_999, 100, 101 * SECOND), Ok(()));
    }

    #[test]
    fn reported_drops_are_bounded_by_the_elapsed_time() {
        let mut rates = Rates::new(0, 1_000_000);
        let _ = rates.take(1, 1, 1, SECOND);
        assert_eq!(rates.most_attempts(1, 2_000_000), 10_000);
        assert_eq!(rates.most_attempts(1, 2_005_000), 50);
        // The clock was set back.
        assert_eq!(rates.most_attempts(1, 1_005_000), 0);
        assert_eq!(rates.most_attempts(2, 2_000_000), 10_000);
    }
}
