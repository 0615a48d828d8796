//! Names of a process: command, executable, command line, cgroup, batch job.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use hashbrown::HashMap;
use profiler_ebpf::event::{Environment, Exec, VARIABLE_MAX};

use super::{Allocation, Budget, Cmdline, ProcessId, allocation};
use crate::{
    host::{Cgroups, Host},
    job::{JobCgroup, JobEnvironment, JobNumbers, Membership, trust},
    procfs::{
        cgroup_limits::CgroupLimits,
        memory_file::{self, MemoryFile},
        process_cgroup,
        process_file::{self, SMALL_MAX},
        process_stat,
    },
};

/// Names of a process; `None` if unknown.
#[derive(Clone, Debug)]
pub struct Description {
    /// Command name (`task_struct.comm`, at most 15 bytes).
    pub comm: Arc<str>,
    /// Path of the executable as resolved by the kernel; if the process ended before it was read,
    /// as passed to exec(2).
    pub exe: Option<Arc<str>>,
    /// Command line.
    pub cmdline: Option<Cmdline>,
    /// Path of the cgroup: of version 2, or if that is the root, of the first hierarchy of version
    /// 1 in which the process is not in the root.
    pub cgroup: Option<Arc<str>>,
    /// CPUs and memory that it may use.
    pub allocation: Option<Allocation>,
    /// Batch job.
    pub job: Membership,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            comm: "".into(),
            exe: None,
            cmdline: None,
            cgroup: None,
            allocation: None,
            job: Membership::default(),
        }
    }
}

/// Limits by content of `/proc/PID/cgroup`, because many processes share a cgroup.
pub(super) type Limits = HashMap<Vec<u8>, CgroupLimits>;

/// Names read from `/proc`; `None` if they could not be read.
#[derive(Debug, Default)]
pub(super) struct Names {
    cmdline: Option<Cmdline>,
    exe: Option<Arc<str>>,
    cgroup: Cgroup,
    allocation: Option<Allocation>,
    environment: Option<JobEnvironment>,
    /// Bytes read from the memory of the process.
    pub(super) bytes: usize,
}

impl Names {
    /// Reads the names of a process.
    pub(super) fn read(
        procfs: &Path,
        cgroups: &Cgroups,
        job_numbers: &mut JobNumbers,
        limits: &mut Limits,
        id: ProcessId,
    ) -> Self {
        let mut names = Self {
            exe: executable(procfs, id.pid),
            cgroup: Cgroup::read(procfs, cgroups, id.pid),
            ..Self::default()
        };
        if let Some(cpus) = allocation::cpus(procfs, id.pid)
            && names.cgroup.path.is_some()
        {
            let lines = &names.cgroup.lines;
            let limits = limits
                .entry_ref(&lines[..])
                .or_insert_with(|| CgroupLimits::read(cgroups, lines));
            let limits = *limits;
            names.allocation = Some(Allocation { cpus, limits });
        }
        if let (Some(job), Some(directory)) = (&names.cgroup.job, &names.cgroup.job_directory) {
            names.cgroup.job_number = job_numbers.find(procfs, directory, job);
        }
        // Kernel threads have neither executable nor environment.
        let files = [MemoryFile::Cmdline, MemoryFile::Environ];
        let files = &files[..=usize::from(names.exe.is_some())];
        let requests: Vec<_> = files.iter().map(|file| (id.pid, *file)).collect();
        let mut read = memory_file::read_all(procfs, &requests).into_iter();
        if let Some(Ok(content)) = read.next() {
            names.bytes += content.bytes.len();
            names.cmdline = (!content.bytes.is_empty())
                .then(|| Cmdline::from_args(&content.bytes, content.truncated));
        }
        if let Some(Ok(content)) = read.next() {
            names.bytes += content.bytes.len();
            names.environment = Some(JobEnvironment::parse(content.strings()));
        }
        if is_alive(procfs, id) {
            names
        } else {
            Self::default()
        }
    }

