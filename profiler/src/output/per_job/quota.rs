//! How many runs users can have made for jobs that nothing but the environments of their processes name.

use std::collections::BTreeMap;

/// Runs at a time: of one user, of all.
const OPEN: (u32, u32) = (32, 128);
/// Runs in a day: of one user, of all.
const OPENED: (u32, u32) = (512, 4096);
/// Users that are counted apart; the processes of the others are refused.
const USERS: usize = 4096;
const DAY: u64 = 24 * 3600 * 1_000_000_000;

/// What each user has taken.
#[derive(Debug, Default)]
pub struct Quota {
    users: BTreeMap<u32, Taken>,
    /// When the present day began, ns of `CLOCK_MONOTONIC`.
    day: Option<u64>,
}

#[derive(Debug, Default)]
struct Taken {
    open: u32,
    opened: u32,
    refused: u64,
}

impl Quota {
    /// Takes room for one run of a user; why not, if there is none.
    pub fn take(&mut self, uid: u32, now: u64) -> Result<(), String> {
        if now.saturating_sub(*self.day.get_or_insert(now)) >= DAY {
            self.day = Some(now);
            for taken in self.users.values_mut() {
                taken.opened = 0;
            }
            self.users
                .retain(|_, taken| taken.open != 0 || taken.refused != 0);
        }
        let sum = |part: fn(&Taken) -> u32| self.users.values().map(part).sum::<u32>();
        let (open, opened) = (sum(|taken| taken.open), sum(|taken| taken.opened));
        if self.users.len() >= USERS && !self.users.contains_key(&uid) {
            return Err(format!("{USERS} users claim jobs"));
        }
        let taken = self.users.entry(uid).or_default();
        if taken.open >= OPEN.0 {
            return Err(format!("uid {uid} claims {} jobs at a time", OPEN.0));
        }
        if taken.opened >= OPENED.0 {
            return Err(format!("uid {uid} has claimed {} jobs in a day", OPENED.0));
        }
        if open >= OPEN.1 {
            return Err(format!("{} jobs at a time are claimed", OPEN.1));
        }
        if opened >= OPENED.1 {
            return Err(format!("{} jobs have been claimed in a day", OPENED.1));
        }
        taken.open += 1;
        taken.opened += 1;
        Ok(())
    }

    /// The run of a user has ended.
    pub fn give_back(&mut self, uid: u32) {
        if let Some(taken) = self.users.get_mut(&uid) {
            taken.open = taken.open.saturating_sub(1);
        }
    }

    /// Counts a process of a user that got no run.
    pub fn refuse(&mut self, uid: u32) {
        if self.users.len() < USERS || self.users.contains_key(&uid) {
            self.users.entry(uid).or_default().refused += 1;
        }
    }

    /// How many processes of each user got no run.
    pub fn refused(&self) -> BTreeMap<u32, u64> {
        let refused = self.users.iter().map(|(uid, taken)| (*uid, taken.refused));
        refused.filter(|(_, count)| *count != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_do_not_take_from_each_other() {
        let mut quota = Quota::default();
        for _ in 0..OPEN.0 {
            quota.take(4242, 0).unwrap();
        }
        assert!(quota.take(4242, 0).is_err());
        quota.refuse(4242);
        quota.refuse(4242);
        quota.take(4343, 0).unwrap();
        quota.give_back(4242);
        quota.take(4242, 0).unwrap();
        assert_eq!(quota.refused(), BTreeMap::from([(4242, 2)]));
    }

    #[test]
    fn a_day_has_an_end() {
        let mut quota = Quota::default();
        for _ in 0..OPENED.0 {
            quota.take(4242, 0).unwrap();
            quota.give_back(4242);
        }
        assert!(quota.take(4242, DAY - 1).is_err());
        quota.take(4343, DAY - 1).unwrap();
        quota.take(4242, DAY).unwrap();
    }

    #[test]
    fn all_users_together_have_a_limit() {
        let mut quota = Quota::default();
        let taken = (0..10_000).filter(|uid| quota.take(*uid, 0).is_ok());
        assert_eq!(taken.count(), OPEN.1 as usize);
        for uid in 0..10_000 {
            quota.refuse(uid);
        }
        assert!(quota.users.len() <= USERS);
    }
}
