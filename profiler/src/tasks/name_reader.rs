//! Reading of process names in a separate thread.
//!
//! Command line and environment are in memory that the process controls: they can be long, and a
//! page of them can take any time to read (userfaultfd). Each batch is therefore limited in bytes,
//! of which no user gets more than half, and in time. A thread that does not return is abandoned,
//! and no process of that user is read until it returns.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    Budget, ProcessId,
    names::{Limits, Names},
};
use crate::{host::Cgroups, job::JobNumbers, privileges, support::worker::Worker};

/// Processes per batch.
pub(super) const BATCH_MAX: usize = 512;
/// Bytes per batch.
const BATCH_BYTES: usize = 4 << 20;
/// Time after which a batch ends early.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// Time after which a thread is abandoned.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Abandoned threads at a time.
const ABANDONED_MAX: usize = 8;

/// A process to read, and its user.
pub(super) type Request = (ProcessId, u32);
/// Names of a batch, without processes for which the limits did not suffice.
pub(super) type Answer = Vec<(ProcessId, Names)>;

/// Handle of the thread.
pub(super) struct NameReader {
    procfs: PathBuf,
    cgroups: Cgroups,
    worker: Option<BatchWorker>,
    /// The batch in progress.
    batch: Option<Vec<Request>>,
    /// Abandoned threads, and the users of the processes that block them.
    abandoned: Vec<(u32, JoinHandle<()>)>,
    lost: u64,
}

struct BatchWorker {
    worker: Worker<Vec<Request>, Answer>,
    /// Index in the batch of the process that is being read.
    position: Arc<AtomicUsize>,
}

impl NameReader {
    /// The thread is started by the first batch.
    pub(super) fn new(procfs: PathBuf, cgroups: Cgroups) -> Self {
        Self {
            procfs,
            cgroups,
            worker: None,
            batch: None,
            abandoned: Vec::new(),
            lost: 0,
        }
    }

    /// Processes with names that could not be read.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether there is no batch in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.batch.is_none()
    }

    /// Whether a process of this user can be read; if not, its names are counted as lost.
    pub(super) fn admits(&mut self, uid: u32) -> bool {
        self.abandoned.retain(|(_, thread)| !thread.is_finished());
        let is_blocked = self.abandoned.iter().any(|(user, _)| *user == uid);
        let admits = !is_blocked && self.abandoned.len() < ABANDONED_MAX;
        self.lost += u64::from(!admits);
        admits
    }

    /// Starts a batch. Returns `false` if the thread cannot be started.
    pub(super) fn start(&mut self, batch: Vec<Request>) -> bool {
        if self.worker.is_none() {
            self.worker = BatchWorker::start(self.procfs.clone(), self.cgroups.clone()).ok();
        }
        let Some(BatchWorker { worker, .. }) = &mut self.worker else {
            return false;
        };
        let is_sent = worker.ask(batch.clone()).is_ok();
        self.batch = Some(batch);
        is_sent
    }

    /// Names of the batch in progress; empty if they are not available within `timeout`.
    pub(super) fn receive(&mut self, timeout: Duration) -> Answer {
        let (Some(batch), Some(BatchWorker { worker, position })) = (&self.batch, &mut self.worker)
        else {
            return Vec::new();
        };
        if let Some(answer) = worker.take(timeout) {
            self.batch = None;
            return answer;
        }
        if worker.busy_for().is_some_and(|busy| busy < TIMEOUT) && !worker.has_ended() {
            return Vec::new();
        }
        let blocking = batch.get(position.load(Ordering::Relaxed)).copied();
        self.batch = None;
        let (Some((id, uid)), Some(blocked)) = (blocking, self.worker.take()) else {
            return Vec::new();
        };
        self.abandoned.push((uid, blocked.worker.abandon()));
        self.lost += 1;
        vec![(id, Names::default())]
    }
}

impl BatchWorker {
    fn start(procfs: PathBuf, cgroups: Cgroups) -> anyhow::Result<Self> {
        let position = Arc::new(AtomicUsize::new(0));
        let position_in_thread = Arc::clone(&position);
        let open = move || {
            privileges::keep_for_reading();
            let mut job_numbers = JobNumbers::default();
            move |batch: Vec<Request>| {
                let deadline = Instant::now() + BATCH_TIME;
                let position = &position_in_thread;
                let numbers = &mut job_numbers;
                read(&procfs, &cgroups, numbers, &batch, position, deadline)
            }
        };
        Ok(Self {
            worker: Worker::start("names", open)?,
            position,
        })
    }
}

fn read(
    procfs: &Path,
    cgroups: &Cgroups,
    job_numbers: &mut JobNumbers,
    batch: &[Request],
    position: &AtomicUsize,
    deadline: Instant,
) -> Answer {
    let mut bytes = Budget::new(BATCH_BYTES);
    let mut limits = Limits::new();
    let mut answer = Vec::new();
    for (index, (id, uid)) in batch.iter().enumerate() {
        if Instant::now() > deadline {
            break;
        }
        if bytes.is_spent(*uid) {
            continue;
        }
        position.store(index, Ordering::Relaxed);
        let names = Names::read(procfs, cgroups, job_numbers, &mut limits, *id);
        bytes.charge(*uid, names.bytes);
        answer.push((*id, names));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Adds a process to a procfs. Its uid is the pid divided by 1000.
    fn add_process(procfs: &Path, pid: u32, cmdline: &[u8]) -> Request {
        let directory = procfs.join(pid.to_string());
        fs::create_dir_all(&directory).expect("made");
        let stat = format!("{pid} (x) S {}7 0", "0 ".repeat(18));
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
            &AtomicUsize::new(0),
            Instant::now() + Duration::from_secs(3600),
        );
        // 2 MiB of the first user, in pieces of 64 KiB, and the process of the second.
        assert_eq!(answer.len(), 32 + 1);
        assert_eq!(answer[32].0.pid, 2000);
    }

    #[test]
    fn blocked_thread_is_abandoned() {
        let procfs = tempfile::tempdir().expect("a directory");
        let blocking = add_process(procfs.path(), 1000, b"");
        let fifo = procfs.path().join("1000/cmdline");
        fs::remove_file(&fifo).expect("there");
        let make_fifo = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(make_fifo.expect("coreutils").success());
        let mut reader = NameReader::new(procfs.path().to_owned(), Cgroups::default());
        assert!(reader.start(vec![add_process(procfs.path(), 3000, b"a\0"), blocking]));
        let begin = Instant::now();
        let answer = loop {
            let answer = reader.receive(Duration::from_millis(50));
            if !answer.is_empty() {
                break answer;
            }
        };
        assert!(begin.elapsed() >= TIMEOUT && reader.is_idle());
        assert_eq!(
            (answer.len(), answer[0].0, reader.lost()),
            (1, blocking.0, 1)
        );
        // Processes of other users are still read.
        assert!(!reader.admits(1) && reader.admits(2));
        assert_eq!(reader.lost(), 2);
        let other = add_process(procfs.path(), 2000, b"sh\0");
        assert!(reader.start(vec![other]));
        assert_eq!(reader.receive(Duration::from_secs(60))[0].0, other.0);
        // The user is admitted again after the thread has returned.
        drop(
            fs::OpenOptions::new()
                .write(true)
                .open(&fifo)
                .expect("a reader"),
        );
        while !reader.admits(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
