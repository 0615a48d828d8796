//! `/proc/PID/smaps_rollup`: proportional and unique memory (`proc_pid_smaps(5)`).
//!
//! The kernel holds the mmap lock of the process while the file is read, which takes milliseconds.

use std::path::Path;

use procfs::{ProcError, process::Process};

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

/// Footprint of the process with this directory; `None` if it has ended or has no memory.
///
/// # Errors
///
/// If this process has no permission to read the file.
pub(crate) fn read(directory: &Path) -> Result<Option<Footprint>, ProcError> {
    let rollup =
        Process::new_with_root(directory.to_owned()).and_then(|process| process.smaps_rollup());
    let rollup = match rollup {
        Ok(rollup) => rollup,
        Err(error @ ProcError::PermissionDenied(_)) => return Err(error),
        Err(_) => return Ok(None),
    };
    let maps = rollup.memory_map_rollup.0;
    Ok(maps.first().and_then(|map| {
        let get = |name: &str| map.extension.map.get(name).copied();
        Some(Footprint {
            pss: get("Pss")?,
            uss: get("Private_Clean")?
                + get("Private_Dirty")?
                + get("Private_Hugetlb").unwrap_or(0),
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let footprint = read(Path::new("/proc/self"))
            .expect("permitted")
            .expect("smaps_rollup");
        assert!(
            footprint.uss > 0 && footprint.uss <= footprint.pss,
            "{footprint:?}"
        );
        assert_eq!(footprint.pss % 1024, 0);
    }
}
