//! How many processes there are, without listing them.

use std::{
    fs::DirEntry,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::file::number;

/// The kernel adds their number to the links of the procfs
/// root (`proc_root_getattr` in `fs/proc/root.c`), next to those of the other directories there.
#[derive(Debug)]
pub(crate) struct ProcessCount {
    procfs: PathBuf,
    others: Option<u64>,
}

impl ProcessCount {
    /// Looks once at what else is there.
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
            // A procfs mounted with `subset=pid` lists none of them, and counts them nevertheless.
            others: others.filter(|&others| others > 0),
        }
    }

    /// Processes of this moment, zombies included.
    pub(crate) fn read(&self) -> Option<u64> {
        let links = std::fs::metadata(&self.procfs).ok()?.nlink();
        // Its own two links: the name, and the dot.
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
    fn agrees_with_the_list_of_processes() {
        let count = ProcessCount::new(Path::new("/proc"));
        // Others start and end meanwhile: one quiet moment is enough.
        let agrees = (0..200).any(|_| {
            let before = listed();
            let counted = count.read().unwrap();
            (before, counted) == (listed(), before)
        });
        assert!(agrees, "{:?} counted, {} listed", count.read(), listed());
    }
}
