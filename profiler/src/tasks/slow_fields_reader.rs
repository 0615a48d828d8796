//! Schedule of reading [`Details`], in a separate thread.
//!
//! Reading `/proc/PID/smaps_rollup` holds the mmap lock of the process for milliseconds. All processes
//! are read every 30 s, and earlier if the sum of resident memory has grown, so that the peak of the
//! proportional sum is recorded. Processes that have not run since their last reading keep its values,
//! and many processes are read slowly. At the end of the run, a few are all read once more.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::{
    Access, Process, ProcessId,
    processes::Processes,
    slow_fields::{self, Descriptors, Details},
};
use crate::{host::Host, privileges, procfs::smaps_rollup, support::worker::Worker};

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(30);
/// Growth of the sum of resident memory that causes a reading, percent of the sum at the previous
/// reading.
const GROWTH_PERCENT: u64 = 125;
/// Pause before a reading because of growth, and within a reading of many processes, as a multiple of
/// the time that reading took: at most 2 % of one CPU.
const PAUSE_FACTOR: u32 = 50;
/// Shortest pause before a reading because of growth.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Processes and descriptors that are read without pauses.
const AT_ONCE_MAX: usize = 256;
const DESCRIPTORS_AT_ONCE_MAX: usize = 16384;
/// Processes between two pauses.
const CHUNK: usize = 16;
/// Processes per reading; the largest are selected.
const PROCESSES_MAX: usize = 16384;
/// Time after which a process is read even if it has not run. Other processes can have stopped sharing
/// its memory.
const VALID_FOR: Duration = Duration::from_secs(30 * 60);
/// Time limit of the reading at the end of the run.
const LAST_TIMEOUT: Duration = Duration::from_millis(500);
/// Processes up to which there is a reading at the end of the run.
const LAST_PROCESSES_MAX: usize = 256;

/// Handle of the thread, which ends after the handle is dropped.
pub(super) struct DetailsReader {
    /// `None` if the thread could not be started; then nothing is read.
    worker: Option<Worker<Request, Answer>>,
    requested_at: Option<Instant>,
    /// Answer that was received at the end of the run.
    received: Option<Answer>,
    /// Sum of resident memory at the last request, bytes.
    rss: u64,
    /// Duration of the last reading.
    took: Duration,
    /// Processes whose descriptors were not read, by user.
    descriptors_lost: BTreeMap<u32, u64>,
}

struct Request {
    subjects: Vec<Subject>,
    /// Whether `subjects` has all processes.
    is_complete: bool,
    /// Whether the run ends. The processes can have run since the sample that `subjects` is from, so
    /// that earlier values prove nothing.
    is_last: bool,
}

/// A process to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    /// Resident memory, bytes.
    rss: u64,
    id: ProcessId,
    /// Its user.
    uid: u32,
    /// Time on CPU. If it is the same as at an earlier reading, the process has not run.
    oncpu: u64,
}

/// Details as of an earlier reading.
struct Known {
    details: Details,
    subject: Subject,
    at: Instant,
}

struct Answer {
    details: HashMap<ProcessId, Details>,
    /// Whether all processes that still live were read.
    is_complete: bool,
    /// Time that it took, without pauses.
    took: Duration,
    descriptors_lost: HashMap<u32, u64>,
}

impl DetailsReader {
    /// Starts the thread. If that fails, nothing is read.
    pub(super) fn new(host: &Host) -> Self {
        let procfs = host.procfs.clone();
        let open = move || {
            privileges::keep_for_reading();
            let iowait = slow_fields::measures_iowait(&procfs);
            let mut known = HashMap::new();
            move |request| read(&procfs, request, iowait, &mut known)
        };
        Self {
            worker: Worker::start("details", open).ok(),
            requested_at: None,
            received: None,
            rss: 0,
            took: Duration::ZERO,
            descriptors_lost: BTreeMap::new(),
        }
    }

    /// Requests a reading if it is due; `rss` is the resident memory of all processes, bytes.
    pub(super) fn update(&mut self, processes: &Processes, rss: u64) {
        if self.is_busy() {
            return;
        }
        let since_last = self.requested_at.map(|at| at.elapsed());
        let is_within = |pause| since_last.is_some_and(|since| since < pause);
        let after_growth = PAUSE_MIN.max(self.took * PAUSE_FACTOR);
        if is_within(after_growth.min(PERIOD)) {
            return;
        }
        let has_grown = rss > self.rss / 100 * GROWTH_PERCENT;
        if is_within(if has_grown { after_growth } else { PERIOD }) {
            return;
        }
        self.rss = rss;
        let mut subjects: Vec<Subject> = with_memory(processes).collect();
        subjects.sort_unstable_by(|a, b| b.cmp(a));
        let is_complete = subjects.len() <= PROCESSES_MAX;
        subjects.truncate(PROCESSES_MAX);
        self.request(Request {
            subjects,
            is_complete,
            is_last: false,
        });
    }

    /// Reads all processes at the end of the run, unless they are too many or the thread hangs.
    pub(super) fn read_last(&mut self, processes: &Processes) {
        if processes.len() > LAST_PROCESSES_MAX {
            return;
        }
        let end = Instant::now() + LAST_TIMEOUT;
        // An earlier reading goes on.
        self.received = self.take_until(end);
        if self.is_busy() {
            return;
        }
        self.request(Request {
            subjects: with_memory(processes).collect(),
            is_complete: true,
            is_last: true,
        });
        let last = self.take_until(end);
        self.received = last.or(self.received.take());
    }

