//! Names of a process as read from the kernel.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};

use super::{Allocation, Cmdline, ProcessId, allocation};
use crate::{
    bpf::NamesRecord,
    host::Cgroups,
    job::{JobCgroup, JobEnvironment, JobNumbers, trust},
    procfs::{
        cgroup_limits::CgroupLimits,
        memory_file::{self, MemoryFile},
        process_cgroup,
        process_file::{self, SMALL_MAX},
        process_stat,
    },
};

/// Where names are read.
pub(super) struct Origin<'a> {
    pub(super) procfs: &'a Path,
    pub(super) cgroups: &'a Cgroups,
    pub(super) job_numbers: &'a mut JobNumbers,
    /// What the processes of a batch have in common.
    pub(super) shared: &'a mut Shared,
}

/// Names that processes share, read and stored once.
#[derive(Default)]
pub(super) struct Shared {
    /// By content of `/proc/PID/cgroup`.
    cgroups: HashMap<Vec<u8>, Arc<Cgroup>>,
    texts: HashSet<Arc<str>>,
}

impl Shared {
    fn text(&mut self, text: &str) -> Arc<str> {
        Arc::clone(self.texts.get_or_insert_with(text, |text| text.into()))
    }
}

/// Names of a process; `None` if they could not be read.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) cmdline: Option<Cmdline>,
    pub(super) exe: Option<Arc<str>>,
    pub(super) cgroup: Arc<Cgroup>,
    pub(super) allocation: Option<Allocation>,
    pub(super) environment: Option<JobEnvironment>,
    /// Bytes of the process that reading them took, or those of its arguments in a record.
    pub(super) bytes: usize,
}

/// Threads whose CPUs are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    Main,
    All,
}

impl Names {
    /// Reads the names of a process from `/proc`.
    pub(super) fn read(from: &mut Origin<'_>, id: ProcessId) -> Self {
        let mut names = Self::read_files(from, id, Threads::All);
        // Kernel threads have neither executable nor environment.
        let files = [MemoryFile::Cmdline, MemoryFile::Environ];
        let files = &files[..=usize::from(names.exe.is_some())];
        let requests: Vec<_> = files.iter().map(|file| (id.pid, *file)).collect();
        let mut read = memory_file::read_all(from.procfs, &requests).into_iter();
        if let Some(Ok(content)) = read.next() {
            names.bytes += content.bytes.len();
            names.set_args(&content.bytes, content.truncated);
        }
        if let Some(Ok(content)) = read.next() {
            names.bytes += content.bytes.len();
            names.environment = Some(JobEnvironment::parse(content.strings()));
        }
        if id.is_alive(from.procfs) {
            names
        } else {
            Self::default()
        }
    }

    /// Reads what is not in the memory of a process, with the CPUs of its main thread. The names are
    /// those of this process if it is alive afterwards.
    pub(super) fn read_outside_memory(from: &mut Origin<'_>, id: ProcessId) -> Self {
        Self::read_files(from, id, Threads::Main)
    }

    fn read_files(from: &mut Origin<'_>, id: ProcessId, threads: Threads) -> Self {
        let mut cgroup = Cgroup::shared(from, id.pid);
        // Of a process that has exited, it is gone.
        let exe = executable(from.procfs, id.pid);
        if exe.is_none() && cgroup.has_been_left(from.procfs, id.pid) {
            cgroup = Arc::default();
        }
        let cpus = match threads {
            Threads::Main => allocation::cpus_of_main_thread(id.pid),
            Threads::All => allocation::cpus(from.procfs, id.pid),
        };
        let cpus = cpus.filter(|_| cgroup.path.is_some());
        Self {
            allocation: cpus.map(|cpus| Allocation {
                cpus: from.shared.text(&cpus),
                limits: cgroup.limits,
            }),
            exe: exe.map(|exe| from.shared.text(&exe)),
            cgroup,
            ..Self::default()
        }
    }

    /// Adds the CPUs of all threads.
    pub(super) fn read_threads(&mut self, from: &mut Origin<'_>, id: ProcessId) {
        if let Some(allocation) = &mut self.allocation
            && let Some(cpus) = allocation::cpus(from.procfs, id.pid)
            && id.is_alive(from.procfs)
        {
            allocation.cpus = from.shared.text(&cpus);
        }
    }

    /// Adds what is in the memory of the process. Returns `false` if the record does not have all of it.
    pub(super) fn set_memory(&mut self, record: &NamesRecord<'_>) -> bool {
        // A process that has changed its title has overwritten the NUL, and its title can be longer than
        // the arguments were (fs/proc/base.c, get_mm_cmdline).
        let is_title = record.args.last().is_some_and(|last| *last != 0);
        if !record.is_whole() || is_title {
            return false;
        }
        self.bytes = record.args.len();
        self.set_args(record.args, false);
        if self.exe.is_some() {
            let strings = record.environment.split(|byte| *byte == 0);
            self.environment = Some(JobEnvironment::parse(strings));
        }
        true
    }

