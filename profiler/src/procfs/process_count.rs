//! Number of processes, without listing them.

use std::{
    fs::DirEntry,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::file::number;

/// Counts processes by the links of the procfs root. The kernel adds the number of processes to the
/// links of the other directories (`proc_root_getattr` in `fs/proc/root.c`).
#[derive(Debug)]
pub(crate) struct ProcessCount {
    procfs: PathBuf,
    others: Option<u64>,
}

impl ProcessCount {
    /// Counts the other directories once.
    pub(crate) fn new(procfs: &Path) -> Self {
        let others = std::fs::read_dir(procfs).ok().map(|entries| {
            let other = |entry: &DirEntry| {
                let name = entry.file_name();
                let process = number(name.as_encoded_bytes()).is_some();
                !process && entry.file_type().is_ok_and(|kind| kind.is_dir())
            };
            entries.flatten().filter(other).count() as u64
        });
        Self {
            procfs: procfs.to_owned(),
            // A procfs mounted with `subset=pid` does not list them, but has their links.
            others: others.filter(|&others| others > 0),
        }
    }

    /// Present number of processes, including zombies.
    pub(crate) fn read(&self) -> Option<u64> {
        let links = std::fs::metadata(&self.procfs).ok()?.nlink();
        // The directory itself has two links: its name and `.`.
        links.checked_sub(2 + self.others?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes listed in `/proc`.
    fn listed() -> u64 {
        let process = |entry: &DirEntry| number(entry.file_name().as_encoded_bytes()).is_some();
        let entries = std::fs::read_dir("/proc").unwrap();
        entries.flatten().filter(process).count() as u64
    }

    #[test]
    fn links_agree_with_the_list_of_processes() {
        let count = ProcessCount::new(Path::new("/proc"));
        // Other processes start and end meanwhile: one attempt without a change is enough.
        let agrees = (0..200).any(|_| {
            let before = listed();
            let counted = count.read().unwrap();
            (before, counted) == (listed(), before)
        });
        assert!(agrees, "{:?} counted, {} listed", count.read(), listed());
    }
}
