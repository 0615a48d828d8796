//! Limits of runs for jobs that only the environments of processes name.

use std::collections::BTreeMap;

use thiserror::Error;

/// Runs at a time: per user, in total.
const OPEN: (u32, u32) = (32, 128);
/// Runs per day: per user, in total.
const OPENED: (u32, u32) = (512, 4096);
/// Users with separate counts; processes of further users are refused.
const USERS: usize = 4096;
/// Length of a day, ns.
const DAY: u64 = 24 * 3600 * 1_000_000_000;

/// Why a claim is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ClaimError {
    /// Too many users have claimed jobs.
    #[error("{USERS} users claim jobs")]
    Users,
    /// The user has too many runs.
    #[error("uid {uid} claims {} jobs at a time", OPEN.0)]
    UserOpen {
        /// The user.
        uid: u32,
    },
    /// The user has opened too many runs today.
    #[error("uid {uid} has claimed {} jobs in a day", OPENED.0)]
    UserOpened {
        /// The user.
        uid: u32,
    },
    /// All users together have too many runs.
    #[error("{} jobs at a time are claimed", OPEN.1)]
    Open,
    /// All users together have opened too many runs today.
    #[error("{} jobs have been claimed in a day", OPENED.1)]
    Opened,
}

/// Runs of each user.
#[derive(Debug, Default)]
pub struct ClaimQuota {
    users: BTreeMap<u32, Claims>,
    /// Start of the present day, ns of `CLOCK_MONOTONIC`.
    day: Option<u64>,
}

#[derive(Debug, Default)]
struct Claims {
    open: u32,
    opened: u32,
    refused: u64,
}

impl ClaimQuota {
    /// Counts a new run of a user.
    ///
    /// # Errors
    ///
    /// When it would exceed a limit.
    pub fn take(&mut self, uid: u32, now: u64) -> Result<(), ClaimError> {
        if now.saturating_sub(*self.day.get_or_insert(now)) >= DAY {
            self.day = Some(now);
            for claims in self.users.values_mut() {
                claims.opened = 0;
            }
            self.users
                .retain(|_, claims| claims.open != 0 || claims.refused != 0);
        }
        let sum = |count: fn(&Claims) -> u32| self.users.values().map(count).sum::<u32>();
        let (open, opened) = (sum(|claims| claims.open), sum(|claims| claims.opened));
        if self.users.len() >= USERS && !self.users.contains_key(&uid) {
            return Err(ClaimError::Users);
        }
        let claims = self.users.entry(uid).or_default();
        if claims.open >= OPEN.0 {
            return Err(ClaimError::UserOpen { uid });
        }
        if claims.opened >= OPENED.0 {
            return Err(ClaimError::UserOpened { uid });
        }
        if open >= OPEN.1 {
            return Err(ClaimError::Open);
        }
        if opened >= OPENED.1 {
            return Err(ClaimError::Opened);
        }
        claims.open += 1;
        claims.opened += 1;
        Ok(())
    }

    /// Counts the end of a run.
    pub fn release(&mut self, uid: u32) {
        if let Some(claims) = self.users.get_mut(&uid) {
            claims.open = claims.open.saturating_sub(1);
        }
    }

    /// Counts a process whose job got no run.
    pub fn refuse(&mut self, uid: u32) {
        if self.users.len() < USERS || self.users.contains_key(&uid) {
            self.users.entry(uid).or_default().refused += 1;
        }
    }

    /// Processes of each user whose job got no run.
    pub fn refused(&self) -> BTreeMap<u32, u64> {
        let refused = self.users.iter();
        let refused = refused.map(|(uid, claims)| (*uid, claims.refused));
        refused.filter(|(_, count)| *count != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_separate_limits() {
        let mut quota = ClaimQuota::default();
        for _ in 0..OPEN.0 {
            quota.take(4242, 0).unwrap();
        }
        assert_eq!(quota.take(4242, 0), Err(ClaimError::UserOpen { uid: 4242 }));
        quota.refuse(4242);
        quota.refuse(4242);
        quota.take(4343, 0).unwrap();
        quota.release(4242);
        quota.take(4242, 0).unwrap();
        assert_eq!(quota.refused(), BTreeMap::from([(4242, 2)]));
    }

    #[test]
    fn daily_limit_is_reset() {
        let mut quota = ClaimQuota::default();
        for _ in 0..OPENED.0 {
            quota.take(4242, 0).unwrap();
            quota.release(4242);
        }
        assert!(quota.take(4242, DAY - 1).is_err());
        quota.take(4343, DAY - 1).unwrap();
        quota.take(4242, DAY).unwrap();
    }

    #[test]
    fn all_users_together_have_a_limit() {
        let mut quota = ClaimQuota::default();
        let taken = (0..10_000).filter(|uid| quota.take(*uid, 0).is_ok());
        assert_eq!(taken.count(), OPEN.1 as usize);
        for uid in 0..10_000 {
            quota.refuse(uid);
        }
        assert!(quota.users.len() <= USERS);
    }
}
