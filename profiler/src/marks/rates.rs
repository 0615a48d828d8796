//! How fast marks may come: token buckets of processes, of users and of all together.

use std::collections::HashMap;

/// A rate per second, and how much of it may come at once.
#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
}

const fn rate(per_second: f64, burst: f64) -> Rate {
    Rate { per_second, burst }
}

/// Marks of a process.
const PROCESS: Rate = rate(5_000.0, 10_000.0);

/// Marks and bytes of a user.
const USER: [Rate; 2] = [
    rate(10_000.0, 20_000.0),
    rate((256 << 10) as f64, (4 << 20) as f64),
];

/// Marks and bytes of a user that do not depend on what others send.
const RESERVE: [Rate; 2] = [
    rate(500.0, 1_000.0),
    rate((16 << 10) as f64, (256 << 10) as f64),
];

/// Marks and bytes of all users beyond the reserve of each.
const ALL: [Rate; 2] = [
    rate(20_000.0, 40_000.0),
    rate((1 << 20) as f64, (16 << 20) as f64),
];

/// Processes, and users, that are remembered.
const SENDERS: usize = 4096;

/// Those that have not sent for so long are forgotten when there is no room, ns: their buckets are full again.
const IDLE: u64 = 20_000_000_000;

/// Who is not remembered shares the buckets of this user, who does not exist.
const OTHERS: u32 = u32::MAX;

/// Nobody tries to send more than one mark in this time, ns: a system call takes longer.
const ATTEMPT: u64 = 100;

/// Why a mark is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// Too many marks.
    Marks,
    /// Too many bytes.
    Bytes,
}

/// Who sends how fast.
#[derive(Debug)]
pub struct Rates {
    /// Wall clock, ns since 1970, as that of marks.
    since: i64,
    processes: Senders<Process>,
    users: Senders<User>,
    all: [Bucket; 2],
}

#[derive(Debug)]
struct Process {
    bucket: Bucket,
    /// When its last mark was sent, ns since 1970.
    sent: i64,
}

#[derive(Debug)]
struct User {
    buckets: [Bucket; 2],
    reserve: [Bucket; 2],
}

impl Rates {
    /// Nobody has sent since `now`, ns of `CLOCK_MONOTONIC`, which is `since` by the wall clock.
    pub fn new(now: u64, since: i64) -> Self {
        Self {
            since,
            processes: Senders::new(),
            users: Senders::new(),
            all: ALL.map(|rate| Bucket::full(rate, now)),
        }
    }

    /// Takes a mark of this size.
    ///
    /// # Errors
    ///
    /// What there is too much of.
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
        // Without a bucket of its own it has its user's part.
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
        let excesses = [LimitExceeded::Marks, LimitExceeded::Bytes];
        for place in [0, 1] {
            let (amount, excess) = (amounts[place], excesses[place]);
            if !user.buckets[place].take(USER[place], amount, now) {
                return Err(excess);
            }
            if !user.reserve[place].take(RESERVE[place], amount, now)
                && !self.all[place].take(ALL[place], amount, now)
            {
                return Err(excess);
            }
        }
        Ok(())
    }

    /// How many marks a process can have failed to send between its last mark and this one, sent at `sent`, ns since 1970.
    pub fn most_attempts(&mut self, pid: u32, sent: i64) -> u64 {
        let process = self.processes.of.get_mut(&pid);
        let last = process.map_or(self.since, |process| {
            std::mem::replace(&mut process.sent, sent)
        });
        u64::try_from(sent.saturating_sub(last)).unwrap_or(0) / ATTEMPT
    }
}

/// Senders by process or user id, not more than [`SENDERS`].
#[derive(Debug)]
struct Senders<T> {
    of: HashMap<u32, T>,
    swept: u64,
}

/// Something that shows when it was last used.
trait Used {
    fn used(&self) -> u64;
}

impl Used for Process {
    fn used(&self) -> u64 {
        self.bucket.at
    }
}

impl Used for User {
    fn used(&self) -> u64 {
        self.buckets[0].at
    }
}

impl<T: Used> Senders<T> {
    fn new() -> Self {
        Self {
            of: HashMap::new(),
            swept: 0,
        }
    }

    /// The entry of a sender, unless it is new and there is no room.
    fn get(&mut self, id: u32, now: u64, new: impl FnOnce() -> T) -> Option<&mut T> {
        if self.of.len() >= SENDERS && !self.of.contains_key(&id) {
            // Not for each mark: it visits all of them.
            if now.saturating_sub(self.swept) >= IDLE / 20 {
                self.swept = now;
                self.of
                    .retain(|_, sender| now.saturating_sub(sender.used()) < IDLE);
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
        let there = self.tokens >= amount;
        if there {
            self.tokens -= amount;
        }
        there
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
    fn a_process_a_user_and_all_together_may_send_so_many() {
        let mut rates = Rates::new(0, 0);
        assert_eq!(taken(&mut rates, 1, 1, 1, 0), 10_000);
        assert_eq!(taken(&mut rates, 1, 1, 1, SECOND / 10), 500);
        // However long it was silent.
        let later = 100 * SECOND;
        assert_eq!(taken(&mut rates, 1, 1, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 2, 1, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 3, 1, 1, later), 0);
        // The user's reserve is no part of what all share.
        assert_eq!(taken(&mut rates, 4, 2, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 5, 2, 1, later), 10_000);
        assert_eq!(taken(&mut rates, 6, 3, 1, later), 1_000 + 2_000);
        // Whatever others do.
        for uid in 4..10 {
            assert_eq!(taken(&mut rates, 10 + uid, uid, 1, later), 1_000);
        }
    }

    #[test]
    fn bytes_are_limited_too() {
        let mut rates = Rates::new(0, 0);
        assert_eq!(taken(&mut rates, 1, 1, 8192, 0), 512);
        assert_eq!(taken(&mut rates, 2, 1, 8192, SECOND), 32);
        // Refused marks count too: those two processes may send nothing at all now.
        assert_eq!(rates.take(2, 1, 8192, SECOND), Err(LimitExceeded::Marks));
        assert_eq!(rates.take(9, 1, 8192, SECOND), Err(LimitExceeded::Bytes));
        // A second user has as much, and all users together no more than their part.
        assert_eq!(taken(&mut rates, 3, 2, 8192, SECOND), 512);
        for uid in 3..20 {
            taken(&mut rates, 10 + uid, uid, 8192, SECOND);
        }
        assert_eq!(taken(&mut rates, 40, 40, 8192, SECOND), 32);
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let mut rates = Rates::new(0, 0);
        for sender in 0..100_000 {
            let now = u64::from(sender) * SECOND / 1000;
            let _ = rates.take(sender, sender, 100, now);
            let (processes, users) = (rates.processes.of.len(), rates.users.of.len());
            assert!(processes <= SENDERS && users <= SENDERS + 1, "{sender}");
        }
        // Who is known goes on as before.
        assert_eq!(rates.take(99_999, 99_999, 100, 101 * SECOND), Ok(()));
    }

    #[test]
    fn nobody_has_tried_more_often_than_can_be() {
        let mut rates = Rates::new(0, 1_000_000);
        let _ = rates.take(1, 1, 1, SECOND);
        assert_eq!(rates.most_attempts(1, 2_000_000), 10_000);
        assert_eq!(rates.most_attempts(1, 2_005_000), 50);
        // The clock was set.
        assert_eq!(rates.most_attempts(1, 1_005_000), 0);
        assert_eq!(rates.most_attempts(2, 2_000_000), 10_000);
    }
}
