//! Processes of a procfs.

use std::{fs, path::Path};

/// All pids.
pub(crate) fn pids(procfs: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(procfs).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_this_process() {
        let (procfs, own) = (Path::new("/proc"), std::process::id());
        assert!(pids(procfs).any(|pid| pid == own));
        assert_eq!(pids(Path::new("/none")).count(), 0);
    }
}
