//! Readings of the target's processes from `/proc`, where BPF cannot be used.
//!
//! This is slower. Processes that start and end between two readings are known only from the
//! records of perf, without their counters.

use std::{
    collections::HashMap,
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use hashbrown::HashSet;
use procfs::process::{Process, Stat, all_processes_with_root};
use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};

pub use super::procfs_process::Observed;
use super::{
    ProcessId,
    lifecycle::{Change, Lifecycle, Listed},
    missed_estimate::Missed,
    procfs_process::{Observer, ThreadWaits, comm, is_ending},
    tree_cpu::{CountedSum, CutimeSum, Usage},
};
use crate::{
    host::Host,
    job::JobDirectory,
    procfs::{
        process_cgroup,
        process_stat::{self, has_ended},
        stat::tick_ns,
    },
    support::clock::{Clock, monotonic_ns},
};

/// Processes that are read between two drains of the buffers for records.
const DRAIN_EVERY: usize = 64;

/// Processes that are read.
#[derive(Clone, Debug)]
pub enum Scope {
    /// Processes and their descendants.
    Pids(HashSet<u32>),
    /// Members of the cgroup with this directory, and of its descendants.
    Cgroup(PathBuf),
    /// Members of cgroups, other processes, and the descendants of both.
    Job {
        /// Directories of the cgroups.
        directories: Vec<PathBuf>,
        /// Processes, until the next reading.
        pids: HashSet<u32>,
    },
    /// Processes of a user.
    User(u32),
    /// All processes.
    Node,
}

/// Reader of processes from `/proc`.
pub struct ProcfsReader {
    scope: Scope,
    observer: Observer,
    clock: Clock,
    /// Begin of the run, ns of `CLOCK_MONOTONIC`.
    run_start: u64,
    /// Start times of the members, in clock ticks, by pid. A descendant remains a member after its
    /// parent has ended.
    members: HashMap<u32, u64>,
    lifecycle: Lifecycle,
    /// Waits and switches of the threads of each member.
    waits: HashMap<ProcessId, ThreadWaits>,
    /// Zombies that a reading has had, with their start times in clock ticks.
    zombies: HashMap<(u32, u64), (ProcessId, Usage)>,
    /// New processes whose fork may be recorded later, with their start times, and the number of
    /// lost records at that time.
    pending: HashMap<(u32, u64), u64>,
    /// The command, for which the session waits.
    command: Option<u32>,
    counted: CountedSum,
    by_cutime: CutimeSum,
    missed: Missed,
    /// Whether there was a reading.
    has_started: bool,
    /// Processes and threads that are new in this reading.
    new_threads: u64,
}

/// A reading of all processes.
pub(super) struct Reading {
    pub(super) processes: Vec<Observed>,
    /// Changes since the previous reading, in the order in which they happened.
    pub(super) changes: Vec<Change>,
    /// CPU time of the whole target since the first reading, ns.
    pub(super) cpu_ns: u64,
}

/// Processes of `/proc` by pid.
type Stats = HashMap<u32, (Process, Stat)>;

impl ProcfsReader {
    /// A reader of the processes of `scope` and, with `threads`, of all their threads.
    pub fn new(scope: Scope, clock: Clock, threads: bool) -> Self {
        Self {
            scope,
            observer: Observer::new(threads),
            clock,
            run_start: monotonic_ns(),
            members: HashMap::new(),
            lifecycle: Lifecycle::new(clock),
            waits: HashMap::new(),
            zombies: HashMap::new(),
            pending: HashMap::new(),
            command: None,
            counted: CountedSum::default(),
            by_cutime: CutimeSum::default(),
            missed: Missed::default(),
            has_started: false,
            new_threads: 0,
        }
    }

