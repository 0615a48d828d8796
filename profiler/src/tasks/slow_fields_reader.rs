//! Schedule of reading [`Details`], in a separate thread.
//!
//! Reading `/proc/PID/smaps_rollup` holds the mmap lock of the process for milliseconds. All processes
//! are read every 30 s, and earlier if the sum of resident memory has grown, so that the peak of the
//! proportional sum is recorded. Processes that have not run since their last reading keep its values.
//! Of many processes, some are read at once and the rest little by little, those that have only slept at last.
//! At the end of the run, a few are all read once more.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
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
/// Pause before a reading because of growth, and before the rest of a reading, as a multiple of the time
/// that the reading took: at most 2 % of one CPU.
const PAUSE_FACTOR: u32 = 50;
/// The same for processes that have only slept: 0.1 % of one CPU.
const ASLEEP_PAUSE_FACTOR: u32 = 1000;
/// Shortest pause before a reading because of growth.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Processes and descriptors that are read at once.
const AT_ONCE_MAX: usize = 256;
const DESCRIPTORS_AT_ONCE_MAX: usize = 16384;
/// Fewest processes of the rest that are read at once, and those whose memory is read in one exchange.
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
    /// Duration of the last reading so far.
    took: Duration,
    /// Duration of reading one process.
    each: Duration,
    /// What remains of the last reading.
    rest: Rest,
    /// Last request for a part of it.
    continued_at: Option<Instant>,
    /// Whether there has been a sample.
    has_begun: bool,
    /// Processes whose descriptors were not read, by user.
    descriptors_lost: BTreeMap<u32, u64>,
}

enum Request {
    All(Reading),
    /// This many processes of the rest.
    Rest(usize),
}

/// A reading of all processes.
#[derive(Default)]
struct Reading {
    /// Those that have run first, and the largest of them.
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
    /// Whether it has run since the run began.
    has_run: bool,
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
    /// Number of the processes that were read, and the time that it took.
    read: usize,
    took: Duration,
    /// The processes that remain to be read.
    rest: Rest,
    descriptors_lost: HashMap<u32, u64>,
}

/// Processes of a reading that remain to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rest {
    /// Those that have run.
    awake: usize,
    /// Those that have only slept.
    asleep: usize,
}

impl Rest {
    /// How many of them are to be read, if reading one takes this time and the last ones were read this long
    /// ago; `None` for none.
    fn due(self, each: Duration, since: Duration) -> Option<usize> {
        let (most, factor) = match self {
            Self {
                awake: 0,
                asleep: 0,
            } => return None,
            Self { awake: 0, asleep } => (asleep, ASLEEP_PAUSE_FACTOR),
            Self { awake, .. } => (awake, PAUSE_FACTOR),
        };
        let each = (each * factor).max(Duration::from_nanos(1));
        let count = since.as_nanos() / each.as_nanos();
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(most);
        (count >= CHUNK.min(most)).then_some(count)
    }
}

impl DetailsReader {
    /// Starts the thread. If that fails, nothing is read.
    pub(super) fn new(host: &Host) -> Self {
        let procfs = host.procfs.clone();
        let open = move || {
            privileges::keep_for_reading();
            let iowait = slow_fields::measures_iowait(&procfs);
            let mut thread = ReaderThread::new(procfs, iowait);
            move |request| thread.answer(request)
        };
        Self {
            worker: Worker::start("details", open).ok(),
            requested_at: None,
            received: None,
            rss: 0,
            took: Duration::ZERO,
            each: Duration::ZERO,
            rest: Rest::default(),
            continued_at: None,
            has_begun: false,
            descriptors_lost: BTreeMap::new(),
        }
    }

