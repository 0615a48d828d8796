//! Following of tasks: events of the BPF programs, additions to the target, live processes.

use std::{io, os::fd::OwnedFd};

use anyhow::Result;

use super::{Process, Programs, Reader, TaskTable};
use crate::{
    job::{JobDirectory, ROOTS_MAX},
    procfs::process_stat::{self, has_ended},
};

/// Losses of the `/proc` fallback.
#[derive(Clone, Copy, Debug)]
pub struct ProcfsLosses {
    /// Processes that ended between two readings, so that their counters are unknown.
    pub uncounted: u64,
    /// Forks, execs and ends that the kernel could not record.
    pub records: u64,
    /// Processes whose descendants are known only from readings.
    pub unrecorded: u64,
    /// Processes and threads that can have been missed, because forks are not recorded.
    pub missed_at_most: u64,
}

impl TaskTable {
    /// The BPF programs, if readings come from them.
    pub fn programs(&mut self) -> Option<&mut Programs> {
        match &mut self.reader {
            Reader::Bpf(programs) => Some(programs),
            Reader::Procfs(_) | Reader::None => None,
        }
    }

    /// A descriptor that is readable when events should be drained.
    pub fn events_fd(&self) -> Option<io::Result<OwnedFd>> {
        match &self.reader {
            Reader::Bpf(programs) => Some(programs.tasks.events_fd()),
            Reader::Procfs(reader) => reader.events_fd(),
            Reader::None => None,
        }
    }

    /// Follows the process of a command, which has not started yet.
    ///
    /// # Errors
    ///
    /// If the BPF maps or the tasks cannot be read or written.
    pub fn follow_command(&mut self, pid: u32) -> Result<()> {
        match &mut self.reader {
            Reader::Procfs(reader) => {
                reader.follow_command(&self.host.procfs, pid);
                Ok(())
            }
            Reader::Bpf(_) | Reader::None => self.follow_more(None, &[pid]),
        }
    }

    /// Losses of the `/proc` fallback so far.
    pub fn procfs_losses(&self) -> Option<ProcfsLosses> {
        let Reader::Procfs(reader) = &self.reader else {
            return None;
        };
        Some(ProcfsLosses {
            uncounted: self.uncounted,
            records: reader.records_lost(),
            unrecorded: reader.unrecorded(),
            missed_at_most: reader.missed_at_most(),
        })
    }

    /// Number of live processes of the target.
    ///
    /// # Errors
    ///
    /// If the counters of the BPF programs cannot be read.
    pub fn live(&self) -> Result<u64> {
        Ok(match &self.reader {
            Reader::Bpf(programs) => programs.tasks.counters()?.live,
            Reader::Procfs(_) | Reader::None => self.live_processes().count() as u64,
        })
    }

    /// Live processes of the target; without BPF, as of the last reading.
    ///
    /// # Errors
    ///
    /// If the map cannot be read.
    pub fn live_pids(&self) -> Result<Vec<u32>> {
        Ok(match &self.reader {
            Reader::Bpf(programs) => programs.tasks.live_processes()?,
            Reader::Procfs(_) | Reader::None => self
                .live_processes()
                .map(|process| process.id.pid)
                .collect(),
        })
    }

    /// Number of live processes of the target, as of the last reading, that are the profiler or its
    /// children.
    pub fn live_own(&self) -> u64 {
        let own = std::process::id();
        let is_own = |process: &&Process| process.id.pid == own || process.ppid == own;
        self.live_processes().filter(is_own).count() as u64
    }

    fn live_processes(&self) -> impl Iterator<Item = &Process> {
        self.iter().filter(|process| process.end.is_none())
    }

    /// Whether a process has exited without an exit event, because its last thread has not left its
    /// CPU yet.
    pub fn any_exiting(&self) -> bool {
        let Reader::Bpf(programs) = &self.reader else {
            return false;
        };
        let mut live = programs
            .tasks
            .live_processes()
            .unwrap_or_default()
            .into_iter();
        live.any(|pid| {
            process_stat::of_process(&self.host.procfs, pid).is_none_or(|stat| has_ended(&stat))
        })
    }

    /// Replaces the cgroups of a job, and adds processes, with all their descendants.
    ///
    /// # Errors
    ///
    /// If the BPF maps or the tasks cannot be read or written.
    pub fn follow_more(
        &mut self,
        directories: Option<&[JobDirectory]>,
        pids: &[u32],
    ) -> Result<()> {
        match &mut self.reader {
            Reader::Bpf(programs) => {
                if let Some(directories) = directories {
                    let inodes = directories.iter().map(|directory| directory.inode);
                    programs.tasks.set_cgroups(&inodes.collect::<Vec<u64>>())?;
                    programs.tasks.mark()?;
                }
                for chunk in pids.chunks(ROOTS_MAX) {
                    let roots: Vec<_> = chunk.iter().map(|pid| (*pid, 0)).collect();
                    programs.tasks.adopt(&roots)?;
                }
            }
            Reader::Procfs(reader) => reader.follow_more(&self.host.procfs, directories, pids),
            Reader::None => {}
        }
        Ok(())
    }

    /// Drains the ring buffers, and follows tasks that were moved into the cgroup. To be called when
    /// [`Self::events_fd`] is readable.
    ///
    /// # Errors
    ///
    /// If the tasks cannot be read.
    pub fn drain_events(&mut self) -> Result<()> {
        if let Reader::Procfs(reader) = &mut self.reader {
            reader.drain();
        }
        if let Reader::Bpf(programs) = &mut self.reader {
            programs.tasks.drain(&mut self.events)?;
        }
        Ok(())
    }
}
