//! CPU time of the processes outside the target, from `/proc/PID/stat`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use hashbrown::HashSet;

use crate::{
    procfs::{process_list::pids, process_stat, stat::tick_ns},
    tasks::TaskTable,
};

/// Adopts processes whose parents have ended, among them those of the target.
const INIT: u32 = 1;
/// Ancestors that are looked up.
const DEPTH_MAX: usize = 64;

/// CPU time by name.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Used {
    pub(super) processes: u64,
    pub(super) cpu_ns: u64,
}

/// A process: pid, and start in clock ticks.
type Key = (u32, u64);

/// CPU time of a process since it started, in clock ticks.
#[derive(Clone, Debug)]
struct Times {
    comm: String,
    parent: u32,
    own: u64,
    /// Of its children that have ended.
    children: u64,
}

pub(super) struct Neighbours {
    procfs: PathBuf,
    known: HashMap<Key, Times>,
    /// Processes whose ended children can have been of the target.
    parents: HashSet<u32>,
}

impl Neighbours {
    pub(super) fn new(procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            known: HashMap::new(),
            parents: HashSet::from([INIT]),
        }
    }

    /// Notes the parents of the processes of the target.
    pub(super) fn add_parents(&mut self, tasks: &TaskTable) {
        self.parents
            .extend(tasks.awake().map(|process| process.ppid));
    }

    /// CPU time since the previous reading by name, the longest first.
    pub(super) fn read(&mut self, tasks: &TaskTable) -> Vec<(String, Used)> {
        let target: HashSet<u32> = tasks.iter().map(|process| process.id.pid).collect();
        let others = pids(&self.procfs).filter(|pid| !target.contains(pid));
        let now = others.filter_map(|pid| {
            let stat = process_stat::of_process(&self.procfs, pid)?;
            let ticks = |time: i64| u64::try_from(time).unwrap_or(0);
            let times = Times {
                comm: stat.comm,
                parent: stat.ppid.cast_unsigned(),
                own: stat.utime + stat.stime,
                children: ticks(stat.cutime) + ticks(stat.cstime),
            };
            Some(((pid, stat.starttime), times))
        });
        let now = now.collect();
        let before = std::mem::replace(&mut self.known, now);
        increases(&before, &self.known, &self.parents)
    }
}

/// Increases by name. Time of ended children counts for their parent, unless it is one of `parents`.
fn increases(
    before: &HashMap<Key, Times>,
    now: &HashMap<Key, Times>,
    parents: &HashSet<u32>,
) -> Vec<(String, Used)> {
    let of_children = |pid: u32, times: &Times| {
        if parents.contains(&pid) {
            0
        } else {
            times.children
        }
    };
    let ended = before.iter().filter(|(key, _)| !now.contains_key(*key));
    let ended: HashMap<u32, &Times> = ended.map(|((pid, _), times)| (*pid, times)).collect();
    // What has been counted of processes that ended since is part of the time of their first ancestor
    // that lives.
    let mut counted: HashMap<u32, u64> = HashMap::new();
    for (pid, times) in &ended {
        let mut ancestor = times.parent;
        for _ in 0..DEPTH_MAX {
            let Some(next) = ended.get(&ancestor) else {
                break;
            };
            ancestor = next.parent;
        }
        *counted.entry(ancestor).or_default() += times.own + of_children(*pid, times);
    }
    let mut by_name: HashMap<&str, Used> = HashMap::new();
    for ((pid, start), times) in now {
        let earlier = before.get(&(*pid, *start));
        let own = times.own - earlier.map_or(0, |earlier| earlier.own.min(times.own));
        let children = of_children(*pid, times);
        let earlier = earlier.map_or(0, |earlier| of_children(*pid, earlier));
        let children = children.saturating_sub(earlier);
        let children = children.saturating_sub(counted.get(pid).copied().unwrap_or(0));
        if own + children > 0 {
            let used = by_name.entry(&times.comm).or_default();
            used.processes += 1;
            used.cpu_ns += (own + children).saturating_mul(tick_ns());
        }
    }
    let mut all: Vec<_> = by_name
        .into_iter()
        .map(|(comm, used)| (comm.to_owned(), used))
        .collect();
    all.sort_by(|a, b| (b.1.cpu_ns, &a.0).cmp(&(a.1.cpu_ns, &b.0)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(comm: &str, parent: u32, own: u64, children: u64) -> Times {
        Times {
            comm: comm.to_owned(),
            parent,
            own,
            children,
        }
    }

    fn used(comm: &str, processes: u64, ticks: u64) -> (String, Used) {
        let cpu_ns = ticks * tick_ns();
        (comm.to_owned(), Used { processes, cpu_ns })
    }

    #[test]
    fn time_of_ended_processes_is_that_of_their_parents_and_counted_once() {
        let before = HashMap::from([
            ((1, 0), times("init", 0, 10, 500)),
            ((20, 5), times("make", 1, 3, 40)),
            ((21, 6), times("cc1", 20, 30, 0)),
            ((30, 7), times("slurmstepd", 1, 1, 5)),
            ((40, 8), times("idle", 1, 9, 9)),
            ((50, 8), times("loop", 1, 100, 0)),
            ((60, 9), times("bash", 1, 1, 0)),
            ((61, 9), times("cargo", 60, 50, 1000)),
            ((62, 9), times("rustc", 61, 8000, 0)),
        ]);
        let now = HashMap::from([
            ((1, 0), times("init", 0, 12, 900)),
            // The compiler that was seen ended after 35 ticks, another one after 25.
            ((20, 5), times("make", 1, 4, 100)),
            ((30, 7), times("slurmstepd", 1, 1, 400)),
            ((40, 8), times("idle", 1, 9, 9)),
            ((50, 8), times("loop", 1, 150, 0)),
            // Of cargo, and of rustc through it.
            ((60, 9), times("bash", 1, 1, 9060)),
            // Has the pid of a process before it.
            ((21, 99), times("loop", 1, 7, 0)),
        ]);
        let parents = HashSet::from([INIT, 30]);
        assert_eq!(
            increases(&before, &now, &parents),
            [
                used("loop", 2, 57),
                used("make", 1, 31),
                used("bash", 1, 10),
                used("init", 1, 2)
            ]
        );
    }
}
