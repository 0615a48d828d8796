//! The map of files with dirty pages: the programs put files in, and what is clean is taken out here.

use profiler_ebpf::wire::{Dirtier, FileKey};

use crate::{
    bpf::{LoadError, Programs, Table},
    support::clock::monotonic_ns,
};

/// Time between two looks, ns.
const EVERY: u64 = 1_000_000_000;

/// Requests of a file may still be on their way when it is clean, ns; longer than the programs wait.
const GRACE: u64 = 1_000_000_000;

/// A file is written back within half a minute unless it was removed, ns.
const ABANDONED: u64 = 600_000_000_000;

/// The map.
#[derive(Default)]
pub struct Dirtiers {
    map: Option<Table<FileKey, Dirtier>>,
    swept: u64,
}

impl Dirtiers {
    /// The map of the programs.
    ///
    /// # Errors
    ///
    /// When the object lacks it.
    pub fn open(programs: &mut Programs) -> Result<Self, LoadError> {
        Ok(Self {
            map: Some(programs.table("DIRTIERS")?),
            swept: 0,
        })
    }

    /// Takes out the files that are clean, and those that nobody will write back.
    pub(super) fn sweep(&mut self) -> Result<(), LoadError> {
        let now = monotonic_ns();
        let Some(map) = self.map.as_mut().filter(|_| now - self.swept >= EVERY) else {
            return Ok(());
        };
        self.swept = now;
        let mut over = Vec::new();
        map.for_each(|file, dirtier| {
            if is_over(dirtier, now) {
                over.push(file);
            }
        })?;
        for file in over {
            // Somebody may have dirtied it at this moment.
            if let Some(dirtier) = map.remove(&file)
                && !is_over(&dirtier, now)
            {
                map.insert(&file, &dirtier);
            }
        }
        Ok(())
    }
}

fn is_over(dirtier: &Dirtier, now: u64) -> bool {
    if dirtier.clean != 0 {
        now.saturating_sub(dirtier.clean) > GRACE
    } else {
        now.saturating_sub(dirtier.noted.max(dirtier.started)) > ABANDONED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_until_it_is_clean() {
        let now = 10 * ABANDONED;
        let dirty = Dirtier {
            noted: now - ABANDONED,
            ..Dirtier::default()
        };
        assert!(!is_over(&dirty, now));
        assert!(is_over(&dirty, now + 1));
        let written = Dirtier {
            started: now,
            ..dirty
        };
        assert!(!is_over(&written, now + 1));
        let clean = Dirtier {
            clean: now,
            ..written
        };
        assert!(!is_over(&clean, now + GRACE));
        assert!(is_over(&clean, now + GRACE + 1));
    }
}