    fn set_args(&mut self, args: &[u8], truncated: bool) {
        self.cmdline = (!args.is_empty()).then(|| Cmdline::from_args(args, truncated));
    }

    /// Whether the command line needs a budget.
    pub(super) fn has_long_cmdline(&self) -> bool {
        self.cmdline.as_ref().is_some_and(Cmdline::is_long)
    }
}

/// Cgroup of a process.
#[derive(Debug, Default)]
pub(super) struct Cgroup {
    /// As [`Description::cgroup`](super::Description::cgroup).
    pub(super) path: Option<Arc<str>>,
    /// The job that the cgroup proves.
    pub(super) job: Option<JobCgroup>,
    /// Directory of the job.
    job_directory: Option<PathBuf>,
    /// Number of the job, if its directory is named by a SLUID.
    pub(super) job_number: Option<Arc<str>>,
    limits: CgroupLimits,
}

impl Cgroup {
    /// Reads path and job of a process.
    pub(super) fn read(procfs: &Path, cgroups: &Cgroups, pid: u32) -> Self {
        let cgroup = lines(procfs, pid).map(|lines| Self::parse(cgroups, &lines));
        let cgroup = cgroup.filter(|cgroup| !cgroup.has_been_left(procfs, pid));
        cgroup.unwrap_or_default()
    }

    /// The cgroup of a process, with everything about it, unless [it has left it](Self::has_been_left).
    fn shared(from: &mut Origin<'_>, pid: u32) -> Arc<Self> {
        let Some(lines) = lines(from.procfs, pid) else {
            return Arc::default();
        };
        let known = from.shared.cgroups.entry(lines);
        let cgroup = known.or_insert_with_key(|lines| {
            let mut cgroup = Self::parse(from.cgroups, lines);
            if let (Some(job), Some(directory)) = (&cgroup.job, &cgroup.job_directory) {
                cgroup.job_number = from.job_numbers.find(from.procfs, directory, job);
            }
            cgroup.limits = CgroupLimits::read(from.cgroups, lines);
            Arc::new(cgroup)
        });
        Arc::clone(cgroup)
    }

    fn parse(cgroups: &Cgroups, lines: &[u8]) -> Self {
        let (job, job_directory) = trust::proven_job(cgroups, lines).unzip();
        Self {
            path: cgroup_path(lines),
            job,
            job_directory: job_directory.flatten(),
            ..Self::default()
        }
    }

    /// Whether the process is in this cgroup because it is exiting: in version 1 it is then moved to the
    /// root.
    fn has_been_left(&self, procfs: &Path, pid: u32) -> bool {
        self.path.as_deref() == Some("/") && process_stat::has_exited(procfs, pid)
    }
}

/// `/proc/PID/cgroup`.
fn lines(procfs: &Path, pid: u32) -> Option<Vec<u8>> {
    let content = process_file::read(procfs, pid, "cgroup", SMALL_MAX);
    Some(content.ok()?.bytes)
}

/// Selects the path for [`Description::cgroup`](super::Description::cgroup) from the lines of
/// `/proc/PID/cgroup`.
fn cgroup_path(text: &[u8]) -> Option<Arc<str>> {
    let lines = || process_cgroup::lines(text);
    let is_v2 =
        |line: &process_cgroup::Line<'_>| line.hierarchy == "0" && line.controllers.is_empty();
    lines()
        .find(|line| is_v2(line) && line.path != Path::new("/"))
        .or_else(|| lines().find(|line| line.path != Path::new("/")))
        .or_else(|| lines().next())
        .map(|line| line.path.to_string_lossy().into())
}

/// Path of the executable; `None` for kernel threads, and without permission.
pub(super) fn executable(procfs: &Path, pid: u32) -> Option<Arc<str>> {
    let path = process_file::executable(procfs, pid)?;
    Some(path.to_string_lossy().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_of_version_2_has_precedence() {
        let path = |lines: &str| cgroup_path(lines.as_bytes()).map(|path| path.to_string());
        assert_eq!(path("4:cpu:/a\n0::/b\n").as_deref(), Some("/b"));
        assert_eq!(path("5:io:/\n4:cpu:/a\n0::/\n").as_deref(), Some("/a"));
        assert_eq!(path("5:io:/\n0::/\n").as_deref(), Some("/"));
        assert_eq!(path(""), None);
    }
}
