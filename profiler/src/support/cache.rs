//! A bounded cache, which forgets entries that were not used lately.

use std::{collections::HashMap, hash::Hash};

/// Two generations of entries. When the recent one has `bound` entries it becomes the older one,
/// and the entries that were older than that are dropped.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    bound: usize,
    recent: HashMap<K, V>,
    older: HashMap<K, V>,
}

impl<K: Eq + Hash, V> Cache<K, V> {
    /// An empty cache, which will hold up to twice `bound` entries.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            bound,
            recent: HashMap::new(),
            older: HashMap::new(),
        }
    }

    /// The value of a key, which becomes recent.
    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V> {
        if let Some((key, value)) = self.older.remove_entry(key) {
            self.insert(key, value);
        }
        self.recent.get_mut(key)
    }

    /// Whether the key has a value; it does not become recent.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.recent.contains_key(key) || self.older.contains_key(key)
    }

    /// Adds an entry, or replaces the value of its key.
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
    fn the_bound_holds_and_used_entries_stay() {
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
