//! Quotas of users on a shared resource. Each user has a reserve, regardless of the others.

use std::collections::HashMap;

/// A number of items and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of items.
    pub count: usize,
    /// Memory of the items, bytes.
    pub bytes: usize,
}

impl Amount {
    fn is_below(self, limit: Self) -> bool {
        self.count < limit.count && self.bytes < limit.bytes
    }
}

/// Limits on the items that users hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub user: Amount,
    /// Of all users together; a user below `reserve` is exempt.
    pub all: Amount,
    /// Available to each user, even if `all` is reached.
    pub reserve: Amount,
}

/// The items that each user holds.
#[derive(Debug)]
pub struct Quota {
    limits: Limits,
    users: HashMap<u32, Amount>,
    all: Amount,
}

impl Quota {
    /// An empty quota.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            users: HashMap::new(),
            all: Amount::default(),
        }
    }

    /// Whether a user may add an item.
    pub fn has_room(&self, uid: u32) -> bool {
        let own = self.users.get(&uid).copied().unwrap_or_default();
        own.is_below(self.limits.user)
            && (self.all.is_below(self.limits.all) || own.is_below(self.limits.reserve))
    }

    /// Whether no user holds an item.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.all == Amount::default() && self.users.is_empty()
    }

    /// Adds an item of a user.
    pub fn add(&mut self, uid: u32, bytes: usize) {
        for amount in [self.users.entry(uid).or_default(), &mut self.all] {
            amount.count += 1;
            amount.bytes += bytes;
        }
    }

    /// Removes an item of a user.
    pub fn remove(&mut self, uid: u32, bytes: usize) {
        let Some(own) = self.users.get_mut(&uid) else {
            return;
        };
        for amount in [&mut *own, &mut self.all] {
            amount.count -= 1;
            amount.bytes -= bytes;
        }
        if own.count == 0 {
            self.users.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        user: Amount {
            count: 10,
            bytes: 1000,
        },
        all: Amount {
            count: 15,
            bytes: 1500,
        },
        reserve: Amount {
            count: 2,
            bytes: 100,
        },
    };

    fn taken(quota: &mut Quota, uid: u32, bytes: usize) -> usize {
        let taken = |_: &usize| {
            let room = quota.has_room(uid);
            if room {
                quota.add(uid, bytes);
            }
            room
        };
        (0..100).take_while(taken).count()
    }

    #[test]
    fn each_user_keeps_a_reserve() {
        let mut quota = Quota::new(LIMITS);
        assert_eq!(taken(&mut quota, 1, 10), 10);
        assert_eq!(taken(&mut quota, 2, 10), 5);
        // Only the reserve of each user is left.
        for uid in 3..9 {
            assert_eq!(taken(&mut quota, uid, 10), 2);
        }
        quota.remove(1, 10);
        assert!(!quota.has_room(1));
    }

    #[test]
    fn memory_is_limited() {
        let mut quota = Quota::new(LIMITS);
        assert_eq!(taken(&mut quota, 1, 400), 3);
        assert_eq!(taken(&mut quota, 2, 400), 1);
        assert_eq!(taken(&mut quota, 3, 400), 1);
        for (uid, count) in [(1, 3), (2, 1), (3, 1)] {
            (0..count).for_each(|_| quota.remove(uid, 400));
        }
        assert!(quota.is_unused());
    }
}
