//! The map of files with dirty pages. Programs insert files, and clean files are removed here.

use profiler_ebpf::maps::{self, Dirtier, FileKey, Named as _};

use crate::{
    bpf::{BpfError, KernelMap, Programs},
    support::clock::monotonic_ns,
};

/// Time between two sweeps, ns.
const SWEEP_INTERVAL: u64 = 1_000_000_000;

/// Time for which a clean file is kept, because its requests can still be in flight, ns. Longer
/// than the programs accept it as dirty.
const GRACE: u64 = 1_000_000_000;

/// Time after which a dirty file is removed, ns. The kernel writes a file back within half a
/// minute, unless the file was removed.
const ABANDONED: u64 = 600_000_000_000;

/// The map, if an attached instrumentation fills it.
#[derive(Default)]
pub struct Dirtiers {
    map: Option<KernelMap<FileKey, Dirtier>>,
    swept: u64,
}

impl Dirtiers {
    /// Opens the map.
    ///
    /// # Errors
    ///
    /// When the object does not have it.
    pub fn open(programs: &mut Programs) -> Result<Self, BpfError> {
        let is_filled = programs.fills(maps::Dirtiers::NAME);
        Ok(Self {
            map: is_filled
                .then(|| programs.map::<maps::Dirtiers>())
                .transpose()?,
            swept: 0,
        })
    }

    /// Removes the files that are clean, and those that will not be written back.
    pub(super) fn sweep(&mut self) -> Result<(), BpfError> {
        let now = monotonic_ns();
        let is_due = now - self.swept >= SWEEP_INTERVAL;
        let Some(map) = self.map.as_mut().filter(|_| is_due) else {
            return Ok(());
        };
        self.swept = now;
        let mut done = Vec::new();
        map.for_each(|file, dirtier| {
            if is_done(dirtier, now) {
                done.push(file);
            }
        })?;
        for file in done {
            // A process can have dirtied the file in the meantime.
            if let Some(dirtier) = map.remove(&file)
                && !is_done(&dirtier, now)
            {
                map.insert(&file, &dirtier);
            }
        }
        Ok(())
    }
}

/// Whether the entry of a file is no longer needed.
fn is_done(dirtier: &Dirtier, now: u64) -> bool {
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
        assert!(!is_done(&dirty, now));
        assert!(is_done(&dirty, now + 1));
        let written = Dirtier {
            started: now,
            ..dirty
        };
        assert!(!is_done(&written, now + 1));
        let clean = Dirtier {
            clean: now,
            ..written
        };
        assert!(!is_done(&clean, now + GRACE));
        assert!(is_done(&clean, now + GRACE + 1));
    }
}
