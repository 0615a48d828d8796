//! Reading of process names in a separate thread.
//!
//! Command line and environment are as long as the process chooses. Each batch is therefore limited
//! in bytes, of which no user gets more than half, and in time. A process that blocks reading delays
//! one batch ([`memory_file`](crate::procfs::memory_file)).

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    Budget, ProcessId,
    identity::{Limits, Names},
};
use crate::{host::Cgroups, job::JobNumbers, privileges, support::worker::Worker};

/// Processes per batch.
pub(super) const BATCH_MAX: usize = 512;
/// Bytes per batch.
const BATCH_BYTES: usize = 4 << 20;
/// Time after which a batch ends early.
const BATCH_TIME: Duration = Duration::from_millis(50);

/// A process to read, and its user.
pub(super) type Request = (ProcessId, u32);
/// Names of a batch, without processes for which the limits did not suffice.
pub(super) type Answer = Vec<(ProcessId, Names)>;

/// Handle of the thread.
pub(super) struct IdentityWorker {
    procfs: PathBuf,
    cgroups: Cgroups,
    worker: Option<Worker<Vec<Request>, Answer>>,
}

impl IdentityWorker {
    /// The thread is started by the first batch.
    pub(super) fn new(procfs: PathBuf, cgroups: Cgroups) -> Self {
        Self {
            procfs,
            cgroups,
            worker: None,
        }
    }

    /// Whether there is no batch in progress.
    pub(super) fn is_idle(&self) -> bool {
        !self.worker.as_ref().is_some_and(Worker::is_busy)
    }

    /// Starts a batch. Returns `false` if the thread cannot be started.
    pub(super) fn start(&mut self, batch: Vec<Request>) -> bool {
        if self.worker.as_ref().is_none_or(Worker::has_ended) {
            let (procfs, cgroups) = (self.procfs.clone(), self.cgroups.clone());
            self.worker = start(procfs, cgroups).ok();
        }
        let worker = self.worker.as_mut();
        worker.is_some_and(|worker| worker.ask(batch).is_ok())
    }

    /// Names of the batch in progress; empty if they are not available within `timeout`.
    pub(super) fn receive(&mut self, timeout: Duration) -> Answer {
        let answer = self.worker.as_mut().and_then(|worker| worker.take(timeout));
        if self.worker.as_ref().is_some_and(Worker::has_ended) {
            self.worker = None;
        }
        answer.unwrap_or_default()
    }
}

fn start(procfs: PathBuf, cgroups: Cgroups) -> anyhow::Result<Worker<Vec<Request>, Answer>> {
    let open = move || {
        privileges::keep_for_reading();
        let mut job_numbers = JobNumbers::default();
        move |batch: Vec<Request>| {
            let deadline = Instant::now() + BATCH_TIME;
            read(&procfs, &cgroups, &mut job_numbers, &batch, deadline)
        }
    };
    Worker::start("names", open)
}

fn read(
    procfs: &Path,
    cgroups: &Cgroups,
    job_numbers: &mut JobNumbers,
    batch: &[Request],
    deadline: Instant,
) -> Answer {
    let mut bytes = Budget::new(BATCH_BYTES);
    let mut limits = Limits::new();
    let mut answer = Vec::new();
    for (id, uid) in batch {
        if Instant::now() > deadline {
            break;
        }
        if bytes.is_spent(*uid) {
            continue;
        }
        let names = Names::read(procfs, cgroups, job_numbers, &mut limits, *id);
        bytes.charge(*uid, names.bytes);
        answer.push((*id, names));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// Adds a process to a procfs. Its uid is the pid divided by 1000.
    fn add_process(procfs: &Path, pid: u32, cmdline: &[u8]) -> Request {
        let directory = procfs.join(pid.to_string());
        fs::create_dir_all(&directory).expect("made");
        let stat = format!("{pid} (x) S {}7{}", "0 ".repeat(18), " 0".repeat(30));
        fs::write(directory.join("stat"), stat).expect("written");
        fs::write(directory.join("cmdline"), cmdline).expect("written");
        let start_boottime = 70_000_000;
        (
            ProcessId {
                pid,
                start_boottime,
            },
            pid / 1000,
        )
    }

    #[test]
    fn bytes_of_a_batch_are_limited_by_user() {
        let procfs = tempfile::tempdir().expect("a directory");
        let long = vec![b'x'; 1 << 20];
        let mut batch: Vec<_> = (1000..1100)
            .map(|pid| add_process(procfs.path(), pid, &long))
            .collect();
        batch.push(add_process(procfs.path(), 2000, b"sh\0"));
        let answer = read(
            procfs.path(),
            &Cgroups::default(),
            &mut JobNumbers::default(),
            &batch,
            Instant::now() + Duration::from_secs(3600),
        );
        // 2 MiB of the first user, in pieces of 64 KiB, and the process of the second.
        assert_eq!(answer.len(), 32 + 1);
        assert_eq!(answer[32].0.pid, 2000);
    }

    #[test]
    fn other_names_are_read_beside_a_process_that_blocks() {
        let procfs = tempfile::tempdir().expect("a directory");
        let blocking = add_process(procfs.path(), 91_000_000, b"");
        let pipe = procfs.path().join("91000000/cmdline");
        fs::remove_file(&pipe).expect("there");
        mknodat(CWD, pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        let batch = vec![blocking, add_process(procfs.path(), 3000, b"a\0")];
        let mut reader = IdentityWorker::new(procfs.path().to_owned(), Cgroups::default());
        let mut read = Vec::new();
        while !batch.iter().all(|(id, _)| read.contains(id)) {
            assert!(reader.start(batch.clone()));
            let answer = reader.receive(Duration::from_secs(60));
            read.extend(answer.iter().map(|(id, _)| *id));
        }
    }
}
