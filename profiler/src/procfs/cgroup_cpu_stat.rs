//! Use of the CPU quota of a control group: `cpu.stat` of versions 1 and 2.

use std::{fs, path::Path};

/// Counters of a cgroup with a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuStat {
    pub(crate) periods: u64,
    pub(crate) throttled_periods: u64,
    pub(crate) throttled_ns: u64,
}

impl CpuStat {
    /// Reads the counters of the cgroup with this directory; `None` without those of a quota, as in the
    /// root cgroup of version 2.
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(directory.join("cpu.stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        };
        let of_version_2 = || number("throttled_usec").map(|us: u64| us.saturating_mul(1000));
        Some(Self {
            periods: number("nr_periods")?,
            throttled_periods: number("nr_throttled")?,
            throttled_ns: number("throttled_time").or_else(of_version_2)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_versions() {
        let stat = CpuStat {
            periods: 43,
            throttled_periods: 39,
            throttled_ns: 1_939_786_000,
        };
        let v1 = "nr_periods 43\nnr_throttled 39\nthrottled_time 1939786000\nnr_bursts 0\n";
        let v2 = "usage_usec 9\nuser_usec 8\nsystem_usec 1\nnr_periods 43\nnr_throttled 39\n\
                  throttled_usec 1939786\n";
        assert_eq!(CpuStat::parse(v1), Some(stat));
        assert_eq!(CpuStat::parse(v2), Some(stat));
        assert_eq!(
            CpuStat::parse("usage_usec 9\nuser_usec 8\nsystem_usec 1\n"),
            None
        );
    }
}
