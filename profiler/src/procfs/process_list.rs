//! Processes of a procfs, and their threads.

use std::{fs, path::Path};

pub(crate) fn pids(procfs: &Path) -> impl Iterator<Item = u32> {
    numbers(procfs)
}

/// Thread ids of a process; none if it is gone.
pub(crate) fn threads(procfs: &Path, pid: u32) -> impl Iterator<Item = u32> {
    numbers(&procfs.join(format!("{pid}/task")))
}

/// Names in a directory that are numbers.
fn numbers(directory: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_this_process() {
        let (procfs, own) = (Path::new("/proc"), std::process::id());
        assert!(pids(procfs).any(|pid| pid == own));
        assert!(threads(procfs, own).any(|tid| tid == own));
        assert_eq!(pids(Path::new("/none")).count(), 0);
    }
}
