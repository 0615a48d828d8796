//! Recovery of the runs of killed profilers, before and beside a session, and the description of all
//! runs.
//!
//! A run that is continued is recovered before its writer starts. All others are recovered in a
//! separate thread: their number and size depend on other users, and must not delay the first
//! sample.

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    dataset::{
        dictionary,
        files::Directory,
        recover::{RecoverError, RecoveryReport, abandoned_runs, recover_abandoned},
    },
    instance_lock::{Acquired, InstanceLock},
};
use crate::{
    privileges, report,
    schema::DatasetSchema,
    support::{
        invoking_user::Owner,
        log::{escaped, harmless_message},
    },
    warning,
};

/// Time that the end of a session waits for the recovery. The next session recovers the rest.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The abandoned runs in an output directory.
#[derive(Clone)]
pub struct AbandonedRuns {
    /// The output directory.
    pub out: PathBuf,
    /// Name of this node.
    pub hostname: String,
    /// Owner of the runs, if it is not this user.
    pub owner: Owner,
    /// Whether only errors are reported.
    pub quiet: bool,
    /// Tables and views of `views.sql`.
    pub schema: &'static DatasetSchema,
}

impl AbandonedRuns {
    /// Recovers a run, if it is abandoned. The caller has its lock.
    pub fn recover(&self, run_id: &str) {
        let run_dir = self.out.join(run_id);
        let result = recover_abandoned(&run_dir, &self.hostname, self.owner, self.schema);
        if let Some(result) = result {
            self.report(&run_dir, result);
        }
    }

    fn report(&self, run_dir: &Path, result: Result<RecoveryReport, RecoverError>) {
        let run_dir = escaped(&run_dir.to_string_lossy());
        match result {
            Ok(report) if !self.quiet => {
                let rows: u64 = report.rows.values().sum();
                report!(
                    "profiler: recovered {rows} rows of {run_dir}, whose profiler was killed: at most one \
                     interval at its end is lost"
                );
            }
            Ok(_) => {}
            Err(error) => {
                let error = harmless_message(&error.to_string());
                warning!("profiler: cannot recover {run_dir}: {error}");
            }
        }
    }

    /// Describes the tables beside the runs. Who may not write there has the metadata of the files.
    fn describe(&self) {
        let out = Directory::open(&self.out, self.owner);
        let _ = out.and_then(|out| dictionary::write(out, &self.hostname, self.schema));
    }

    /// Recovers all abandoned runs, except those that a profiler of this node is writing.
    fn recover_all(&self) {
        for run_id in abandoned_runs(&self.out, &self.hostname, self.owner) {
            if let Ok(Acquired::Locked(_lock)) =
                InstanceLock::take(&self.out, &run_id, &self.hostname)
            {
                self.recover(&run_id);
            }
        }
    }
}

/// The thread that recovers all abandoned runs.
pub struct RecoveryThread {
    begin: Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl RecoveryThread {
    /// Creates the thread, while this one has the privileges that writing files needs.
    ///
    /// # Errors
    ///
    /// When the thread cannot be created.
    pub fn prepare(runs: AbandonedRuns) -> io::Result<Self> {
        let (begin, begun) = channel();
        let (end, ended) = oneshot::channel();
        thread::Builder::new()
            .name("recovery".to_owned())
            .spawn(move || {
                privileges::keep_for_files();
                if begun.recv().is_ok() {
                    runs.describe();
                    runs.recover_all();
                }
                let _ = end.send(());
            })?;
        Ok(Self { begin, ended })
    }

    /// Starts the recovery. Called after the first sample.
    pub fn begin(&self) {
        let _ = self.begin.send(());
    }

    /// Waits for the end of the recovery, at most 10 s.
    pub async fn finish(self) {
        let _ = tokio::time::timeout(TIMEOUT, self.ended).await;
    }
}
