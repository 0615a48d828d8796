//! Reads the names of processes in a thread of its own.
//!
//! The command line and the environment are in memory that the process controls: they can be long, and a page of them can
//! take as long as the process likes (userfaultfd). Each batch has a budget of bytes, of which no user gets more than half,
//! and of time. A thread that does not come back is left behind, and no process of that user is read until it does.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{Budget, ProcessId, names::Names};
use crate::{host::Cgroups, job::Numbers, privileges};

/// Processes that are read in one batch.
pub const BATCH: usize = 512;
/// Bytes that are read in one batch.
const BYTES: usize = 4 << 20;
/// Time that one batch takes.
const TIME: Duration = Duration::from_millis(50);
/// Time after which a thread is left behind.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Threads that are left behind at a time.
const STUCK_MAX: usize = 8;

/// Whose names are to be read: the process, and its user.
pub type Request = (ProcessId, u32);
/// What was read; processes for which the budget was too small are missing.
pub type Answer = Vec<(ProcessId, Names)>;

/// The thread, seen from the loop.
pub struct NameReader {
    procfs: PathBuf,
    cgroups: Cgroups,
    worker: Option<Worker>,
    batch: Option<(Instant, Vec<Request>)>,
    stuck: Vec<(u32, JoinHandle<()>)>,
    lost: u64,
}

struct Worker {
    batches: Sender<Vec<Request>>,
    answers: Receiver<Answer>,
    /// Where in its batch it is.
    position: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl NameReader {
    /// Of the processes in this procfs. The thread starts with the first batch.
    pub fn new(procfs: PathBuf, cgroups: Cgroups) -> Self {
        Self {
            procfs,
            cgroups,
            worker: None,
            batch: None,
            stuck: Vec::new(),
            lost: 0,
        }
    }

    /// Processes whose names could not be read for lack of an answer.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether it can be asked.
    pub fn is_idle(&self) -> bool {
        self.batch.is_none()
    }

    /// Whether a process of this user may be asked for; one that may not is lost.
    pub fn admits(&mut self, uid: u32) -> bool {
        self.stuck.retain(|(_, thread)| !thread.is_finished());
        let is_stuck = self.stuck.iter().any(|(user, _)| *user == uid);
        let admits = !is_stuck && self.stuck.len() < STUCK_MAX;
        self.lost += u64::from(!admits);
        admits
    }

    /// Asks for the names of these processes, unless there is no thread for it.
    pub fn ask(&mut self, batch: Vec<Request>) -> bool {
        if self.worker.is_none() {
            self.worker = Worker::start(self.procfs.clone(), self.cgroups.clone()).ok();
        }
        let Some(worker) = &self.worker else {
            return false;
        };
        let has_asked = worker.batches.send(batch.clone()).is_ok();
        self.batch = Some((Instant::now(), batch));
        has_asked
    }

    /// The answer, if it comes within `timeout`.
    pub fn take(&mut self, timeout: Duration) -> Answer {
        let (Some((asked, batch)), Some(worker)) = (&self.batch, &self.worker) else {
            return Vec::new();
        };
        if let Ok(answer) = worker.answers.recv_timeout(timeout) {
            self.batch = None;
            return answer;
        }
        if asked.elapsed() < TIMEOUT && !worker.thread.is_finished() {
            return Vec::new();
        }
        let position = worker.position.load(Ordering::Relaxed);
        let culprit = batch.get(position).copied();
        self.batch = None;
        let thread = self.worker.take().map(|worker| worker.thread);
        let (Some((id, uid)), Some(thread)) = (culprit, thread) else {
            return Vec::new();
        };
        self.stuck.push((uid, thread));
        self.lost += 1;
        vec![(id, Names::default())]
    }
}

impl Worker {
    fn start(procfs: PathBuf, cgroups: Cgroups) -> std::io::Result<Self> {
        let (batches, asked) = channel::<Vec<Request>>();
        let (answer, answers) = channel();
        let position = Arc::new(AtomicUsize::new(0));
        let at = Arc::clone(&position);
        let work = move || {
            privileges::keep_for_reading();
            let mut numbers = Numbers::default();
            for batch in asked {
                let deadline = Instant::now() + TIME;
                let read = read(&procfs, &cgroups, &mut numbers, &batch, &at, deadline);
                if answer.send(read).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("names".to_owned())
            .spawn(work)?;
        Ok(Self {
            batches,
            answers,
            position,
            thread,
        })
    }
}

fn read(
    procfs: &std::path::Path,
    cgroups: &Cgroups,
    numbers: &mut Numbers,
    batch: &[Request],
    at: &AtomicUsize,
    deadline: Instant,
) -> Answer {
    let mut bytes = Budget::of(BYTES);
    let mut answer = Vec::new();
    for (position, (id, uid)) in batch.iter().enumerate() {
        if Instant::now() > deadline {
            break;
        }
        if bytes.is_spent(*uid) {
            continue;
        }
        at.store(position, Ordering::Relaxed);
        let names = Names::read(procfs, cgroups, numbers, *id);
        bytes.charge(*uid, names.bytes);
        answer.push((*id, names));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A process in a procfs of our own.
    fn process(procfs: &Path, pid: u32, cmdline: &[u8]) -> Request {
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
    fn a_batch_has_a_budget_of_bytes_for_each_user() {
        let procfs = tempfile::tempdir().expect("a directory");
        let long = vec![b'x'; 1 << 20];
        let mut batch: Vec<_> = (1000..1100)
            .map(|pid| process(procfs.path(), pid, &long))
            .collect();
        batch.push(process(procfs.path(), 2000, b"sh\0"));
        let answer = read(
            procfs.path(),
            &Cgroups::default(),
            &mut Numbers::default(),
            &batch,
            &AtomicUsize::new(0),
            Instant::now() + Duration::from_secs(3600),
        );
        // 2 MiB in pieces of 64 KiB; and the other user's.
        assert_eq!(answer.len(), 32 + 1);
        assert_eq!(answer[32].0.pid, 2000);
    }

    #[test]
    fn a_thread_that_does_not_come_back_is_left_behind() {
        let procfs = tempfile::tempdir().expect("a directory");
        let hangs = process(procfs.path(), 1000, b"");
        let fifo = procfs.path().join("1000/cmdline");
        fs::remove_file(&fifo).expect("there");
        let make_fifo = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(make_fifo.expect("coreutils").success());
        let mut name_reader = NameReader::new(procfs.path().to_owned(), Cgroups::default());
        assert!(name_reader.ask(vec![process(procfs.path(), 3000, b"a\0"), hangs]));
        let begin = Instant::now();
        let answer = loop {
            let answer = name_reader.take(Duration::from_millis(50));
            if !answer.is_empty() {
                break answer;
            }
        };
        assert!(begin.elapsed() >= TIMEOUT && name_reader.is_idle());
        assert_eq!(
            (answer.len(), answer[0].0, name_reader.lost()),
            (1, hangs.0, 1)
        );
        // Its user is not asked for again; others are.
        assert!(!name_reader.admits(1) && name_reader.admits(2));
        assert_eq!(name_reader.lost(), 2);
        let other = process(procfs.path(), 2000, b"sh\0");
        assert!(name_reader.ask(vec![other]));
        assert_eq!(name_reader.take(Duration::from_secs(60))[0].0, other.0);
        // It comes back.
        drop(
            fs::OpenOptions::new()
                .write(true)
                .open(&fifo)
                .expect("a reader"),
        );
        while !name_reader.admits(1) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
