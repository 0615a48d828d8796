//! Readings of the target's processes from `/proc`, where BPF cannot be used.
//!
//! This is slower, and processes that start and end between two readings are missing.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use procfs::{
    ProcResult,
    process::{Io, Process, Stat, Status, all_processes_with_root},
};
use profiler_ebpf::record::{FDS_UNKNOWN, ProcessRecord, ThreadRecord, Totals};

use crate::{
    host::Host,
    job::JobDirectory,
    procfs::{process_cgroup, process_stat, stat::tick_ns},
};

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
    /// All processes.
    Node,
}

/// Reader of processes from `/proc`.
pub struct Walker {
    scope: Scope,
    /// Start times of the members, in clock ticks, by pid. A descendant remains a member after its
    /// parent has ended.
    members: HashMap<u32, u64>,
    threads: bool,
    page: u64,
    tick_ns: u64,
}

/// A process as read from `/proc`.
pub struct Observed {
    /// Everything but counters.
    pub process: ProcessRecord,
    /// Counters of the process, including ended threads.
    pub totals: Totals,
    /// Whether I/O accounting could be read.
    pub io_read: bool,
    /// Its main thread, or all threads with `--threads`.
    pub threads: Vec<ThreadRecord>,
}

/// Processes of `/proc` by pid.
type Stats = HashMap<i32, (Process, Stat)>;

impl Walker {
    /// A reader of the processes of `scope` and, with `threads`, of all their threads.
    pub fn new(scope: Scope, threads: bool) -> Self {
        Self {
            scope,
            members: HashMap::new(),
            threads,
            page: rustix::param::page_size() as u64,
            tick_ns: tick_ns(),
        }
    }

