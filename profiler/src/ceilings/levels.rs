//! Levels of the memory, and how much of each a thread uses to measure it.

use std::collections::BTreeMap;

use crate::{host::cpu_list, sources::host::Cache};

/// Name of the level behind the caches.
pub const DRAM: &str = "DRAM";
/// STREAM's rule: size of an array in multiples of the last-level caches.
const TIMES: u64 = 4;
/// Size of the last-level cache if the kernel does not know it, bytes.
const LAST_CACHE: u64 = 64 << 20;

/// A cache, or the memory behind the caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// `L1`, `L2`, … or `DRAM`.
    pub name: String,
    /// Bytes that each thread uses: all arrays together in a cache, each array in memory.
    pub bytes: u64,
}

/// Caches of a CPU by level, each as size and number of those of `cpus` that share it.
fn caches_of(cpu: usize, caches: &[Cache], cpus: &[usize]) -> BTreeMap<u32, (u64, u64)> {
    let holding_data = caches.iter().filter(|cache| cache.r#type != "Instruction");
    let own = holding_data.filter_map(|cache| {
        let sharing = cpu_list(&cache.shared_cpus)?;
        let users = cpus.iter().filter(|cpu| sharing.contains(cpu)).count();
        sharing
            .contains(&cpu)
            .then_some((cache.level, (cache.size?, users.max(1) as u64)))
    });
    own.collect()
}

/// The levels for threads on these CPUs.
///
/// In a cache, a thread uses half of its share, and as much more as fits into the caches before it,
/// because these can hold other lines than this one.
pub fn levels(caches: &[Cache], cpus: &[usize]) -> Vec<Level> {
    let mut levels: BTreeMap<u32, u64> = BTreeMap::new();
    for &cpu in cpus {
        let mut before = 0;
        for (level, (size, users)) in caches_of(cpu, caches, cpus) {
            let share = size / users;
            let bytes = levels.entry(level).or_insert(u64::MAX);
            // The same for all CPUs.
            *bytes = (*bytes).min(before + share / 2);
            before = share;
        }
    }
    let last = levels.keys().last().copied();
    let mut all: Vec<_> = levels
        .into_iter()
        .map(|(level, bytes)| Level {
            name: format!("L{level}"),
            bytes,
        })
        .collect();
    // Each last-level cache that one of the CPUs uses.
    let last: BTreeMap<&str, u64> = caches
        .iter()
        .filter(|cache| Some(cache.level) == last && cache.r#type != "Instruction")
        .filter(|cache| {
            let sharing = cpu_list(&cache.shared_cpus).unwrap_or_default();
            cpus.iter().any(|cpu| sharing.contains(cpu))
        })
        .filter_map(|cache| Some((cache.shared_cpus.as_str(), cache.size?)))
        .collect();
    let last = if last.is_empty() {
        LAST_CACHE
    } else {
        last.values().sum()
    };
    all.push(Level {
        name: DRAM.to_owned(),
        bytes: (TIMES * last).div_ceil(cpus.len().max(1) as u64),
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(level: u32, r#type: &str, size: u64, shared_cpus: &str) -> Cache {
        Cache {
            level,
            r#type: r#type.to_owned(),
            size: Some(size),
            line: Some(64),
            ways: None,
            shared_cpus: shared_cpus.to_owned(),
        }
    }

    fn two_sockets() -> Vec<Cache> {
        let mut caches = Vec::new();
        for cpu in 0..4 {
            let own = cpu.to_string();
            caches.push(cache(1, "Data", 32 << 10, &own));
            caches.push(cache(1, "Instruction", 64 << 10, &own));
            caches.push(cache(2, "Unified", 1 << 20, &own));
        }
        caches.push(cache(3, "Unified", 16 << 20, "0-1"));
        caches.push(cache(3, "Unified", 16 << 20, "2-3"));
        caches
    }

    fn sizes(cpus: &[usize]) -> Vec<(String, u64)> {
        let levels = levels(&two_sockets(), cpus).into_iter();
        levels
            .map(|level| (level.name, level.bytes >> 10))
            .collect()
    }

    #[test]
    fn threads_share_a_cache() {
        let named = |sizes: [u64; 4]| {
            let names = ["L1", "L2", "L3", "DRAM"].map(str::to_owned);
            names.into_iter().zip(sizes).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[1]), named([16, 32 + 512, 1024 + 8192, 4 * 16_384]));
        assert_eq!(
            sizes(&[0, 1]),
            named([16, 32 + 512, 1024 + 4096, 2 * 16_384])
        );
        // Two sockets: twice the cache.
        assert_eq!(
            sizes(&[0, 1, 2, 3]),
            named([16, 32 + 512, 1024 + 4096, 2 * 16_384])
        );
    }

    #[test]
    fn memory_is_measured_without_known_caches() {
        let levels = levels(&[], &[0]);
        assert_eq!(levels.len(), 1);
        assert_eq!(levels[0].bytes, 4 * LAST_CACHE);
    }
}
