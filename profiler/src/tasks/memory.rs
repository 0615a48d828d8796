//! Proportional and unique memory, from /proc/PID/smaps_rollup.
//!
//! Reading it takes the process's mmap lock for milliseconds, so it has a schedule and a thread of its own: every 30 s,
//! and where the sum of resident memory has grown, so that the peak of the proportional sum is known. What that takes is
//! bounded by what the reading before took.

use std::{
    path::Path,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread,
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use procfs::{ProcError, process::Process as ProcfsProcess};

use super::{Process, ProcessId};
use crate::{host::Host, privileges};

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(30);
/// The sum of resident memory has grown when it is this much larger than at the reading before, percent.
const GROWN: u64 = 125;
/// A reading for growth comes no sooner than this many times what the reading before took: 2 % of one CPU at most.
const PAUSE: u32 = 50;
/// Nor sooner than this.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// Most processes that are read in one period: the largest.
const PROCESSES_PER_PERIOD: usize = 4096;
/// Longest wait for the reading at the end of the run.
const LAST_WAIT: Duration = Duration::from_millis(100);
/// Most processes that are read at the end of the run.
const LAST_PROCESSES: usize = 256;

/// Memory that depends on what is shared with others, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Proportional set size.
    pub pss: u64,
    /// Unique set size: private pages.
    pub uss: u64,
}

/// Reads footprints beside the loop.
pub struct Reader {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    asked: Option<Instant>,
    waiting: bool,
    ready: Option<Answer>,
    /// Sum of resident memory when it was asked last.
    rss: u64,
    /// What the last reading took.
    took: Duration,
}

/// Processes to read.
struct Request {
    ids: Vec<ProcessId>,
    /// Whether these are all.
    all: bool,
}

/// Figures of processes.
struct Answer {
    read: HashMap<ProcessId, Footprint>,
    /// Whether they are of all processes that have not ended meanwhile.
    all: bool,
    took: Duration,
}

impl Reader {
    /// Starts the thread; it ends with the reader.
    pub fn new(host: &Host) -> Self {
        let (requests, receiver) = channel::<Request>();
        let (outbox, answers) = channel();
        let root = host.procfs.clone();
        let read = move || {
            privileges::keep_for_reading();
            for Request { ids, mut all } in receiver {
                let begin = Instant::now();
                let mut read = HashMap::new();
                for id in ids {
                    match footprint(&root.join(id.pid.to_string())) {
                        Ok(Some(footprint)) => {
                            read.insert(id, footprint);
                        }
                        Ok(None) => {}
                        Err(_) => all = false,
                    }
                }
                let took = begin.elapsed();
                if outbox.send(Answer { read, all, took }).is_err() {
                    break;
                }
            }
        };
        // Without a thread `read` is dropped, its channels with it, and nothing is waiting.
        let _ = thread::Builder::new()
            .name("footprints".to_owned())
            .spawn(read);
        Self {
            requests,
            answers,
            asked: None,
            waiting: false,
            ready: None,
            rss: 0,
            took: Duration::ZERO,
        }
    }

    /// Asks for a new reading when it is time.
    pub fn update(&mut self, processes: &HashMap<ProcessId, Process>) {
        if self.waiting {
            return;
        }
        let mut due: Vec<_> = readable(processes)
            .map(|process| {
                let rss = process.gauges.memory.map_or(0, |memory| memory.rss);
                (rss, process.id)
            })
            .collect();
        let rss: u64 = due.iter().map(|(rss, _)| rss).sum();
        let grown = rss > self.rss / 100 * GROWN;
        let pause = if grown {
            SHORTEST_PAUSE.max(self.took * PAUSE)
        } else {
            PERIOD
        };
        if self.asked.is_some_and(|asked| asked.elapsed() < pause) {
            return;
        }
        self.rss = rss;
        due.sort_unstable_by(|a, b| b.cmp(a));
        let all = due.len() <= PROCESSES_PER_PERIOD;
        due.truncate(PROCESSES_PER_PERIOD);
        let ids = due.into_iter().map(|(_, id)| id).collect();
        self.ask(Request { ids, all });
    }

    /// Makes the reading at the end, unless that would take too long.
    pub fn read_last(&mut self, processes: &HashMap<ProcessId, Process>) {
        if self.waiting || processes.len() > LAST_PROCESSES {
            return;
        }
        let ids = readable(processes).map(|process| process.id).collect();
        self.ask(Request { ids, all: true });
        self.ready = self.answers.recv_timeout(LAST_WAIT).ok();
        self.waiting = false;
    }

    fn ask(&mut self, request: Request) {
        self.waiting = self.requests.send(request).is_ok();
        self.asked = Some(Instant::now());
    }

    /// What was read since the last call, and the sum of proportional memory if it is of all processes.
    pub fn take(&mut self) -> (HashMap<ProcessId, Footprint>, Option<u64>) {
        let answer = match self.ready.take() {
            Some(answer) => Ok(answer),
            None => self.answers.try_recv(),
        };
        match answer {
            Ok(Answer { read, all, took }) => {
                self.waiting = false;
                self.took = took;
                let sum = read.values().map(|footprint| footprint.pss).sum();
                let known = all && !read.is_empty();
                (read, known.then_some(sum))
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => (HashMap::new(), None),
        }
    }
}

/// Processes that live and have memory of their own.
fn readable(processes: &HashMap<ProcessId, Process>) -> impl Iterator<Item = &Process> {
    processes
        .values()
        .filter(|process| process.end.is_none() && process.gauges.memory.is_some())
}

/// The figures of one process; `None` when it has ended or has no memory.
///
/// # Errors
///
/// When they may not be read.
fn footprint(directory: &Path) -> Result<Option<Footprint>, ProcError> {
    let read = ProcfsProcess::new_with_root(directory.to_owned()).and_then(|it| it.smaps_rollup());
    let rollup = match read {
        Ok(rollup) => rollup,
        Err(error @ ProcError::PermissionDenied(_)) => return Err(error),
        Err(_) => return Ok(None),
    };
    let maps = rollup.memory_map_rollup.0;
    Ok(maps.first().and_then(|map| {
        let get = |name: &str| map.extension.map.get(name).copied();
        Some(Footprint {
            pss: get("Pss")?,
            uss: get("Private_Clean")?
                + get("Private_Dirty")?
                + get("Private_Hugetlb").unwrap_or(0),
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let read = footprint(Path::new("/proc/self"))
            .expect("ours")
            .expect("smaps_rollup");
        assert!(read.uss > 0 && read.uss <= read.pss, "{read:?}");
        assert_eq!(read.pss % 1024, 0);
    }
}
