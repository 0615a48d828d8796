//! Identity of the profiler that writes a run.

use std::{io, path::Path};

use procfs::process::Stat;
use serde::{Deserialize, Serialize};

use crate::procfs::process_stat::{self, has_ended};

/// Identity of a process: unique until the machine is booted, and known to have ended afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Start of the process in clock ticks since boot (field 22 of `/proc/PID/stat` in the initial time
    /// namespace).
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Inode of the pid namespace, in which the process has this id; `None` if it is unknown.
    #[serde(default)]
    pub pid_namespace: Option<u64>,
}

impl ProcessIdentity {
    /// The identity of this process.
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        let stat = process_stat::read(Path::new("/proc/self"))
            .ok_or_else(|| io::Error::other("cannot read /proc/self/stat"))?;
        Ok(Self {
            pid: std::process::id().cast_signed(),
            start_ticks: stat.starttime,
            boot_id: boot_id()?,
            pid_namespace: pid_namespace(),
        })
    }

    /// Whether the process is running; `None` if it is a process of another machine, of this one before it
    /// was booted, or of another pid namespace.
    pub fn is_alive_here(&self) -> Option<bool> {
        // A time namespace rounds it differently. No pid is used again within a tick.
        let is_same = |stat: &Stat| stat.starttime.abs_diff(self.start_ticks) <= 1;
        let is_running = |stat: Stat| is_same(&stat) && !has_ended(&stat);
        self.is_visible()
            .then(|| stat(self.pid).is_some_and(is_running))
    }

    /// Whether the process is running in this pid namespace. A zombie is not: the init process of many
    /// containers waits for none of them.
    pub fn is_alive(&self) -> bool {
        self.is_alive_here() == Some(true)
    }

    /// Whether the process would be in `/proc`.
    fn is_visible(&self) -> bool {
        let namespaces = self.pid_namespace.zip(pid_namespace());
        boot_id().is_ok_and(|boot| boot == self.boot_id)
            && namespaces.is_none_or(|(its, ours)| its == ours)
    }
}

fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

fn pid_namespace() -> Option<u64> {
    Some(rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino)
}

fn stat(pid: i32) -> Option<Stat> {
    process_stat::of_process(Path::new("/proc"), u32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn identity_distinguishes_processes() {
        let identity = ProcessIdentity::current().unwrap();
        assert!(identity.is_alive());
        let elsewhere = ProcessIdentity {
            pid_namespace: Some(1),
            ..identity.clone()
        };
        assert_eq!(
            [&identity, &elsewhere].map(ProcessIdentity::is_alive_here),
            [Some(true), None]
        );
        for other in [
            elsewhere,
            ProcessIdentity {
                start_ticks: identity.start_ticks + 2,
                ..identity.clone()
            },
            ProcessIdentity {
                boot_id: "another".to_owned(),
                ..identity.clone()
            },
            ProcessIdentity {
                pid: i32::MAX,
                ..identity.clone()
            },
        ] {
            assert!(!other.is_alive(), "{other:?}");
        }
    }

    #[test]
    fn zombies_are_not_alive() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let identity = ProcessIdentity {
            pid,
            start_ticks: stat(pid).unwrap().starttime,
            boot_id: boot_id().unwrap(),
            pid_namespace: None,
        };
        assert!(identity.is_alive());
        drop(child.stdin.take());
        let end = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), end).unwrap();
        assert_eq!(stat(pid).unwrap().state, 'Z');
        assert!(!identity.is_alive());
        child.wait().unwrap();
    }
}