    /// Replaces the cgroups of a job, and adds processes.
    pub fn follow_more(&mut self, directories: Option<&[JobDirectory]>, more: &[u32]) {
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
            Scope::Cgroup(_) | Scope::Node => {}
        }
    }

    /// Reads all processes of the target. Processes that end during the reading are omitted.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be listed.
    pub fn read(&mut self, host: &Host) -> Result<Vec<Observed>> {
        let mut stats = Stats::new();
        for process in all_processes_with_root(&host.procfs)
            .context("listing /proc")?
            .flatten()
        {
            if let Some(stat) = process_stat::of_process(&host.procfs, process.pid.cast_unsigned())
            {
                stats.insert(stat.pid, (process, stat));
            }
        }
        // Descendants of a shell that is the target include the profiler.
        if matches!(self.scope, Scope::Pids(_)) {
            stats.remove(&std::process::id().cast_signed());
        }
        self.update_members(&stats);
        let mut observed: Vec<_> = self
            .members
            .keys()
            .filter_map(|pid| stats.get(&pid.cast_signed()))
            // A zombie has ended.
            .filter(|(_, stat)| stat.state != 'Z')
            .filter_map(|(process, stat)| self.observe(host, process, stat))
            .collect();
        observed.sort_unstable_by_key(|observed| observed.process.pid);
        Ok(observed)
    }

    /// Adds processes that belong to the target, and removes those that have ended or left the
    /// cgroup.
    fn update_members(&mut self, stats: &Stats) {
        let in_cgroup: Option<HashSet<u32>> = match &self.scope {
            Scope::Cgroup(directory) => {
                Some(process_cgroup::members(directory).into_iter().collect())
            }
            Scope::Job { directories, .. } => Some(
                directories
                    .iter()
                    .flat_map(|directory| process_cgroup::members(directory))
                    .collect(),
            ),
            Scope::Pids(_) | Scope::Node => None,
        };
        let is_in_cgroup = |pid| in_cgroup.as_ref().is_some_and(|pids| pids.contains(&pid));
        let can_leave = matches!(self.scope, Scope::Cgroup(_));
        // A process with another start time is a different one.
        self.members.retain(|pid, start| {
            stats
                .get(&pid.cast_signed())
                .is_some_and(|(_, stat)| stat.starttime == *start)
        });
        let mut has_grown = true;
        while std::mem::take(&mut has_grown) {
            for (process, stat) in stats.values() {
                let pid = process.pid.cast_unsigned();
                let is_child = || self.members.contains_key(&stat.ppid.cast_unsigned());
                let belongs = match &self.scope {
                    Scope::Node => true,
                    Scope::Cgroup(_) => is_in_cgroup(pid),
                    Scope::Pids(roots) => roots.contains(&pid) || is_child(),
                    Scope::Job { pids, .. } => {
                        pids.contains(&pid) || is_child() || is_in_cgroup(pid)
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

    fn observe(&self, host: &Host, process: &Process, stat: &Stat) -> Option<Observed> {
        let mut totals = Totals {
            utime: self.ns(stat.utime),
            stime: self.ns(stat.stime),
            min_flt: stat.minflt,
            maj_flt: stat.majflt,
            ..Totals::default()
        };
        let record = self.record(process, stat)?;
        totals.oncpu = totals.utime.saturating_add(totals.stime);
        let io_read = add_io(&mut totals, &process.io());
        let mut threads = Vec::new();
        for task in process.tasks().into_iter().flatten().flatten() {
            let directory = host
                .procfs
                .join(format!("{}/task/{}", record.pid, task.tid));
            let (Some(stat), Ok(status)) = (process_stat::read(&directory), task.status()) else {
                continue;
            };
            let switches = status.voluntary_ctxt_switches.unwrap_or(0);
            totals.nvcsw = totals.nvcsw.saturating_add(switches);
            let switches = status.nonvoluntary_ctxt_switches.unwrap_or(0);
            totals.nivcsw = totals.nivcsw.saturating_add(switches);
            if self.threads || task.tid == process.pid {
                let mut thread = self.thread(&record, task.tid, &stat, &status);
                if self.threads {
                    add_io(&mut thread.totals, &task.io());
                }
                threads.push(thread);
            }
        }
        Some(Observed {
            process: record,
            totals,
            io_read,
            threads,
        })
    }

    fn record(&self, process: &Process, stat: &Stat) -> Option<ProcessRecord> {
        let statm = process.statm().ok()?;
        let status = process.status().ok()?;
        let mut record = ProcessRecord {
            pid: stat.pid.cast_unsigned(),
            ppid: stat.ppid.cast_unsigned(),
            uid: status.ruid,
            threads: u32::try_from(stat.num_threads).unwrap_or(0),
            fds: process
                .fd_count()
                .ok()
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or(FDS_UNKNOWN),
            has_mm: (statm.size != 0).into(),
            start_boottime: self.ns(stat.starttime),
            total_vm: statm.size,
            data_vm: statm.data,
            // The kernel has rounded the size to pages.
            start_code: 0,
            end_code: statm.text.saturating_mul(self.page),
            hiwater_rss: status
                .vmhwm
                .map_or(0, |kib| kib.saturating_mul(1024) / self.page),
            ..ProcessRecord::default()
        };
        let pages =
            |kib: Option<u64>| (kib.unwrap_or(0).saturating_mul(1024) / self.page).cast_signed();
        record.rss = [
            pages(status.rssfile),
            pages(status.rssanon),
            pages(status.vmswap),
            pages(status.rssshmem),
        ];
        let name = stat.comm.as_bytes();
        let length = name.len().min(record.comm.len() - 1);
        record.comm[..length].copy_from_slice(&name[..length]);
        Some(record)
    }

    fn ns(&self, ticks: u64) -> u64 {
        ticks.saturating_mul(self.tick_ns)
    }

    fn thread(
        &self,
        process: &ProcessRecord,
        tid: i32,
        stat: &Stat,
        status: &Status,
    ) -> ThreadRecord {
        let (utime, stime) = (self.ns(stat.utime), self.ns(stat.stime));
        // Bits of `task_struct.__state`.
        let state = match stat.state {
            'S' => 1,
            'D' => 2,
            'T' => 4,
            't' => 8,
            'I' => 0x402,
            _ => 0,
        };
        ThreadRecord {
            pid: process.pid,
            tid: tid.cast_unsigned(),
            start_boottime: process.start_boottime,
            thread_start_boottime: self.ns(stat.starttime),
            cpu: stat.processor.unwrap_or(0).cast_unsigned(),
            state,
            totals: Totals {
                utime,
                stime,
                oncpu: utime.saturating_add(stime),
                nvcsw: status.voluntary_ctxt_switches.unwrap_or(0),
                nivcsw: status.nonvoluntary_ctxt_switches.unwrap_or(0),
                min_flt: stat.minflt,
                maj_flt: stat.majflt,
                ..Totals::default()
            },
            ..ThreadRecord::default()
        }
    }
}

/// Sets the counters of I/O accounting. Returns whether it could be read.
fn add_io(totals: &mut Totals, io: &ProcResult<Io>) -> bool {
    let Ok(io) = io else { return false };
    totals.rchar = io.rchar;
    totals.wchar = io.wchar;
    totals.syscr = io.syscr;
    totals.syscw = io.syscw;
    totals.read_bytes = io.read_bytes;
    totals.write_bytes = io.write_bytes;
    totals.cancelled_write_bytes = io.cancelled_write_bytes;
    true
}
