//! Recovering the runs of killed profilers.
//!
//! A run that is continued is recovered before its sink starts. All others are recovered in a thread beside the loop: what is
//! there to recover, and how long that takes, is up to whoever wrote it, and must not delay the first tick.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    dataset::{
        self, Owner,
        recover::{RecoverError, Report},
    },
    instance_lock::{Acquired, InstanceLock},
};
use crate::{privileges, report};

/// How long the end of a run waits for it. What is left then, the next start recovers.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whose runs are recovered, and where.
#[derive(Clone)]
pub struct Orphans {
    /// Directory of the runs.
    pub out: PathBuf,
    /// Name of this node.
    pub hostname: String,
    /// Who owns the output, if not this user.
    pub owner: Owner,
    /// Whether only errors are reported.
    pub quiet: bool,
}

impl Orphans {
    /// Recovers the run of this name, if it is an orphan. The caller has its guard.
    pub fn recover(&self, run_id: &str) {
        let run_dir = self.out.join(run_id);
        if let Some(result) = dataset::recover_orphan(&run_dir, &self.hostname, self.owner) {
            self.report(&run_dir, result);
        }
    }

    fn report(&self, run_dir: &Path, result: Result<Report, RecoverError>) {
        match result {
            Ok(report) if !self.quiet => {
                let rows: u64 = report.rows.values().sum();
                report!("profiler: recovered {rows} rows of {}", run_dir.display());
            }
            Ok(_) => {}
            Err(error) => report!("profiler: cannot recover {}: {error}", run_dir.display()),
        }
    }

    /// Recovers all of them, but those that a profiler of this node writes.
    fn recover_all(&self) {
        for run_id in dataset::recover::orphans(&self.out, &self.hostname, self.owner) {
            if let Ok(Acquired::Locked(_guard)) =
                InstanceLock::take(&self.out, &run_id, &self.hostname)
            {
                self.recover(&run_id);
            }
        }
    }
}

/// The thread that recovers all orphans.
pub struct Recovery {
    begin: Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Recovery {
    /// Makes the thread, while this one still has the privileges that writing files needs.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a thread.
    pub fn prepare(orphans: Orphans) -> std::io::Result<Self> {
        let (begin, begun) = channel();
        let (end, ended) = oneshot::channel();
        thread::Builder::new()
            .name("recovery".to_owned())
            .spawn(move || {
                privileges::keep_for_files();
                if begun.recv().is_ok() {
                    orphans.recover_all();
                }
                let _ = end.send(());
            })?;
        Ok(Self { begin, ended })
    }

    /// Begins, once the first tick is over.
    pub fn begin(&self) {
        let _ = self.begin.send(());
    }

    /// Waits for its end, but not for long.
    pub async fn finish(self) {
        let _ = tokio::time::timeout(TIMEOUT, self.ended).await;
    }
}
