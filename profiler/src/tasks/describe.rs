//! Names of a process: command, executable, command line, cgroup.

use std::{fs, sync::Arc};

use profiler_ebpf::wire::{Environment, Exec, VARIABLE_MAX};

use super::ProcessId;
use crate::{
    host::Host,
    job::{Membership, Numbers, Stated, path},
};

/// Names of a process; `None` when they could not be found out.
#[derive(Clone, Debug)]
pub struct Description {
    /// Command name (`task_struct.comm`, at most 15 bytes).
    pub comm: Arc<str>,
    /// Path of the executable: as the kernel resolved it, or as exec(2) was given it for a process that was gone
    /// too soon.
    pub exe: Option<Arc<str>>,
    /// Arguments, joined by spaces.
    pub cmdline: Option<Arc<str>>,
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

impl Description {
    /// Reads what /proc says of a process that was there before.
    pub fn look_up(&mut self, host: &Host, numbers: &mut Numbers, pid: u32) {
        let folder = host.procfs.join(pid.to_string());
        if let Ok(cmdline) = fs::read(folder.join("cmdline"))
            && !cmdline.is_empty()
        {
            self.cmdline = Some(joined(&cmdline));
        }
        self.exe = executable(host, pid);
        self.look_up_cgroup(host, numbers, pid);
        // Kernel threads have neither.
        if self.exe.is_some()
            && let Some(stated) = Stated::read(&host.procfs, pid)
        {
            self.job.states(&stated);
        }
    }

    fn look_up_cgroup(&mut self, host: &Host, numbers: &mut Numbers, pid: u32) {
        let Ok(lines) = fs::read(host.procfs.join(pid.to_string()).join("cgroup")) else {
            return;
        };
        let lines = String::from_utf8_lossy(&lines);
        self.cgroup = cgroup(&lines);
        // Version 1 takes a process out of its groups when it ends.
        if self.cgroup.as_deref() == Some("/") && has_ended(host, pid) {
            self.cgroup = None;
        }
        if let Some(place) = path::identify_all(&lines) {
            self.job
                .is_in(&place, numbers.of(&host.procfs, pid, &place));
        }
    }

    /// The process runs another program now.
    pub fn exec(
        &mut self,
        host: &Host,
        numbers: &mut Numbers,
        id: ProcessId,
        exec: &Exec,
        args: &[u8],
    ) {
        self.comm_is(&exec.comm);
        self.exe = Some(text(&exec.path));
        let whole = u64::from(exec.args_len) == exec.args_total && exec.args_len != 0;
        self.cmdline = (exec.args_len != 0).then(|| joined(args));
        if !is_alive(host, id) {
            return;
        }
        if let Some(exe) = executable(host, id.pid) {
            self.exe = Some(exe);
        }
        if !whole
            && let Ok(cmdline) = fs::read(host.procfs.join(id.pid.to_string()).join("cmdline"))
        {
            self.cmdline = Some(joined(&cmdline));
        }
        self.look_up_cgroup(host, numbers, id.pid);
    }

    /// It does so with this environment.
    pub fn environment(&mut self, host: &Host, id: ProcessId, environment: &Environment) {
        let torn = environment.torn != 0 && is_alive(host, id);
        let whole = torn.then(|| Stated::read(&host.procfs, id.pid)).flatten();
        let stated = whole.unwrap_or_else(|| {
            let count = environment.count as usize;
            let variables = environment.variables.iter().take(count);
            Stated::of(variables.map(<[u8; VARIABLE_MAX]>::as_slice))
        });
        self.job.states(&stated);
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

fn joined(args: &[u8]) -> Arc<str> {
    let args = args.strip_suffix(b"\0").unwrap_or(args);
    let args: Vec<_> = args
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    args.join(" ").into()
}

fn executable(host: &Host, pid: u32) -> Option<Arc<str>> {
    let path = fs::read_link(host.procfs.join(pid.to_string()).join("exe")).ok()?;
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
pub fn is_alive(host: &Host, id: ProcessId) -> bool {
    let Ok(stat) = fs::read(host.procfs.join(id.pid.to_string()).join("stat")) else {
        return false;
    };
    let stat = String::from_utf8_lossy(&stat);
    // The command name may hold spaces and parentheses; field 22 is the 20th after it.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|start| start.parse::<u64>().ok())
        == Some(id.start_boottime / 10_000_000)
}

/// Whether nobody but its parent knows the process any more.
fn has_ended(host: &Host, pid: u32) -> bool {
    let stat = super::walk::stat_of(&host.procfs.join(pid.to_string()));
    stat.is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_from_the_kernel() {
        assert_eq!(&*text(b"true\0garbage"), "true");
        assert_eq!(&*joined(b"sh\0-c\0a b\0"), "sh -c a b");
        assert_eq!(&*joined(b""), "");
        assert_eq!(&*text(b"\xff\0"), "\u{fffd}");
    }

    #[test]
    fn describes_this_process() {
        let host = Host::probe("/proc", "/sys", None);
        let mut description = Description::default();
        description.look_up(&host, &mut Numbers::default(), std::process::id());
        let exe = std::env::current_exe()
            .expect("exe")
            .to_string_lossy()
            .into_owned();
        assert_eq!(description.exe.as_deref(), Some(&*exe));
        assert!(description.cmdline.is_some() && description.cgroup.is_some());
    }
}
