//! Names of a process: command, executable, command line, cgroup, batch job.

use std::sync::Arc;

use profiler_ebpf::event::{Environment, Exec, VARIABLE_MAX};

use super::{
    Allocation, Budget, Cmdline, ProcessId, allocation,
    names::{Cgroup, Names, executable},
};
use crate::{
    host::Host,
    job::{JobEnvironment, JobNumbers, Membership},
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

impl Description {
    /// Applies names. Those that could not be read keep their value.
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
        self.set_cgroup(&names.cgroup, job_numbers);
        self.allocation = names.allocation.or(self.allocation.take());
        if let Some(environment) = &names.environment {
            self.job.set_environment(environment);
        }
    }

    fn set_cgroup(&mut self, cgroup: &Cgroup, job_numbers: &JobNumbers) {
        self.cgroup = cgroup.path.clone().or(self.cgroup.take());
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
        if !id.is_alive(&host.procfs) {
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
        self.set_cgroup(&cgroup, job_numbers);
        // After an exec, there is only the main thread.
        if let (Some(allocation), Some(cpus)) = (
            &mut self.allocation,
            allocation::cpus_of_main_thread(id.pid),
        ) && allocation.cpus != cpus
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
        environment.truncated != 0 && ProcessId::from(environment).is_alive(&host.procfs)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{
        super::names::{Origin, Shared},
        *,
    };
    use crate::{
        host::Cgroups,
        procfs::{process_stat, stat::tick_ns},
    };

    #[test]
    fn text_ends_at_nul() {
        assert_eq!(&*text(b"true\0garbage"), "true");
        assert_eq!(&*text(b"\xff\0"), "\u{fffd}");
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
        let read = |id| {
            let mut origin = Origin {
                procfs,
                cgroups: &Cgroups::default(),
                job_numbers: &mut JobNumbers::default(),
                shared: &mut Shared::default(),
            };
            Names::read(&mut origin, id)
        };
        let names = read(id);
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
        assert!(read(earlier).exe.is_none());
    }
}
