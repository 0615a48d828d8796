//! A number of bytes shared by several users. No user gets more than half.

use hashbrown::HashMap;

/// Remaining bytes.
#[derive(Debug, Default)]
pub struct Budget {
    left: usize,
    /// Limit of each user.
    share: usize,
    spent: HashMap<u32, usize>,
}

impl Budget {
    /// A budget of `bytes` for all users together.
    pub fn new(bytes: usize) -> Self {
        Self {
            left: bytes,
            share: bytes / 2,
            spent: HashMap::new(),
        }
    }

    /// Spends bytes of a user if enough are left.
    pub fn try_spend(&mut self, uid: u32, bytes: usize) -> bool {
        let spent = self.spent.entry(uid).or_default();
        let fits = bytes <= self.left && *spent + bytes <= self.share;
        if fits {
            self.left -= bytes;
            *spent += bytes;
        }
        fits
    }

    /// Charges a user with bytes that are in use already, also beyond the limits.
    pub fn charge(&mut self, uid: u32, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        let spent = self.spent.entry(uid).or_default();
        *spent = spent.saturating_add(bytes);
    }

    /// Whether nothing is left for a user.
    pub fn is_spent(&self, uid: u32) -> bool {
        self.left == 0
            || self
                .spent
                .get(&uid)
                .is_some_and(|spent| *spent >= self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_gets_at_most_half() {
        let mut budget = Budget::new(100);
        assert!(budget.try_spend(1, 50) && !budget.try_spend(1, 1) && budget.is_spent(1));
        assert!(!budget.try_spend(2, 51) && budget.try_spend(2, 40) && !budget.is_spent(2));
        assert!(!budget.try_spend(3, 11) && budget.try_spend(3, 10) && budget.is_spent(3));
        let mut budget = Budget::new(100);
        budget.charge(1, 70);
        assert!(budget.is_spent(1) && !budget.is_spent(2));
        budget.charge(2, usize::MAX);
        assert!(budget.is_spent(3));
    }
}