    /// Records forks and ends of the followed processes with perf on these CPUs.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn record_lifecycle(&mut self, cpus: &[u32]) -> io::Result<()> {
        self.lifecycle.record(cpus)
    }

    /// A descriptor that is readable when [`Self::drain`] should be called.
    pub(super) fn events_fd(&self) -> Option<io::Result<OwnedFd>> {
        self.lifecycle.fd()
    }

    /// Takes the records of forks and ends out of their buffers before these are full.
    pub(super) fn drain(&mut self) {
        self.lifecycle.drain();
    }

    /// Processes and threads that can have been missed, because forks are not recorded.
    pub(super) fn missed_at_most(&self) -> u64 {
        self.missed.at_most()
    }

    /// Forks, execs and ends that the kernel could not record.
    pub(super) fn records_lost(&self) -> u64 {
        self.lifecycle.lost()
    }

    /// Processes whose descendants are known only from readings.
    pub(super) fn unrecorded(&self) -> u64 {
        self.lifecycle.unrecorded()
    }

    /// Follows the process of a command, which has not started yet. Its orphaned descendants become
    /// children of the profiler, so that their exit status and CPU time are known.
    pub(super) fn follow_command(&mut self, procfs: &Path, pid: u32) {
        let own = rustix::process::getpid();
        let _ = set_child_subreaper(Some(own));
        self.command = Some(pid);
        self.follow_more(procfs, None, &[pid]);
    }

    /// Replaces the cgroups of a job, and adds processes.
    pub(super) fn follow_more(
        &mut self,
        procfs: &Path,
        directories: Option<&[JobDirectory]>,
        more: &[u32],
    ) {
        match &mut self.scope {
            Scope::Job {
                directories: followed,
                pids,
            } => {
                if let Some(directories) = directories {
                    let paths = directories.iter().map(|directory| directory.path.clone());
                    *followed = paths.collect();
                }
                pids.extend(more);
            }
            Scope::Pids(pids) => pids.extend(more),
            Scope::Cgroup(_) | Scope::User(_) | Scope::Node => {}
        }
        // A command must be followed before it runs.
        for pid in more {
            if let Some(stat) = process_stat::of_process(procfs, *pid)
                && !self.lifecycle.is_tracked(*pid, stat.starttime)
            {
                self.lifecycle.identify(&listed(procfs, &stat));
                self.lifecycle.follow(procfs, *pid);
            }
        }
    }

    /// Reads all processes of the target.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be listed.
    pub(super) fn read(&mut self, host: &Host, first: bool, last: bool) -> Result<Reading> {
        // The list has all processes whose forks are recorded by now.
        self.lifecycle.drain();
        let began = monotonic_ns();
        let mut stats = self.list(host)?;
        while first && self.follow_members(host, &stats, last) {
            // Processes that were created before their parents were followed.
            stats = self.list(host)?;
        }
        self.follow_members(host, &stats, last);
        let mut observed = Vec::new();
        let mut running = HashSet::new();
        for (number, (process, stat)) in self.members_of(&stats).enumerate() {
            if number % DRAIN_EVERY == DRAIN_EVERY - 1 {
                self.lifecycle.drain();
            }
            let has_ended = has_ended(stat);
            let pid = stat.pid.cast_unsigned();
            if self.zombies.contains_key(&(pid, stat.starttime)) {
                continue;
            }
            let Some(seen) = self.observe(host, process, stat) else {
                continue;
            };
            if has_ended {
                let usage = self.usage(&seen);
                self.zombies.insert((pid, stat.starttime), usage);
            } else {
                running.insert(ProcessId::from(&seen.process));
                if !is_ending(stat) {
                    self.lifecycle.is_running(pid, began);
                }
            }
            observed.push(seen);
        }
        observed.sort_unstable_by_key(|observed| observed.process.pid);
        let cpu_ns = self.cpu_time(&observed);
        let new = std::mem::take(&mut self.new_threads);
        if !self.lifecycle.is_recorded() {
            self.missed.update(&host.procfs, new);
        }
        self.forget_ended(&stats, &running);
        let changes = self.lifecycle.end_missing(began, &running);
        self.has_started = true;
        Ok(Reading {
            processes: observed,
            changes,
            cpu_ns,
        })
    }

    /// Reads all processes that can be members, and updates the members.
    fn list(&mut self, host: &Host) -> Result<Stats> {
        let mut stats = Stats::new();
        let mut add = |process: Process| {
            let pid = process.pid.cast_unsigned();
            if let Some(stat) = process_stat::of_process(&host.procfs, pid) {
                stats.insert(pid, (process, stat));
            }
        };
        if self.has_started && matches!(self.scope, Scope::Pids(_)) && self.lifecycle.is_complete()
        {
            for pid in self.lifecycle.pids() {
                let directory = host.procfs.join(pid.to_string());
                if let Ok(process) = Process::new_with_root(directory) {
                    add(process);
                }
            }
        } else {
            all_processes_with_root(&host.procfs)
                .context("listing /proc")?
                .flatten()
                .for_each(add);
        }
        // Descendants of a shell that is the target include the profiler.
        if !matches!(self.scope, Scope::User(_) | Scope::Node) {
            stats.remove(&std::process::id());
        }
        // Forks of processes that are in the list of `/proc`.
        self.lifecycle.drain();
        self.update_members(&stats);
        Ok(stats)
    }

    fn members_of<'a>(
        &self,
        stats: &'a Stats,
    ) -> impl Iterator<Item = &'a (Process, Stat)> + use<'a> {
        let members = self.members.keys();
        let members: Vec<_> = members.filter_map(|pid| stats.get(pid)).collect();
        members.into_iter()
    }

    /// Follows members that are not followed yet. Returns whether there were any.
    fn follow_members(&mut self, host: &Host, stats: &Stats, last: bool) -> bool {
        let mut has_followed = false;
        for (_, stat) in self.members_of(stats) {
            let key = (stat.pid.cast_unsigned(), stat.starttime);
            if self.lifecycle.is_tracked(key.0, key.1) {
                continue;
            }
            let listed = listed(&host.procfs, stat);
            let lost = self.lifecycle.lost();
            let may_have_record = self.lifecycle.may_have_record(&listed);
            if may_have_record && !last && self.pending.insert(key, lost).is_none() {
                // The record is written after the process is listed. The next reading has it.
                self.members.remove(&listed.pid);
                continue;
            }
            self.lifecycle.identify(&listed);
            if may_have_record && self.pending.get(&key) != Some(&lost) || last {
                self.lifecycle.inherit(listed.pid);
            } else if !has_ended(stat) {
                self.lifecycle.follow(&host.procfs, listed.pid);
                has_followed = true;
            }
        }
        has_followed
    }

    fn observe(&mut self, host: &Host, process: &Process, stat: &Stat) -> Option<Observed> {
        let mut seen = self.observer.observe(host, process, stat)?;
        let id = self.lifecycle.identify(&Listed {
            uid: seen.process.uid,
            ..listed_by(stat)
        });
        let waits = self.waits.entry(id).or_default();
        self.new_threads += waits.update(&mut seen.totals, std::mem::take(&mut seen.waits));
        seen.process.start_boottime = id.start_boottime;
        for thread in &mut seen.threads {
            thread.start_boottime = id.start_boottime;
        }
        Some(seen)
    }

    fn usage(&self, seen: &Observed) -> (ProcessId, Usage) {
        let id = ProcessId::from(&seen.process);
        // Start times in /proc are rounded to clock ticks.
        let started = self.clock.monotonic_of_boottime(id.start_boottime) + 2 * tick_ns();
        let usage = Usage {
            ppid: seen.process.ppid,
            own_ns: seen.totals.oncpu,
            children_ns: seen.children_cpu,
            is_older: started < self.run_start,
        };
        (id, usage)
    }

    /// CPU time of the whole target since the first reading, ns. Both methods miss a part: the
    /// counter ends some time before each process, and `cutime` has steps of 10 ms and only what a
    /// process has waited for.
    fn cpu_time(&mut self, observed: &[Observed]) -> u64 {
        let usage: Vec<_> = observed.iter().map(|seen| self.usage(seen)).collect();
        let mut counted = 0;
        if let Some(counter) = self.lifecycle.cpu_ns() {
            for (id, usage) in &usage {
                self.counted.add(*id, usage, self.lifecycle.is_counted(*id));
            }
            counted = self.counted.total(counter);
        }
        let zombies = self.zombies.values().copied();
        let by_cutime = self
            .by_cutime
            .update(usage.into_iter().chain(zombies).collect());
        counted.max(by_cutime)
    }

    /// Removes processes that have ended, and waits for those that are children of the profiler.
    fn forget_ended(&mut self, stats: &Stats, running: &HashSet<ProcessId>) {
        self.waits.retain(|id, _| running.contains(id));
        self.counted.retain(|id| running.contains(&id));
        let is_listed = |pid: u32, start: u64| {
            let stat = stats.get(&pid);
            stat.is_some_and(|(_, stat)| stat.starttime == start)
        };
        self.pending
            .retain(|(pid, start), _| is_listed(*pid, *start));
        let own = std::process::id();
        let (command, members) = (self.command, &mut self.members);
        self.zombies.retain(|(pid, start), _| {
            let ppid = stats.get(pid).map(|(_, stat)| stat.ppid.cast_unsigned());
            let is_orphan = command.is_some() && command != Some(*pid) && ppid == Some(own);
            if is_orphan && is_listed(*pid, *start) {
                let _ = waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::NOHANG);
                members.remove(pid);
                return false;
            }
            is_listed(*pid, *start)
        });
    }

    /// Adds processes that belong to the target, and removes those that have ended or left the
    /// cgroup.
    fn update_members(&mut self, stats: &Stats) {
        let in_cgroup: Option<HashSet<u32>> = match &self.scope {
            Scope::Cgroup(directory) => {
                Some(process_cgroup::all_members(directory).into_iter().collect())
            }
            Scope::Job { directories, .. } => Some(
                directories
                    .iter()
                    .flat_map(|directory| process_cgroup::all_members(directory))
                    .collect(),
            ),
            Scope::Pids(_) | Scope::User(_) | Scope::Node => None,
        };
        let is_recorded = |stat: &Stat| {
            self.lifecycle
                .is_tracked(stat.pid.cast_unsigned(), stat.starttime)
        };
        let is_in_cgroup = |pid| in_cgroup.as_ref().is_some_and(|pids| pids.contains(&pid));
        let can_leave = matches!(self.scope, Scope::Cgroup(_));
        let scope = &mut self.scope;
        // A process with another start time is a different one.
        self.members.retain(|pid, start| {
            let stat = stats.get(pid);
            let is_same = stat.is_some_and(|(_, stat)| stat.starttime == *start);
            if let (Scope::Pids(roots), false) = (&mut *scope, is_same) {
                roots.remove(pid);
            }
            is_same
        });
        let mut has_grown = true;
        while std::mem::take(&mut has_grown) {
            for (process, stat) in stats.values() {
                let pid = process.pid.cast_unsigned();
                let is_child = || self.members.contains_key(&stat.ppid.cast_unsigned());
                let belongs = match &self.scope {
                    Scope::Node => true,
                    Scope::User(uid) => process.uid().is_ok_and(|owner| owner == *uid),
                    Scope::Cgroup(_) => is_in_cgroup(pid),
                    Scope::Pids(roots) => roots.contains(&pid) || is_recorded(stat) || is_child(),
                    Scope::Job { pids, .. } => {
                        let is_known = pids.contains(&pid) || is_recorded(stat);
                        is_known || is_child() || is_in_cgroup(pid)
                    }
                };
                if belongs {
                    has_grown |= self.members.insert(pid, stat.starttime).is_none();
                } else if can_leave {
                    self.members.remove(&pid);
                }
            }
        }
        if let Scope::Job { pids, .. } = &mut self.scope {
            // They are members now or have ended. A later process with one of the pids is
            // unrelated.
            pids.clear();
        }
    }
}

/// A process in `/proc`, without owner.
fn listed_by(stat: &Stat) -> Listed {
    Listed {
        pid: stat.pid.cast_unsigned(),
        ppid: stat.ppid.cast_unsigned(),
        start: stat.starttime,
        uid: 0,
        comm: comm(stat.comm.as_bytes()),
    }
}

fn listed(procfs: &Path, stat: &Stat) -> Listed {
    let owner = fs::metadata(procfs.join(stat.pid.to_string()));
    Listed {
        uid: owner.map_or(0, |owner| owner.uid()),
        ..listed_by(stat)
    }
}