    /// Whether the command line needs a budget.
    pub(super) fn has_long_cmdline(&self) -> bool {
        self.cmdline.as_ref().is_some_and(Cmdline::is_long)
    }
}

/// Cgroup of a process.
#[derive(Debug, Default)]
struct Cgroup {
    /// `/proc/PID/cgroup`.
    lines: Vec<u8>,
    path: Option<Arc<str>>,
    /// The job that the cgroup proves, and its directory.
    job: Option<JobCgroup>,
    job_directory: Option<PathBuf>,
    /// Number of the job, if its directory is named by a SLUID.
    job_number: Option<Arc<str>>,
}

impl Cgroup {
    fn read(procfs: &Path, cgroups: &Cgroups, pid: u32) -> Self {
        let Ok(content) = process_file::read(procfs, pid, "cgroup", SMALL_MAX) else {
            return Self::default();
        };
        let lines = content.bytes;
        let path = cgroup_path(&lines);
        // In version 1 an exiting process is moved to the root.
        let has_left = path.as_deref() == Some("/") && process_stat::has_exited(procfs, pid);
        let (job, job_directory) = trust::proven_job(cgroups, &lines).unzip();
        Self {
            path: path.filter(|_| !has_left),
            lines,
            job,
            job_directory: job_directory.flatten(),
            job_number: None,
        }
    }
}

impl Description {
    /// Applies names read from `/proc`. Names that could not be read keep their value.
    pub(super) fn set_names(
        &mut self,
        names: Names,
        job_numbers: &mut JobNumbers,
        cmdlines: &mut Budget,
        uid: u32,
    ) {
        self.exe = names.exe.or(self.exe.take());
        let cmdline = names.cmdline.map(|cmdline| cmdline.within(cmdlines, uid));
        self.cmdline = cmdline.or(self.cmdline.take());
        if let (Some(job), Some(number)) = (&names.cgroup.job, &names.cgroup.job_number) {
            job_numbers.insert_of(job, Arc::clone(number));
        }
        self.set_cgroup(names.cgroup, job_numbers);
        self.allocation = names.allocation.or(self.allocation.take());
        if let Some(environment) = &names.environment {
            self.job.set_environment(environment);
        }
    }

    fn set_cgroup(&mut self, cgroup: Cgroup, job_numbers: &JobNumbers) {
        self.cgroup = cgroup.path.or(self.cgroup.take());
        if let Some(job) = &cgroup.job {
            self.job.set_cgroup(job, job_numbers.job_id(job));
        }
    }

    /// Applies an exec. Returns whether names have to be read from `/proc` in addition.
    #[must_use]
    pub(super) fn on_exec(
        &mut self,
        host: &Host,
        job_numbers: &JobNumbers,
        cmdlines: &mut Budget,
        exec: &Exec,
        args: &[u8],
    ) -> bool {
        let id = ProcessId::from(exec);
        self.set_comm(&exec.comm);
        self.exe = Some(text(&exec.path));
        let is_whole = u64::from(exec.args_len) == exec.args_total && exec.args_len != 0;
        self.cmdline = (exec.args_len != 0)
            .then(|| Cmdline::from_args(args, !is_whole).within(cmdlines, exec.uid));
        if !is_alive(&host.procfs, id) {
            return false;
        }
        self.exe = executable(&host.procfs, id.pid).or(self.exe.take());
        let mut cgroup = Cgroup::read(&host.procfs, &host.cgroups, id.pid);
        let has_number = cgroup
            .job
            .as_ref()
            .is_none_or(|job| job_numbers.is_known(job));
        cgroup.job = cgroup.job.filter(|_| has_number);
        // The limits are those of the parent if the cgroup is.
        if cgroup.path.is_some() && cgroup.path != self.cgroup {
            self.allocation = None;
        }
        let needs_limits = cgroup.path.is_some() && self.allocation.is_none();
        self.set_cgroup(cgroup, job_numbers);
        if let (Some(allocation), Some(cpus)) =
            (&mut self.allocation, allocation::cpus_after_exec(id.pid))
            && allocation.cpus != cpus
        {
            allocation.cpus = cpus;
        }
        !is_whole || !has_number || needs_limits
    }

