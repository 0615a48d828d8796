//! Identity of the profiler that writes a run.

use std::io;

use serde::{Deserialize, Serialize};

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
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid)?,
            boot_id: boot_id()?,
        })
    }

    /// Whether the process is running; `None` if it is a process of another machine, or of this one
    /// before it was booted.
    pub fn is_alive_here(&self) -> Option<bool> {
        let here = boot_id().is_ok_and(|boot| boot == self.boot_id);
        here.then(|| self.is_alive())
    }

    /// Whether the process is running on this machine.
    pub fn is_alive(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
            && start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }
}

fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command, in parentheses, can contain any character. Field 3 follows it.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(22 - 3)?.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "field 22 of stat"))
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
}
