//! Names of a process: command, executable, command line, cgroup.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use profiler_ebpf::wire::{Environment, Exec, VARIABLE_MAX};

use super::{Budget, Cmdline, ProcessId};
use crate::{
    host::{Cgroups, Host},
    job::{Membership, Numbers, Place, Stated, trust},
    procfs::process_file::{self, CMDLINE_MAX, ENVIRON_MAX, SMALL_MAX},
};

/// Names of a process; `None` when they could not be found out.
#[derive(Clone, Debug)]
pub struct Description {
    /// Command name (`task_struct.comm`, at most 15 bytes).
    pub comm: Arc<str>,
    /// Path of the executable: as the kernel resolved it, or as exec(2) was given it for a process that was gone
    /// too soon.
    pub exe: Option<Arc<str>>,
    /// Arguments.
    pub cmdline: Option<Cmdline>,
    /// Path of its cgroup: v2, or if that is the root, of the first v1 hierarchy in which it is in a group.
    pub cgroup: Option<Arc<str>>,
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
            job: Membership::default(),
        }
    }
}

/// Names of a process that /proc tells; those that it does not tell are `None`.
#[derive(Debug, Default)]
pub struct Names {
    cmdline: Option<Cmdline>,
    exe: Option<Arc<str>>,
    cgroup: Cgroup,
    stated: Option<Stated>,
    /// Bytes that the process had us read.
    pub(super) bytes: usize,
}

impl Names {
    /// Reads them. This can take as long as the process likes.
    pub(super) fn read(
        procfs: &Path,
        cgroups: &Cgroups,
        numbers: &mut Numbers,
        id: ProcessId,
    ) -> Self {
        let mut names = Self {
            exe: executable(procfs, id.pid),
            cgroup: Cgroup::read(procfs, cgroups, id.pid),
            ..Self::default()
        };
        if let (Some(place), Some(directory)) = (&names.cgroup.place, &names.cgroup.directory) {
            names.cgroup.number = numbers.find(procfs, directory, place);
        }
        if let Ok(content) = process_file::read(procfs, id.pid, "cmdline", CMDLINE_MAX) {
            names.bytes += content.bytes.len();
            names.cmdline =
                (!content.bytes.is_empty()).then(|| Cmdline::of(&content.bytes, content.truncated));
        }
        // Kernel threads have neither.
        if names.exe.is_some()
            && let Ok(content) = process_file::read(procfs, id.pid, "environ", ENVIRON_MAX)
        {
            names.bytes += content.bytes.len();
            names.stated = Some(Stated::of(content.strings()));
        }
        if is_alive(procfs, id) {
            names
        } else {
            Self::default()
        }
    }
}

/// Where a process is.
#[derive(Debug, Default)]
struct Cgroup {
    path: Option<Arc<str>>,
    /// The job that it proves, and the directory of that.
    place: Option<Place>,
    directory: Option<PathBuf>,
    /// The number of the job, where its directory does not tell.
    number: Option<Arc<str>>,
}

impl Cgroup {
    fn read(procfs: &Path, cgroups: &Cgroups, pid: u32) -> Self {
        let Ok(content) = process_file::read(procfs, pid, "cgroup", SMALL_MAX) else {
            return Self::default();
        };
        let lines = String::from_utf8_lossy(&content.bytes);
        let path = cgroup(&lines);
        // Version 1 takes a process out of its groups when it ends.
        let has_left = path.as_deref() == Some("/") && has_ended(procfs, pid);
        let (place, directory) = trust::proven(cgroups, &lines).unzip();
        Self {
            path: path.filter(|_| !has_left),
            place,
            directory: directory.flatten(),
            number: None,
        }
    }
}

impl Description {
    /// Takes over what /proc tells.
    pub fn take(&mut self, names: Names, numbers: &mut Numbers, held: &mut Budget, uid: u32) {
        self.exe = names.exe.or(self.exe.take());
        let cmdline = names.cmdline.map(|cmdline| cmdline.within(held, uid));
        self.cmdline = cmdline.or(self.cmdline.take());
        if let (Some(place), Some(number)) = (&names.cgroup.place, &names.cgroup.number) {
            numbers.learn_of(place, Arc::clone(number));
        }
        self.is_in(names.cgroup, numbers);
        if let Some(stated) = &names.stated {
            self.job.states(stated);
        }
    }

    fn is_in(&mut self, cgroup: Cgroup, numbers: &Numbers) {
        self.cgroup = cgroup.path.or(self.cgroup.take());
        if let Some(place) = &cgroup.place {
            self.job.is_in(place, numbers.of(place));
        }
    }