    fn take_until(&mut self, end: Instant) -> Option<Answer> {
        self.take(end.saturating_duration_since(Instant::now()))
    }

    fn take(&mut self, timeout: Duration) -> Option<Answer> {
        let answer = self.worker.as_mut()?.take(timeout)?;
        for (uid, lost) in &answer.descriptors_lost {
            *self.descriptors_lost.entry(*uid).or_default() += lost;
        }
        Some(answer)
    }

    /// Processes whose descriptors were not read, by user, once for each reading.
    pub(super) fn descriptors_lost(&self) -> &BTreeMap<u32, u64> {
        &self.descriptors_lost
    }

    fn is_busy(&self) -> bool {
        self.worker.as_ref().is_none_or(Worker::is_busy)
    }

    fn request(&mut self, request: Request) {
        if let Some(worker) = &mut self.worker {
            // Fails only if the thread has ended.
            let _ = worker.ask(request);
        }
        self.requested_at = Some(Instant::now());
    }

    /// Values since the last call, and the sum of proportional memory if all processes were read.
    pub(super) fn receive(&mut self) -> (HashMap<ProcessId, Details>, Option<u64>) {
        let answer = self.received.take();
        let answer = answer.or_else(|| self.take(Duration::ZERO));
        let Some(answer) = answer else {
            return (HashMap::new(), None);
        };
        self.took = answer.took;
        let footprints = answer.details.values().filter_map(|found| found.footprint);
        // Without any, the processes have ended before they were read.
        let sum = footprints
            .map(|footprint| footprint.pss)
            .reduce(|a, b| a + b);
        (answer.details, sum.filter(|_| answer.is_complete))
    }
}

fn read(
    procfs: &Path,
    request: Request,
    iowait: bool,
    known: &mut HashMap<ProcessId, Known>,
) -> Answer {
    let is_valid = |known: &Known, subject: &Subject| {
        !request.is_last && known.subject == *subject && known.at.elapsed() < VALID_FOR
    };
    let mut still_known = HashMap::with_capacity(request.subjects.len());
    let mut changed = Vec::new();
    for subject in request.subjects {
        match known.remove(&subject.id) {
            Some(known) if is_valid(&known, &subject) => {
                still_known.insert(subject.id, known);
            }
            _ => changed.push(subject),
        }
    }
    *known = still_known;
    let is_slow = changed.len() > AT_ONCE_MAX;
    let mut is_complete = request.is_complete;
    let mut took = Duration::ZERO;
    let mut descriptors = Descriptors::default();
    for subjects in changed.chunks(CHUNK) {
        let at = Instant::now();
        let pids: Vec<u32> = subjects.iter().map(|subject| subject.id.pid).collect();
        let footprints = smaps_rollup::read_all(procfs, &pids);
        // A process that blocks reading takes no CPU time.
        let is_blocked = |result: &io::Result<_>| matches!(result, Err(error) if error.kind() == io::ErrorKind::TimedOut);
        let at = if footprints.iter().any(is_blocked) {
            Instant::now()
        } else {
            at
        };
        for (subject, footprint) in subjects.iter().zip(footprints) {
            is_complete &= footprint.is_ok();
            if !is_blocked(&footprint) && footprint.is_err() {
                continue;
            }
            let directory = procfs.join(subject.id.pid.to_string());
            let footprint = footprint.unwrap_or(None);
            let (uid, descriptors) = (subject.uid, &mut descriptors);
            if let Some(details) =
                slow_fields::read(&directory, uid, footprint, iowait, descriptors)
            {
                let read = Known {
                    details,
                    subject: *subject,
                    at,
                };
                known.insert(subject.id, read);
            }
        }
        let ran = at.elapsed();
        took += ran;
        if is_slow || (!request.is_last && descriptors.total > DESCRIPTORS_AT_ONCE_MAX) {
            thread::sleep(ran * PAUSE_FACTOR);
        }
    }
    let found = known.iter().map(|(id, known)| (*id, known.details));
    let found = found.collect();
    Answer {
        details: found,
        is_complete,
        took,
        descriptors_lost: descriptors.lost,
    }
}

/// Live processes with an address space.
fn with_memory(processes: &Processes) -> impl Iterator<Item = Subject> {
    let shown = |process: &&Process| process.end.is_none() && process.access == Access::Full;
    let living = processes.all().filter(shown);
    living.filter_map(|process| {
        Some(Subject {
            rss: process.gauges.memory?.rss,
            id: process.id,
            uid: process.uid,
            oncpu: process.totals.oncpu,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_have_not_run_keep_their_details_until_the_end() {
        let id = ProcessId {
            pid: std::process::id(),
            start_boottime: 1,
        };
        let mut known = HashMap::new();
        let mut read_at = |rss, oncpu, is_last| {
            let request = Request {
                subjects: vec![Subject {
                    rss,
                    id,
                    uid: 0,
                    oncpu,
                }],
                is_complete: true,
                is_last,
            };
            let answer = read(Path::new("/proc"), request, false, &mut known);
            assert!(answer.is_complete && answer.details.contains_key(&id));
            known[&id].at
        };
        let first = read_at(1, 1, false);
        assert_eq!(read_at(1, 1, false), first);
        let (more_time, more_memory) = (read_at(1, 2, false), read_at(2, 2, false));
        assert!(first < more_time && more_time < more_memory);
        assert!(more_memory < read_at(2, 2, true));
        let gone = Request {
            subjects: Vec::new(),
            is_complete: true,
            is_last: false,
        };
        assert!(
            read(Path::new("/proc"), gone, false, &mut known)
                .details
                .is_empty()
        );
        assert!(known.is_empty());
    }
}
