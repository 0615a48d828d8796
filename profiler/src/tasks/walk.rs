//! The processes of the target from /proc, where BPF cannot be used.
//!
//! Slower, and blind to processes that live less than an interval; which are then missing, not guessed.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use anyhow::{Context as _, Result};
use procfs::{
    FromRead as _, ProcResult,
    process::{Io, Process, Stat, Status, all_processes_with_root},
};
use profiler_ebpf::wire::{self, ProcessRecord, Thread, Totals};

use crate::{
    host::Host,
    job::Directory,
    procfs::process_file::{self, SMALL_MAX},
};

/// Which processes are read.
#[derive(Clone, Debug)]
pub enum Scope {
    /// These and their descendants.
    Pids(HashSet<u32>),
    /// Members of the cgroup with this directory, and of those below it.
    Cgroup(std::path::PathBuf),
    /// Members of the cgroups with these directories, these processes, and the descendants of both.
    Job {
        /// The directories.
        directories: Vec<std::path::PathBuf>,
        /// The processes, until they are found.
        pids: HashSet<u32>,
    },
    /// Everything.
    Node,
}

/// Reads processes from /proc.
pub struct Walker {
    scope: Scope,
    /// Members so far: a descendant stays one when its parent has ended.
    members: HashMap<u32, u64>,
    threads: bool,
    page: u64,
    tick_ns: u64,
}

/// What /proc says of a process.
pub struct Observed {
    /// Everything but counters.
    pub process: ProcessRecord,
    /// Counters of the whole process, ended threads included.
    pub totals: Totals,
    /// Whether I/O accounting could be read.
    pub io_read: bool,
    /// Its first thread, or all with `--threads`.
    pub threads: Vec<Thread>,
}

impl Walker {
    /// Reads the processes of `scope`; each of their threads too if wanted.
    pub fn new(scope: Scope, threads: bool) -> Self {
        Self {
            scope,
            members: HashMap::new(),
            threads,
            page: rustix::param::page_size() as u64,
            tick_ns: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
        }
    }

    /// Follows the members of these cgroups, instead of those before, and these processes.
    pub fn follow_more(&mut self, now: Option<&[Directory]>, more: &[u32]) {
        match &mut self.scope {
            Scope::Job { directories, pids } => {
                if let Some(now) = now {
                    *directories = now.iter().map(|directory| directory.path.clone()).collect();
                }
                pids.extend(more);
            }
            Scope::Pids(pids) => pids.extend(more),
            Scope::Cgroup(_) | Scope::Node => {}
        }
    }