    /// The process runs another program now. Whether /proc has to tell the rest.
    #[must_use]
    pub fn exec(
        &mut self,
        host: &Host,
        numbers: &Numbers,
        held: &mut Budget,
        id: ProcessId,
        exec: &Exec,
        args: &[u8],
    ) -> bool {
        self.comm_is(&exec.comm);
        self.exe = Some(text(&exec.path));
        let whole = u64::from(exec.args_len) == exec.args_total && exec.args_len != 0;
        self.cmdline =
            (exec.args_len != 0).then(|| Cmdline::of(args, !whole).within(held, exec.uid));
        if !is_alive(&host.procfs, id) {
            return false;
        }
        self.exe = executable(&host.procfs, id.pid).or(self.exe.take());
        let mut cgroup = Cgroup::read(&host.procfs, &host.cgroups, id.pid);
        let is_numbered = cgroup.place.as_ref().is_none_or(|at| numbers.has(at));
        cgroup.place = cgroup.place.filter(|_| is_numbered);
        self.is_in(cgroup, numbers);
        !whole || !is_numbered
    }

    /// It does so with this environment. Whether /proc has to tell the rest.
    #[must_use]
    pub fn environment(&mut self, host: &Host, id: ProcessId, environment: &Environment) -> bool {
        let count = environment.count as usize;
        let variables = environment.variables.iter().take(count);
        let stated = Stated::of(variables.map(<[u8; VARIABLE_MAX]>::as_slice));
        self.job.states(&stated);
        environment.torn != 0 && is_alive(&host.procfs, id)
    }

    /// Takes over the command name.
    pub fn comm_is(&mut self, comm: &[u8]) {
        let end = comm
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(comm.len());
        if self.comm.as_bytes() != &comm[..end] {
            self.comm = text(comm);
        }
    }
}

/// A string that NUL ends.
pub fn text(bytes: &[u8]) -> Arc<str> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into()
}

fn executable(procfs: &Path, pid: u32) -> Option<Arc<str>> {
    let path = std::fs::read_link(procfs.join(format!("{pid}/exe"))).ok()?;
    Some(path.to_string_lossy().into())
}

/// The most telling line of /proc/PID/cgroup (`hierarchy:controllers:path`).
fn cgroup(file: &str) -> Option<Arc<str>> {
    let paths = || {
        file.lines()
            .filter_map(|line| line.splitn(3, ':').nth(2).map(|path| (line, path)))
    };
    paths()
        .find(|(line, path)| line.starts_with("0::") && *path != "/")
        .or_else(|| paths().find(|(_, path)| *path != "/"))
        .or_else(|| paths().next())
        .map(|(_, path)| path.into())
}

/// Whether the pid still is this process: its start in /proc/PID/stat, in units of 10 ms.
pub fn is_alive(procfs: &Path, id: ProcessId) -> bool {
    let Ok(stat) = process_file::read(procfs, id.pid, "stat", SMALL_MAX) else {
        return false;
    };
    let stat = String::from_utf8_lossy(&stat.bytes);
    // The command name may hold spaces and parentheses; field 22 is the 20th after it.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|start| start.parse::<u64>().ok())
        == Some(id.start_boottime / 10_000_000)
}

/// Whether nobody but its parent knows the process any more.
pub(super) fn has_ended(procfs: &Path, pid: u32) -> bool {
    let stat = super::walk::stat_of(&procfs.join(pid.to_string()));
    stat.is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_from_the_kernel() {
        assert_eq!(&*text(b"true\0garbage"), "true");
        assert_eq!(&*text(b"\xff\0"), "\u{fffd}");
    }

    #[test]
    fn describes_this_process() {
        let procfs = Path::new("/proc");
        let pid = std::process::id();
        let stat = crate::tasks::walk::stat_of(&procfs.join(pid.to_string())).expect("stat");
        let id = ProcessId {
            pid,
            start_boottime: stat.starttime * 10_000_000,
        };
        let mut description = Description::default();
        let (cgroups, mut numbers) = (Cgroups::default(), Numbers::default());
        let names = Names::read(procfs, &cgroups, &mut numbers, id);
        let mut room = Budget::of(1 << 20);
        description.take(names, &mut Numbers::default(), &mut room, 0);
        let exe = std::env::current_exe()
            .expect("exe")
            .to_string_lossy()
            .into_owned();
        assert_eq!(description.exe.as_deref(), Some(&*exe));
        assert!(description.cmdline.is_some() && description.cgroup.is_some());
        // Somebody else had the pid before.
        let other = ProcessId {
            pid,
            start_boottime: 0,
        };
        assert!(
            Names::read(procfs, &cgroups, &mut numbers, other)
                .exe
                .is_none()
        );
    }
}