    /// Applies an exec of which only the command name is known. The other names are read from
    /// `/proc`.
    pub(super) fn on_recorded_exec(&mut self, comm: &[u8; 16]) {
        self.set_comm(comm);
        (self.exe, self.cmdline) = (None, None);
    }

    /// Applies the environment of an exec. Returns whether names have to be read from `/proc` in
    /// addition.
    #[must_use]
    pub(super) fn on_environment(&mut self, host: &Host, environment: &Environment) -> bool {
        let count = environment.count as usize;
        let variables = environment.variables.iter().take(count);
        let parsed = JobEnvironment::parse(variables.map(<[u8; VARIABLE_MAX]>::as_slice));
        self.job.set_environment(&parsed);
        environment.truncated != 0 && is_alive(&host.procfs, environment.into())
    }

    /// Sets the command name from a string that NUL ends.
    pub(super) fn set_comm(&mut self, comm: &[u8]) {
        if self.comm.as_bytes() != until_nul(comm) {
            self.comm = text(comm);
        }
    }
}

/// A string that NUL ends.
pub(super) fn text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(until_nul(bytes)).into()
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

fn executable(procfs: &Path, pid: u32) -> Option<Arc<str>> {
    let path = process_file::executable(procfs, pid)?;
    Some(path.to_string_lossy().into())
}

/// Selects the path for [`Description::cgroup`] from the lines of `/proc/PID/cgroup`.
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

/// Whether the process still exists.
pub(super) fn is_alive(procfs: &Path, id: ProcessId) -> bool {
    process_stat::has_start(procfs, id.pid, id.start_boottime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::stat::tick_ns;

    #[test]
    fn text_ends_at_nul() {
        assert_eq!(&*text(b"true\0garbage"), "true");
        assert_eq!(&*text(b"\xff\0"), "\u{fffd}");
    }

    #[test]
    fn cgroup_of_version_2_has_precedence() {
        let path = |lines: &str| cgroup_path(lines.as_bytes()).map(|path| path.to_string());
        assert_eq!(path("4:cpu:/a\n0::/b\n").as_deref(), Some("/b"));
        assert_eq!(path("5:io:/\n4:cpu:/a\n0::/\n").as_deref(), Some("/a"));
        assert_eq!(path("5:io:/\n0::/\n").as_deref(), Some("/"));
        assert_eq!(path(""), None);
    }

    #[test]
    fn describes_this_process() {
        let procfs = Path::new("/proc");
        let pid = std::process::id();
        let stat = process_stat::of_process(procfs, pid).expect("stat");
        let id = ProcessId {
            pid,
            start_boottime: stat.starttime * tick_ns(),
        };
        let mut description = Description::default();
        let (cgroups, mut numbers) = (Cgroups::default(), JobNumbers::default());
        let names = Names::read(procfs, &cgroups, &mut numbers, &mut Limits::new(), id);
        let mut budget = Budget::new(1 << 20);
        description.set_names(names, &mut JobNumbers::default(), &mut budget, 0);
        let exe = std::env::current_exe()
            .expect("exe")
            .to_string_lossy()
            .into_owned();
        assert_eq!(description.exe.as_deref(), Some(&*exe));
        assert!(description.cmdline.is_some() && description.cgroup.is_some());
        // An earlier process with the same pid.
        let earlier = ProcessId {
            pid,
            start_boottime: 0,
        };
        let names = Names::read(procfs, &cgroups, &mut numbers, &mut Limits::new(), earlier);
        assert!(names.exe.is_none());
    }
}
