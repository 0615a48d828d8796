//! A number of bytes that several users share, of which none gets more than half.

use hashbrown::HashMap;

/// Bytes that are left.
#[derive(Debug, Default)]
pub struct Budget {
    left: usize,
    share: usize,
    taken: HashMap<u32, usize>,
}

impl Budget {
    /// So many bytes for all.
    pub fn of(bytes: usize) -> Self {
        Self {
            left: bytes,
            share: bytes / 2,
            taken: HashMap::new(),
        }
    }

    /// Takes bytes for this user, unless they are more than what is left.
    pub fn take(&mut self, uid: u32, bytes: usize) -> bool {
        let taken = self.taken.entry(uid).or_default();
        let fits = bytes <= self.left && *taken + bytes <= self.share;
        if fits {
            self.left -= bytes;
            *taken += bytes;
        }
        fits
    }

    /// Charges bytes that this user has taken already.
    pub fn charge(&mut self, uid: u32, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        let taken = self.taken.entry(uid).or_default();
        *taken = taken.saturating_add(bytes);
    }

    /// Whether nothing is left for this user.
    pub fn is_spent(&self, uid: u32) -> bool {
        self.left == 0
            || self
                .taken
                .get(&uid)
                .is_some_and(|taken| *taken >= self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_half() {
        let mut budget = Budget::of(100);
        assert!(budget.take(1, 50) && !budget.take(1, 1) && budget.is_spent(1));
        assert!(!budget.take(2, 51) && budget.take(2, 40) && !budget.is_spent(2));
        assert!(!budget.take(3, 11) && budget.take(3, 10) && budget.is_spent(3));
        let mut budget = Budget::of(100);
        budget.charge(1, 70);
        assert!(budget.is_spent(1) && !budget.is_spent(2));
        budget.charge(2, usize::MAX);
        assert!(budget.is_spent(3));
    }
}
