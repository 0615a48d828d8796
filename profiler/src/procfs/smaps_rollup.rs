//! `/proc/PID/smaps_rollup`: proportional and unique memory (`proc_pid_smaps(5)`).
//!
//! The kernel holds the mmap lock of the process while the file is read, which takes milliseconds.

use std::{io, path::Path};

use rustix::io::Errno;

use super::{
    memory_file::{self, MemoryFile},
    process_status::field,
};

/// Memory of a process, bytes; shared pages are attributed by the number of processes that map
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Proportional set size: private pages, and shared pages divided by the number of processes
    /// that map them.
    pub pss: u64,
    /// Unique set size: private pages.
    pub uss: u64,
}

/// Footprints of processes, in the same order; `None` for one that has ended or has no memory.
///
/// # Errors
///
/// As [`memory_file::read_all`], except for a process that has ended.
pub(crate) fn read_all(procfs: &Path, pids: &[u32]) -> Vec<io::Result<Option<Footprint>>> {
    let requests: Vec<_> = pids
        .iter()
        .map(|pid| (*pid, MemoryFile::SmapsRollup))
        .collect();
    let read = memory_file::read_all(procfs, &requests).into_iter();
    let footprints = read.map(|content| match content {
        Ok(content) => Ok(Footprint::parse(&String::from_utf8_lossy(&content.bytes))),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::SRCH) => Ok(None),
            _ => Err(error),
        },
    });
    footprints.collect()
}

impl Footprint {
    fn parse(text: &str) -> Option<Self> {
        let bytes = |name| -> Option<u64> {
            let kib = field(text, name)?.strip_suffix(" kB")?;
            kib.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self {
            pss: bytes("Pss")?,
            uss: bytes("Private_Clean")?
                + bytes("Private_Dirty")?
                + bytes("Private_Hugetlb").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let mut read = read_all(Path::new("/proc"), &[u32::MAX >> 2, std::process::id()]);
        let footprint = read.pop().expect("two").expect("permitted");
        let footprint = footprint.expect("smaps_rollup");
        assert_eq!(read.pop().expect("two").expect("ended"), None);
        assert!(
            footprint.uss > 0 && footprint.uss <= footprint.pss,
            "{footprint:?}"
        );
        assert_eq!(footprint.pss % 1024, 0);
    }
}