    /// Requests a reading, or a part of the rest of the last one, if it is due; `rss` is the resident memory
    /// of all processes, bytes.
    pub(super) fn update(&mut self, processes: &Processes, rss: u64) {
        if self.is_busy() || self.update_all(processes, rss) {
            return;
        }
        let since = self.continued_at.map_or(Duration::ZERO, |at| at.elapsed());
        if let Some(count) = self.rest.due(self.each, since) {
            self.request(Request::Rest(count));
        }
    }

    /// Requests a reading if it is due.
    fn update_all(&mut self, processes: &Processes, rss: u64) -> bool {
        let since_last = self.requested_at.map(|at| at.elapsed());
        let is_within = |pause| since_last.is_some_and(|since| since < pause);
        let after_growth = PAUSE_MIN.max(self.took * PAUSE_FACTOR);
        if is_within(after_growth.min(PERIOD)) {
            return false;
        }
        let has_grown = rss > self.rss / 100 * GROWTH_PERCENT;
        if is_within(if has_grown { after_growth } else { PERIOD }) {
            return false;
        }
        // The first sample does not know which of them run.
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        if !has_begun && processes.len() > AT_ONCE_MAX {
            return false;
        }
        self.rss = rss;
        let mut subjects: Vec<Subject> = with_memory(processes).collect();
        subjects.sort_unstable_by(|a, b| b.cmp(a));
        let is_complete = subjects.len() <= PROCESSES_MAX;
        subjects.truncate(PROCESSES_MAX);
        self.request_all(Reading {
            subjects,
            is_complete,
            is_last: false,
        });
        true
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
        self.request_all(Reading {
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
        self.continued_at = Some(Instant::now());
    }

    fn request_all(&mut self, reading: Reading) {
        self.request(Request::All(reading));
        self.took = Duration::ZERO;
        self.requested_at = self.continued_at;
    }

    /// Values since the last call, and the sum of proportional memory if all processes were read.
    pub(super) fn receive(&mut self) -> (HashMap<ProcessId, Details>, Option<u64>) {
        let answer = self.received.take();
        let answer = answer.or_else(|| self.take(Duration::ZERO));
        let Some(answer) = answer else {
            return (HashMap::new(), None);
        };
        self.took += answer.took;
        if let Ok(read) = u32::try_from(answer.read) {
            self.each = answer.took.checked_div(read).unwrap_or(self.each);
        }
        self.rest = answer.rest;
        let footprints = answer.details.values().filter_map(|found| found.footprint);
        // Without any, the processes have ended before they were read.
        let sum = footprints
            .map(|footprint| footprint.pss)
            .reduce(|a, b| a + b);
        (answer.details, sum.filter(|_| answer.is_complete))
    }
}

/// What the thread knows.
struct ReaderThread {
    procfs: PathBuf,
    /// Whether the kernel measures waits for block I/O.
    iowait: bool,
    known: HashMap<ProcessId, Known>,
    /// Processes of the last reading that remain to be read, in reverse order.
    rest: Vec<Subject>,
    /// Whether they are all that is missing.
    is_complete: bool,
    descriptors: Descriptors,
    /// Time for which processes have blocked this request. It takes no CPU time.
    blocked: Duration,
}

impl ReaderThread {
    fn new(procfs: PathBuf, iowait: bool) -> Self {
        Self {
            procfs,
            iowait,
            known: HashMap::new(),
            rest: Vec::new(),
            is_complete: false,
            descriptors: Descriptors::default(),
            blocked: Duration::ZERO,
        }
    }

    fn answer(&mut self, request: Request) -> Answer {
        let begin = Instant::now();
        self.blocked = Duration::ZERO;
        let (is_whole, read) = match request {
            Request::All(reading) => {
                let is_last = reading.is_last;
                self.begin(reading);
                (true, self.read_at_once(is_last))
            }
            Request::Rest(count) => (false, self.read(count)),
        };
        let awake = self.rest.iter().filter(|subject| subject.has_run).count();
        let details = |id: &ProcessId| Some((*id, self.known.get(id)?.details));
        Answer {
            // The sum over processes needs those of all in one sample.
            details: if is_whole || self.rest.is_empty() {
                self.known.keys().filter_map(details).collect()
            } else {
                read.iter().filter_map(details).collect()
            },
            is_complete: self.is_complete && self.rest.is_empty(),
            read: read.len(),
            took: begin.elapsed().saturating_sub(self.blocked),
            rest: Rest {
                awake,
                asleep: self.rest.len() - awake,
            },
            descriptors_lost: std::mem::take(&mut self.descriptors.lost),
        }
    }

    /// Finds the processes whose values are unknown.
    fn begin(&mut self, reading: Reading) {
        let is_valid = |known: &Known, subject: &Subject| {
            !reading.is_last && known.subject == *subject && known.at.elapsed() < VALID_FOR
        };
        let mut still_known = HashMap::with_capacity(reading.subjects.len());
        self.rest.clear();
        for subject in reading.subjects {
            match self.known.remove(&subject.id) {
                Some(known) if is_valid(&known, &subject) => {
                    still_known.insert(subject.id, known);
                }
                _ => self.rest.push(subject),
            }
        }
        self.rest.reverse();
        self.known = still_known;
        self.is_complete = reading.is_complete;
        self.descriptors = Descriptors::default();
    }

    /// Reads the first processes of a reading. If they are many, those that only sleep are among them only in
    /// the first reading.
    fn read_at_once(&mut self, is_last: bool) -> Vec<ProcessId> {
        let with_asleep = self.known.is_empty() || self.rest.len() <= AT_ONCE_MAX;
        let mut read = Vec::new();
        while read.len() < AT_ONCE_MAX
            && (is_last || self.descriptors.total <= DESCRIPTORS_AT_ONCE_MAX)
            && let Some(next) = self.rest.last()
            && (with_asleep || next.has_run)
        {
            read.extend(self.read(CHUNK));
        }
        read
    }

    /// Reads this many processes of the rest.
    fn read(&mut self, count: usize) -> Vec<ProcessId> {
        let subjects = self.rest.split_off(self.rest.len().saturating_sub(count));
        for subjects in subjects.rchunks(CHUNK) {
            self.read_chunk(subjects);
        }
        subjects.iter().map(|subject| subject.id).collect()
    }

    fn read_chunk(&mut self, subjects: &[Subject]) {
        let at = Instant::now();
        let pids: Vec<u32> = subjects.iter().map(|subject| subject.id.pid).collect();
        let footprints = smaps_rollup::read_all(&self.procfs, &pids);
        let is_blocked = |result: &io::Result<_>| matches!(result, Err(error) if error.kind() == io::ErrorKind::TimedOut);
        if footprints.iter().any(is_blocked) {
            self.blocked += at.elapsed();
        }
        for (subject, footprint) in subjects.iter().zip(footprints) {
            self.is_complete &= footprint.is_ok();
            if !is_blocked(&footprint) && footprint.is_err() {
                continue;
            }
            let directory = self.procfs.join(subject.id.pid.to_string());
            let footprint = footprint.unwrap_or(None);
            let (uid, descriptors) = (subject.uid, &mut self.descriptors);
            if let Some(details) =
                slow_fields::read(&directory, uid, footprint, self.iowait, descriptors)
            {
                let read = Known {
                    details,
                    subject: *subject,
                    at,
                };
                self.known.insert(subject.id, read);
            }
        }
    }
}

/// Live processes with an address space.
fn with_memory(processes: &Processes) -> impl Iterator<Item = Subject> {
    let shown = |process: &&Process| process.end.is_none() && process.access == Access::Full;
    let living = processes.all().filter(shown);
    living.filter_map(|process| {
        Some(Subject {
            has_run: process.has_run(),
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

    fn thread() -> ReaderThread {
        ReaderThread::new("/proc".into(), false)
    }

    fn subject(pid: u32) -> Subject {
        Subject {
            has_run: true,
            rss: 1,
            id: ProcessId {
                pid,
                start_boottime: 1,
            },
            uid: 0,
            oncpu: 1,
        }
    }

    #[test]
    fn processes_that_have_not_run_keep_their_details_until_the_end() {
        let own = subject(std::process::id());
        let mut thread = thread();
        let mut read_at = |rss, oncpu, is_last| {
            let answer = thread.answer(Request::All(Reading {
                subjects: vec![Subject { rss, oncpu, ..own }],
                is_complete: true,
                is_last,
            }));
            assert!(answer.is_complete && answer.details.contains_key(&own.id));
            thread.known[&own.id].at
        };
        let first = read_at(1, 1, false);
        assert_eq!(read_at(1, 1, false), first);
        let (more_time, more_memory) = (read_at(1, 2, false), read_at(2, 2, false));
        assert!(first < more_time && more_time < more_memory);
        assert!(more_memory < read_at(2, 2, true));
        let gone = Reading {
            is_complete: true,
            ..Reading::default()
        };
        assert!(thread.answer(Request::All(gone)).details.is_empty());
        assert!(thread.known.is_empty());
    }

    /// In the order of the request, and those that were read with the last one.
    #[test]
    fn many_processes_are_read_in_parts() {
        const ASLEEP: usize = 40;
        let own = subject(std::process::id());
        // Only the pid is real.
        let with_start = |start_boottime, has_run| Subject {
            has_run,
            id: ProcessId {
                start_boottime,
                ..own.id
            },
            ..own
        };
        let subjects = |asleep: u64| {
            let awake = (0..AT_ONCE_MAX as u64 + 10).map(|start| with_start(start, true));
            let asleep = (0..asleep).map(|start| with_start(1_000_000 + start, false));
            Reading {
                subjects: awake.chain(asleep).collect(),
                is_complete: true,
                is_last: false,
            }
        };
        let mut thread = thread();
        let first = thread.answer(Request::All(subjects(ASLEEP as u64)));
        let rest = |awake, asleep| Rest { awake, asleep };
        assert_eq!((first.read, first.rest), (AT_ONCE_MAX, rest(10, ASLEEP)));
        assert!(!first.is_complete);
        assert!(
            first
                .details
                .keys()
                .all(|id| id.start_boottime < AT_ONCE_MAX as u64)
        );
        let second = thread.answer(Request::Rest(20));
        assert_eq!((second.read, second.rest), (20, rest(0, ASLEEP - 10)));
        assert_eq!((second.details.len(), second.is_complete), (20, false));
        // The next reading finds as many.
        let again = thread.answer(Request::All(subjects(2 * AT_ONCE_MAX as u64)));
        let asleep = 2 * AT_ONCE_MAX - 10;
        assert_eq!((again.read, again.rest), (0, rest(0, asleep)));
        let last = thread.answer(Request::Rest(asleep));
        assert_eq!((last.read, last.rest), (asleep, rest(0, 0)));
        let all = 3 * AT_ONCE_MAX + 10;
        assert_eq!((last.details.len(), last.is_complete), (all, true));
    }

    #[test]
    fn sleeping_processes_take_a_thousandth_of_a_cpu() {
        let each = Duration::from_micros(100);
        let due = |awake, asleep, ms| Rest { awake, asleep }.due(each, Duration::from_millis(ms));
        assert_eq!(due(0, 0, 10_000), None);
        assert_eq!(due(0, 5000, 1599), None);
        assert_eq!(due(0, 5000, 1600), Some(CHUNK));
        assert_eq!(due(0, 5000, 10_000), Some(100));
        assert_eq!(due(0, 3, 299), None);
        assert_eq!(due(0, 3, 10_000), Some(3));
        assert_eq!(due(100, 5000, 100), Some(20));
        assert_eq!(due(100, 5000, 10_000), Some(100));
    }
}
