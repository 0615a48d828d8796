//! Reading of process names in a separate thread.
//!
//! Command line and environment are as long as the process chooses. Each batch is therefore limited
//! in bytes, of which no user gets more than half, and in time. A process that blocks reading delays
//! one batch ([`memory_file`](crate::procfs::memory_file)).

use std::{
    fs::File,
    path::PathBuf,
    time::{Duration, Instant},
};

use hashbrown::{HashMap, HashSet};

use super::{
    Budget, ProcessId,
    names::{Names, Origin, Shared},
};
use crate::{bpf::read_names, host::Cgroups, job::JobNumbers, privileges, support::worker::Worker};

/// Processes per batch without an iterator.
pub(super) const BATCH_MAX: usize = 512;
/// Bytes per batch.
const BATCH_BYTES: usize = 4 << 20;
/// Time after which a batch ends early.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// The same with an iterator, of which every batch takes a pass over all processes.
const PASS_TIME: Duration = Duration::from_millis(200);

/// A process to read, and its user.
pub(super) type Request = (ProcessId, u32);

/// Processes to read.
pub(super) struct Batch {
    pub(super) requests: Vec<Request>,
    /// The iterator [`names`](read_names), if what is in their memory is read with it.
    pub(super) iterator: Option<File>,
}

/// Names of a batch.
#[derive(Default)]
pub(super) struct Answer {
    /// Without processes for which the limits did not suffice.
    pub(super) names: Vec<(ProcessId, Names)>,
    /// Whether the iterator could not be read to its end, or has found none of the processes.
    pub(super) has_failed: bool,
}

/// Handle of the thread.
pub(super) struct IdentityWorker {
    procfs: PathBuf,
    cgroups: Cgroups,
    worker: Option<Worker<Batch, Answer>>,
    /// Processes of which the batch in progress can have names of an earlier program.
    outdated: HashSet<ProcessId>,
}

impl IdentityWorker {
    /// The thread is started by the first batch.
    pub(super) fn new(procfs: PathBuf, cgroups: Cgroups) -> Self {
        Self {
            procfs,
            cgroups,
            worker: None,
            outdated: HashSet::new(),
        }
    }

    /// Whether there is no batch in progress.
    pub(super) fn is_idle(&self) -> bool {
        !self.worker.as_ref().is_some_and(Worker::is_busy)
    }

    /// Starts a batch. Returns `false` if the thread cannot be started.
    pub(super) fn start(&mut self, batch: Batch) -> bool {
        if self.worker.as_ref().is_none_or(Worker::has_ended) {
            let (procfs, cgroups) = (self.procfs.clone(), self.cgroups.clone());
            self.worker = start(procfs, cgroups).ok();
        }
        self.outdated.clear();
        let worker = self.worker.as_mut();
        worker.is_some_and(|worker| worker.ask(batch).is_ok())
    }

    /// Discards what the batch in progress has about a process that has executed another program.
    pub(super) fn discard(&mut self, id: ProcessId) {
        if !self.is_idle() {
            self.outdated.insert(id);
        }
    }

    /// Names of the batch in progress; `None` if they are not available within `timeout`.
    pub(super) fn receive(&mut self, timeout: Duration) -> Option<Answer> {
        let answer = self.worker.as_mut().and_then(|worker| worker.take(timeout));
        if self.worker.as_ref().is_some_and(Worker::has_ended) {
            self.worker = None;
        }
        let mut answer = answer?;
        let outdated = std::mem::take(&mut self.outdated);
        answer.names.retain(|(id, _)| !outdated.contains(id));
        Some(answer)
    }
}

fn start(procfs: PathBuf, cgroups: Cgroups) -> anyhow::Result<Worker<Batch, Answer>> {
    let open = move || {
        privileges::keep_for_reading();
        let mut job_numbers = JobNumbers::default();
        move |batch: Batch| {
            let mut origin = Origin {
                procfs: &procfs,
                cgroups: &cgroups,
                job_numbers: &mut job_numbers,
                shared: &mut Shared::default(),
            };
            match &batch.iterator {
                Some(iterator) => read_pass(&mut origin, &batch.requests, iterator),
                None => read(&mut origin, &batch.requests, BATCH_TIME),
            }
        }
    };
    Worker::start("names", open)
}

/// Reads one process after the other.
fn read(origin: &mut Origin<'_>, requests: &[Request], time: Duration) -> Answer {
    let deadline = Instant::now() + time;
    let mut bytes = Budget::new(BATCH_BYTES);
    let mut answer = Answer::default();
    for (id, uid) in requests {
        if Instant::now() > deadline {
            break;
        }
        if bytes.is_spent(*uid) {
            continue;
        }
        let names = Names::read(origin, *id);
        bytes.charge(*uid, names.bytes);
        answer.names.push((*id, names));
    }
    answer
}

/// Reads what is in the memory of the processes with an iterator, after their files in `/proc`: a process
/// that the iterator finds was alive before.
fn read_pass(origin: &mut Origin<'_>, requests: &[Request], iterator: &File) -> Answer {
    let deadline = Instant::now() + PASS_TIME;
    let mut pending = HashMap::with_capacity(requests.len());
    for (id, uid) in requests {
        if Instant::now() > deadline {
            break;
        }
        pending.insert(*id, (*uid, Names::read_outside_memory(origin, *id)));
    }
    let mut bytes = Budget::new(BATCH_BYTES);
    let mut answer = Answer::default();
    let (mut incomplete, mut threaded) = (Vec::new(), Vec::new());
    let result = read_names(iterator, |record| {
        let id = ProcessId::from(record.header);
        let Some((uid, mut names)) = pending.remove(&id) else {
            return;
        };
        if bytes.is_spent(uid) {
            return;
        }
        if !names.set_memory(&record) {
            incomplete.push((id, uid));
            return;
        }
        bytes.charge(uid, names.bytes);
        if record.header.threads > 1 {
            threaded.push(answer.names.len());
        }
        answer.names.push((id, names));
    });
    answer.has_failed = result.is_err() || (answer.names.is_empty() && incomplete.is_empty());
    for index in threaded {
        let (id, names) = &mut answer.names[index];
        names.read_threads(origin, *id);
    }
    let rest = read(origin, &incomplete, BATCH_TIME);
    answer.names.extend(rest.names);
    answer
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

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
        let mut origin = Origin {
            procfs: procfs.path(),
            cgroups: &Cgroups::default(),
            job_numbers: &mut JobNumbers::default(),
            shared: &mut Shared::default(),
        };
        let names = read(&mut origin, &batch, Duration::from_secs(3600)).names;
        // 2 MiB of the first user, in pieces of 64 KiB, and the process of the second.
        assert_eq!(names.len(), 32 + 1);
        assert_eq!(names[32].0.pid, 2000);
    }

    #[test]
    fn names_of_an_earlier_program_are_discarded() {
        let procfs = tempfile::tempdir().expect("a directory");
        let requests = vec![add_process(procfs.path(), 3000, b"a\0")];
        let mut reader = IdentityWorker::new(procfs.path().to_owned(), Cgroups::default());
        for executes in [true, false] {
            assert!(reader.start(Batch {
                requests: requests.clone(),
                iterator: None,
            }));
            if executes {
                reader.discard(requests[0].0);
            }
            let answer = reader.receive(Duration::from_secs(60)).expect("one");
            assert_eq!(answer.names.is_empty(), executes);
        }
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
            assert!(reader.start(Batch {
                requests: batch.clone(),
                iterator: None,
            }));
            let answer = reader.receive(Duration::from_secs(60)).expect("one");
            read.extend(answer.names.iter().map(|(id, _)| *id));
        }
    }
}
