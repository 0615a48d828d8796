//! A number of bytes that several users share, of which none gets more than half.

use hashbrown::HashMap;

/// Bytes that are left.
#[derive(Debug, Default)]
pub struct Allowance {
    left: usize,
    share: usize,
    taken: HashMap<u32, usize>,
}

impl Allowance {
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
        let mut allowance = Allowance::of(100);
        assert!(allowance.take(1, 50) && !allowance.take(1, 1) && allowance.is_spent(1));
        assert!(!allowance.take(2, 51) && allowance.take(2, 40) && !allowance.is_spent(2));
        assert!(!allowance.take(3, 11) && allowance.take(3, 10) && allowance.is_spent(3));
        let mut allowance = Allowance::of(100);
        allowance.charge(1, 70);
        assert!(allowance.is_spent(1) && !allowance.is_spent(2));
        allowance.charge(2, usize::MAX);
        assert!(allowance.is_spent(3));
    }
}
