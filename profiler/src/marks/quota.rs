//! Room that users share: each has a part of it, and a little is left to everybody whatever the others do.

use std::collections::HashMap;

/// An amount of things, and the memory that they take in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub count: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Amount {
    fn is_below(self, limit: Self) -> bool {
        self.count < limit.count && self.bytes < limit.bytes
    }
}

/// How much users may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One user.
    pub user: Amount,
    /// All users together …
    pub all: Amount,
    /// … except for those who hold less than this.
    pub reserve: Amount,
}

/// What users hold.
#[derive(Debug)]
pub struct Quota {
    limits: Limits,
    users: HashMap<u32, Amount>,
    all: Amount,
}

impl Quota {
    /// Nobody holds anything yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            users: HashMap::new(),
            all: Amount::default(),
        }
    }

    /// Whether a user may hold one thing more.
    pub fn has_room(&self, uid: u32) -> bool {
        let own = self.users.get(&uid).copied().unwrap_or_default();
        own.is_below(self.limits.user)
            && (self.all.is_below(self.limits.all) || own.is_below(self.limits.reserve))
    }

    /// Whether nobody holds anything.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.all == Amount::default() && self.users.is_empty()
    }

    /// A user holds one thing more.
    pub fn add(&mut self, uid: u32, bytes: usize) {
        for amount in [self.users.entry(uid).or_default(), &mut self.all] {
            amount.count += 1;
            amount.bytes += bytes;
        }
    }

    /// A user holds one thing less.
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
    fn nobody_takes_the_room_of_others() {
        let mut quota = Quota::new(LIMITS);
        assert_eq!(taken(&mut quota, 1, 10), 10);
        assert_eq!(taken(&mut quota, 2, 10), 5);
        // Nothing is left but the reserve, which everybody has.
        for uid in 3..9 {
            assert_eq!(taken(&mut quota, uid, 10), 2);
        }
        quota.remove(1, 10);
        assert!(!quota.has_room(1));
    }

    #[test]
    fn memory_counts_too() {
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
