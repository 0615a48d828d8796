//! Upper bound of the processes that readings of `/proc` have missed, if their forks are not
//! recorded.

use std::path::Path;

use crate::procfs::stat::{self, ProcStat};

/// Counts the processes and threads that were created on the node and that no reading has had.
#[derive(Debug, Default)]
pub(super) struct Missed {
    /// Processes and threads created on the node up to the first reading.
    before: Option<u64>,
    /// New processes and threads of the target since the first reading.
    seen: u64,
    at_most: u64,
}

impl Missed {
    /// Adds a reading with this many new processes and threads of the target.
    pub(super) fn update(&mut self, procfs: &Path, new: u64) {
        let Some(created) = created(procfs) else {
            return;
        };
        match self.before {
            None => self.before = Some(created),
            Some(before) => {
                self.seen += new;
                // What began between a walk and its total is new to the next walk.
                let at_most = (created - before.min(created)).saturating_sub(self.seen);
                self.at_most = self.at_most.max(at_most);
            }
        }
    }

    /// Processes and threads that may be missing; never decreases.
    pub(super) fn at_most(&self) -> u64 {
        self.at_most
    }
}

/// Processes and threads created on the node since boot.
fn created(procfs: &Path) -> Option<u64> {
    let mut parsed = ProcStat::default();
    parsed.parse(&std::fs::read(stat::file(procfs)).ok()?);
    parsed.forks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creations_without_a_reading_are_counted() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let mut missed = Missed::default();
        let mut update = |created: u64, new| {
            let text = format!("cpu 1 2\nprocesses {created}\n");
            std::fs::write(directory.path().join("stat"), text).expect("written");
            missed.update(directory.path(), new);
            missed.at_most()
        };
        assert_eq!(update(100, 7), 0);
        assert_eq!(update(110, 4), 6);
        assert_eq!(update(112, 2), 6);
        // Three began after the walk, before the total was read.
        assert_eq!(update(115, 0), 9);
        assert_eq!(update(115, 3), 9);
        assert_eq!(update(116, 0), 9);
        assert_eq!(update(120, 0), 11);
    }
}