    /// Reads all processes of the target; those that vanish meanwhile are left out.
    ///
    /// # Errors
    ///
    /// When /proc cannot be listed.
    pub fn read(&mut self, host: &Host) -> Result<Vec<Observed>> {
        let mut stats = HashMap::new();
        for process in all_processes_with_root(&host.procfs)
            .context("listing /proc")?
            .flatten()
        {
            if let Some(stat) = stat_of(&host.procfs.join(process.pid.to_string())) {
                stats.insert(stat.pid, (process, stat));
            }
        }
        let in_cgroup = match &self.scope {
            Scope::Cgroup(directory) => Some(members_of(directory)),
            Scope::Job { directories, .. } => Some(
                directories
                    .iter()
                    .flat_map(|directory| members_of(directory))
                    .collect(),
            ),
            Scope::Pids(_) | Scope::Node => None,
        };
        let in_cgroup: Option<HashSet<u32>> = in_cgroup;
        // Whoever profiles their own shell does not mean the profiler.
        if matches!(self.scope, Scope::Pids(_)) {
            stats.remove(&std::process::id().cast_signed());
        }
        let leaves = matches!(self.scope, Scope::Cgroup(_));
        // A pid that is used again is another process.
        self.members.retain(|pid, start| {
            stats
                .get(&pid.cast_signed())
                .is_some_and(|(_, stat)| stat.starttime == *start)
        });
        let mut grown = true;
        while std::mem::take(&mut grown) {
            for (process, stat) in stats.values() {
                let pid = process.pid.cast_unsigned();
                let belongs = match &self.scope {
                    Scope::Node => true,
                    Scope::Cgroup(_) => in_cgroup.as_ref().is_some_and(|pids| pids.contains(&pid)),
                    Scope::Pids(roots) => {
                        roots.contains(&pid)
                            || self.members.contains_key(&stat.ppid.cast_unsigned())
                    }
                    Scope::Job { pids, .. } => {
                        pids.contains(&pid)
                            || self.members.contains_key(&stat.ppid.cast_unsigned())
                            || in_cgroup
                                .as_ref()
                                .is_some_and(|members| members.contains(&pid))
                    }
                };
                if belongs {
                    grown |= self.members.insert(pid, stat.starttime).is_none();
                } else if leaves {
                    self.members.remove(&pid);
                }
            }
        }
        if let Scope::Job { pids, .. } = &mut self.scope {
            // Found now, or gone; whoever has the pid later is somebody else.
            pids.clear();
        }
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

    fn observe(&self, host: &Host, process: &Process, stat: &Stat) -> Option<Observed> {
        let pid = stat.pid.cast_unsigned();
        let statm = process.statm().ok()?;
        let status = process.status().ok()?;
        let start_boottime = self.ns(stat.starttime);
        let mut record = ProcessRecord {
            pid,
            ppid: stat.ppid.cast_unsigned(),
            uid: status.ruid,
            threads: u32::try_from(stat.num_threads).unwrap_or(0),
            fds: process
                .fd_count()
                .ok()
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or(wire::FDS_UNKNOWN),
            has_mm: (statm.size != 0).into(),
            start_boottime,
            total_vm: statm.size,
            data_vm: statm.data,
            // Already rounded to pages.
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

        let mut totals = Totals {
            utime: self.ns(stat.utime),
            stime: self.ns(stat.stime),
            min_flt: stat.minflt,
            maj_flt: stat.majflt,
            ..Totals::default()
        };
        totals.oncpu = totals.utime.saturating_add(totals.stime);
        let io_read = add_io(&mut totals, &process.io());
        let mut threads = Vec::new();
        for task in process.tasks().into_iter().flatten().flatten() {
            let directory = host.procfs.join(format!("{pid}/task/{}", task.tid));
            let (Some(stat), Ok(status)) = (stat_of(&directory), task.status()) else {
                continue;
            };
            let switches = status.voluntary_ctxt_switches.unwrap_or(0);
            totals.nvcsw = totals.nvcsw.saturating_add(switches);
            let switches = status.nonvoluntary_ctxt_switches.unwrap_or(0);
            totals.nivcsw = totals.nivcsw.saturating_add(switches);
            if self.threads || task.tid == process.pid {
                let mut thread = self.thread(pid, start_boottime, task.tid, &stat, &status);
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

    /// Ticks of the user interface (USER_HZ).
    fn ns(&self, ticks: u64) -> u64 {
        ticks.saturating_mul(self.tick_ns)
    }

    fn thread(
        &self,
        pid: u32,
        start_boottime: u64,
        tid: i32,
        stat: &Stat,
        status: &Status,
    ) -> Thread {
        let (utime, stime) = (self.ns(stat.utime), self.ns(stat.stime));
        let state = match stat.state {
            'S' => 1,
            'D' => 2,
            'T' => 4,
            't' => 8,
            'I' => 0x402,
            _ => 0,
        };
        Thread {
            pid,
            tid: tid.cast_unsigned(),
            start_boottime,
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
            ..Thread::default()
        }
    }
}

/// `stat` in the directory of a process or thread: `pid (name) state …`. The crate's parser takes these for granted.
pub(crate) fn stat_of(directory: &Path) -> Option<Stat> {
    let text = process_file::bounded(&directory.join("stat"), SMALL_MAX).ok()?;
    let text = text.bytes;
    let begin = text.iter().position(|&byte| byte == b'(')?;
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let pid = text.get(..begin)?.strip_suffix(b" ")?;
    let is_pid = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
    let has_state =
        matches!(text.get(end + 1..)?, [b' ', state, ..] if state.is_ascii_alphabetic());
    (is_pid && begin < end && has_state)
        .then(|| Stat::from_read(&text[..]).ok())
        .flatten()
}

/// Takes over I/O accounting; whether there is any.
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

/// Processes in a cgroup and in those below it.
fn members_of(directory: &Path) -> HashSet<u32> {
    let mut members = HashSet::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(procs) = std::fs::read_to_string(directory.join("cgroup.procs")) else {
            continue;
        };
        members.extend(procs.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
            }
        }
    }
    members
}
