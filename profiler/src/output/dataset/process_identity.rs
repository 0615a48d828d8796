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
    /// Start of the process in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

impl ProcessIdentity {
    /// The identity of this process.
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        let pid = std::process::id().cast_signed();
        let stat = stat(pid).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat"))
        })?;
        Ok(Self {
            pid,
            start_ticks: stat.starttime,
            boot_id: boot_id()?,
        })
    }

    /// Whether the process is running; `None` if it is a process of another machine, or of this one
    /// before it was booted.
    pub fn is_alive_here(&self) -> Option<bool> {
        let here = boot_id().is_ok_and(|boot| boot == self.boot_id);
        here.then(|| self.is_alive())
    }

    /// Whether the process is running on this machine. A zombie is not: the init process of many containers
    /// waits for none of them.
    pub fn is_alive(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
            && stat(self.pid)
                .is_some_and(|stat| stat.starttime == self.start_ticks && !has_ended(&stat))
    }
}

fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

fn stat(pid: i32) -> Option<Stat> {
    process_stat::of_process(Path::new("/proc"), u32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_distinguishes_processes() {
        let identity = ProcessIdentity::current().unwrap();
        assert!(identity.is_alive());
        for other in [
            ProcessIdentity {
                start_ticks: identity.start_ticks + 1,
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
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let identity = ProcessIdentity {
            pid,
            start_ticks: stat(pid).unwrap().starttime,
            boot_id: boot_id().unwrap(),
        };
        assert!(identity.is_alive());
        drop(child.stdin.take());
        let id = rustix::process::Pid::from_child(&child);
        let until = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(id), until).unwrap();
        assert_eq!(stat(pid).unwrap().state, 'Z');
        assert!(!identity.is_alive());
        child.wait().unwrap();
    }
}
