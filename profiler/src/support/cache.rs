//! A cache with a bound: what has not been asked for lately is forgotten.

use std::{collections::HashMap, hash::Hash};

/// At most twice as many entries as its bound.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    bound: usize,
    recent: HashMap<K, V>,
    /// Those that `recent` had when it was full, and that were not asked for since.
    older: HashMap<K, V>,
}

impl<K: Eq + Hash, V> Cache<K, V> {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            bound,
            recent: HashMap::new(),
            older: HashMap::new(),
        }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V> {
        if let Some((key, value)) = self.older.remove_entry(key) {
            self.insert(key, value);
        }
        self.recent.get_mut(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.recent.contains_key(key) || self.older.contains_key(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.recent.len() >= self.bound {
            self.older = std::mem::take(&mut self.recent);
        }
        self.older.remove(&key);
        self.recent.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let mut cache = Cache::new(100);
        cache.insert(0, "first");
        for key in 1..10_000 {
            cache.insert(key, "another");
            if key % 50 == 0 {
                assert_eq!(cache.get(&0), Some(&mut "first"));
            }
            assert!(cache.recent.len() + cache.older.len() <= 200);
        }
        assert_eq!(cache.get(&9_999), Some(&mut "another"));
        assert_eq!(cache.get(&1), None);
        cache.insert(9_999, "changed");
        assert_eq!(cache.get(&9_999), Some(&mut "changed"));
    }
}
