//! CPU quotas of cgroups that were used up: `cpu.stat` of versions 1 and 2.

use std::path::PathBuf;

use hashbrown::HashSet;

use crate::{
    host::{Cgroups, Host},
    procfs::{
        cgroup_cpu_stat::CpuStat,
        cgroup_limits::{cpu_quota, with_ancestors},
        process_file::{self, SMALL_MAX},
    },
    tasks::TaskTable,
};

/// Cgroups that are read.
const GROUPS_MAX: usize = 64;
/// Processes of a reading whose cgroups are looked up: those that waited longest.
const PROCESSES_MAX: usize = 16;

/// Periods that begin before an interval or end after it.
const PERIODS_AT_ENDS: u64 = 2;

/// A cgroup whose quota was used up since the previous reading.
#[derive(Debug, PartialEq)]
pub(super) struct Throttled {
    pub(super) cgroup: String,
    /// CPU time per time.
    pub(super) quota: f64,
    pub(super) increase: CpuStat,
}

/// A cgroup with a quota.
struct Group {
    directory: PathBuf,
    name: String,
    /// At the previous reading.
    counts: CpuStat,
}

pub(super) struct Throttling {
    procfs: PathBuf,
    cgroups: Cgroups,
    groups: Vec<Group>,
    /// Contents of `/proc/PID/cgroup` that have been looked up.
    known: HashSet<Vec<u8>>,
}

impl Throttling {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            procfs: host.procfs.clone(),
            cgroups: host.cgroups.clone(),
            groups: Vec::new(),
            known: HashSet::new(),
        }
    }

    /// Finds the cgroups of the processes that waited longest in an interval of this length.
    pub(super) fn find(&mut self, tasks: &TaskTable, interval_ns: u64) {
        let mut rows: Vec<_> = tasks.rows.iter().filter(|row| row.tid.is_none()).collect();
        rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.increase.run_delay));
        for row in rows.into_iter().take(PROCESSES_MAX) {
            let read = process_file::read(&self.procfs, row.id.pid, "cgroup", SMALL_MAX);
            if let Ok(lines) = read {
                self.add(&lines.bytes, interval_ns);
            }
        }
    }

    /// Adds the cgroups with a quota of a process.
    fn add(&mut self, lines: &[u8], interval_ns: u64) {
        if self.known.len() >= GROUPS_MAX || !self.known.insert(lines.to_owned()) {
            return;
        }
        for (directory, name) in with_ancestors(&self.cgroups, lines) {
            let is_known = self.groups.iter().any(|group| group.directory == directory);
            if is_known || self.groups.len() >= GROUPS_MAX {
                continue;
            }
            if let Some(quota) = cpu_quota(&directory)
                && let Some(counts) = CpuStat::read(&directory)
            {
                // With so few periods, its threads have run since the previous sample only.
                let earlier = counts.periods.saturating_sub(PERIODS_AT_ENDS);
                let is_new = earlier.saturating_mul(quota.period_ns) <= interval_ns;
                let counts = if is_new { CpuStat::default() } else { counts };
                self.groups.push(Group {
                    directory,
                    name,
                    counts,
                });
            }
        }
    }

    /// The cgroups whose quota was used up since the previous reading.
    pub(super) fn read(&mut self) -> Vec<Throttled> {
        let throttled = self.groups.iter_mut().filter_map(|group| {
            let now = CpuStat::read(&group.directory)?;
            let before = std::mem::replace(&mut group.counts, now);
            let increase = CpuStat {
                periods: now.periods.checked_sub(before.periods)?,
                throttled_periods: now
                    .throttled_periods
                    .checked_sub(before.throttled_periods)?,
                throttled_ns: now.throttled_ns.checked_sub(before.throttled_ns)?,
            };
            let is_throttled = increase.throttled_periods + increase.throttled_ns > 0;
            is_throttled.then_some(())?;
            Some(Throttled {
                cgroup: group.name.clone(),
                quota: cpu_quota(&group.directory)?.cpus,
                increase,
            })
        });
        throttled.collect()
    }
}
