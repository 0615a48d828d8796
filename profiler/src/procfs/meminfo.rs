//! `/proc/meminfo` and `/proc/vmstat` (`fs/proc/meminfo.c`, `mm/vmstat.c` in the kernel,
//! `proc_meminfo(5)`).
//!
//! This parser replaces that of the `procfs` crate, which rejects the whole file because of one bad
//! value, can panic on a line that is not ASCII, and allocates for each of the 250 lines.

use super::file::{lines, number, words};
use crate::support::delta::Counter;

/// Declares a struct of optional numbers, and the line that each is read from.
macro_rules! fields {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $key:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $(#[doc = concat!("`", $key, "`")] pub(crate) $field: Option<u64>,)*
        }

        impl $name {
            /// Reads the declared lines; missing or malformed values are null.
            pub(crate) fn parse(text: &[u8]) -> Self {
                let mut all = Self::default();
                for line in lines(text) {
                    let mut words = words(line);
                    let Some(key) = words.next() else { continue };
                    let slot = match key.strip_suffix(b":").unwrap_or(key) {
                        $(key if key == $key.as_bytes() => &mut all.$field,)*
                        _ => continue,
                    };
                    *slot = words.next().and_then(number).and_then(|number| match words.next() {
                        None => Some(number),
                        Some(b"kB") => number.checked_mul(1024),
                        Some(_) => None,
                    });
                }
                all
            }
        }
    };
}

fields! {
    /// Sizes in bytes (the kernel's `kB` are KiB), and counts of huge pages.
    MemInfo {
        total = "MemTotal",
        free = "MemFree",
        available = "MemAvailable",
        buffers = "Buffers",
        cached = "Cached",
        reclaimable = "SReclaimable",
        slab = "Slab",
        shared = "Shmem",
        active = "Active",
        inactive = "Inactive",
        dirty = "Dirty",
        writeback = "Writeback",
        committed = "Committed_AS",
        commit_limit = "CommitLimit",
        anon_huge = "AnonHugePages",
        swap_total = "SwapTotal",
        swap_free = "SwapFree",
        hugepages_total = "HugePages_Total",
        hugepages_free = "HugePages_Free",
        hugepage_size = "Hugepagesize",
    }
}

fields! {
    /// Counts since boot.
    VmStat {
        faults = "pgfault",
        major_faults = "pgmajfault",
        paged_in_kib = "pgpgin",
        paged_out_kib = "pgpgout",
        swapped_in_pages = "pswpin",
        swapped_out_pages = "pswpout",
        oom_kills = "oom_kill",
    }
}

impl MemInfo {
    /// `available` as in psutil: memory that can be allocated without swapping. In some containers
    /// it is larger than `total`; there, psutil and `free` use the free memory.
    pub(crate) fn available(&self) -> Option<u64> {
        match (self.available?, self.total?) {
            (available, total) if available > total => self.free,
            (available, _) => Some(available),
        }
    }

    /// `used` as in psutil since 7.1 and in `free`: `total - available`.
    pub(crate) fn used(&self) -> Option<u64> {
        self.total?.checked_sub(self.available()?)
    }

    /// `cached` as in psutil: page cache and reclaimable slabs.
    pub(crate) fn cached(&self) -> Option<u64> {
        self.cached?.checked_add(self.reclaimable?)
    }

    /// `used` of the swap as in psutil.
    pub(crate) fn swap_used(&self) -> Option<u64> {
        self.swap_total?.checked_sub(self.swap_free?)
    }
}

/// The counters of `/proc/vmstat`.
#[derive(Debug, Default)]
pub(crate) struct Paging {
    faults: Counter,
    major_faults: Counter,
    paged_in_kib: Counter,
    paged_out_kib: Counter,
    swapped_in_pages: Counter,
    swapped_out_pages: Counter,
    oom_kills: Counter,
}

/// Increases of these counters over an interval; sizes in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Increases {
    /// Page faults without I/O.
    pub(crate) minor_faults: Option<u64>,
    /// Page faults with I/O.
    pub(crate) major_faults: Option<u64>,
    /// Read from block devices.
    pub(crate) paged_in: Option<u64>,
    /// Written to block devices.
    pub(crate) paged_out: Option<u64>,
    /// Read from swap.
    pub(crate) swapped_in: Option<u64>,
    /// Written to swap.
    pub(crate) swapped_out: Option<u64>,
    /// Processes killed for lack of memory.
    pub(crate) oom_kills: Option<u64>,
}

impl Paging {
    /// Increases since the previous reading.
    pub(crate) fn increase(&mut self, now: &VmStat, page_size: u64) -> Increases {
        let kib = |counter: &mut Counter, now| counter.increase(now)?.checked_mul(1024);
        let pages = |counter: &mut Counter, now| counter.increase(now)?.checked_mul(page_size);
        let faults = self.faults.increase(now.faults);
        let major_faults = self.major_faults.increase(now.major_faults);
        Increases {
            // A major fault is counted in both, but not at the same time.
            minor_faults: faults
                .zip(major_faults)
                .map(|(all, major)| all.saturating_sub(major)),
            major_faults,
            paged_in: kib(&mut self.paged_in_kib, now.paged_in_kib),
            paged_out: kib(&mut self.paged_out_kib, now.paged_out_kib),
            swapped_in: pages(&mut self.swapped_in_pages, now.swapped_in_pages),
            swapped_out: pages(&mut self.swapped_out_pages, now.swapped_out_pages),
            oom_kills: self.oom_kills.increase(now.oom_kills),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_as_in_psutil() {
        let memory = MemInfo::parse(
            b"MemTotal:       1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nCached: 200 kB\n\
              SReclaimable: 50 kB\nActive(file): 7 kB\nActive: 9 kB\nHugePages_Total:       4\n",
        );
        assert_eq!(memory.total, Some(1_024_000));
        assert_eq!(memory.used(), Some(400 * 1024));
        assert_eq!(memory.cached(), Some(250 * 1024));
        assert_eq!(memory.active, Some(9 * 1024));
        assert_eq!(memory.hugepages_total, Some(4));
        assert_eq!((memory.swap_used(), memory.dirty), (None, None));
    }

    #[test]
    fn malformed_values_are_null_and_others_are_kept() {
        let text = "MemTotal: 99999999999999999999 kB\nMemFree: -5 kB\nMemAvailable: 18446744073709551615 kB\n\
                    Buffers: kB\nCached: 1 MB\nDirtyé\n:\n\nSlab: 2 kB\nSwapTotal: 1 kB\nSwapFree: 2 kB\nShmem: 3";
        let memory = MemInfo::parse(text.as_bytes());
        let expected = MemInfo {
            slab: Some(2048),
            swap_total: Some(1024),
            swap_free: Some(2048),
            ..MemInfo::default()
        };
        assert_eq!(memory, expected);
        assert_eq!((memory.used(), memory.swap_used()), (None, None));
        let container = MemInfo::parse(b"MemTotal: 10 kB\nMemFree: 4 kB\nMemAvailable: 99 kB\n");
        assert_eq!(
            (container.available(), container.used()),
            (Some(4096), Some(6144))
        );
    }

    #[test]
    fn vmstat_counts() {
        let stat = VmStat::parse(b"pgpgin 10\npgfault 7\npgfault_x 8\noom_kill 0\npswpin\n");
        assert_eq!((stat.paged_in_kib, stat.faults), (Some(10), Some(7)));
        assert_eq!((stat.oom_kills, stat.swapped_in_pages), (Some(0), None));
    }
}
