//! Schedule of reading [`Details`], in a separate thread.
//!
//! Reading `/proc/PID/smaps_rollup` holds the mmap lock of the process for milliseconds. All processes are read every 30 s,
//! and earlier if the sum of resident memory has grown, so that the peak of the proportional sum is
//! recorded. The duration of the previous reading limits the rate of these.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::{
    Process, ProcessId,
    details::{self, Details},
};
use crate::{host::Host, privileges, support::worker::Worker};

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(30);
/// Growth of the sum of resident memory that causes a reading, percent of the sum at the previous
/// reading.
const GROWTH_PERCENT: u64 = 125;
/// Pause before a reading because of growth, as a multiple of the duration of the previous reading:
/// at most 2 % of one CPU.
const PAUSE_FACTOR: u32 = 50;
/// Shortest pause before a reading because of growth.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Processes per reading; the largest are selected.
const PROCESSES_MAX: usize = 4096;
/// Time limit of the reading at the end of the run.
const LAST_TIMEOUT: Duration = Duration::from_millis(100);
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
}

struct Request {
    ids: Vec<ProcessId>,
    /// Whether `ids` has all processes.
    is_complete: bool,
}

struct Answer {
    details: HashMap<ProcessId, Details>,
    /// Whether all processes that still live were read.
    is_complete: bool,
    took: Duration,
}

impl DetailsReader {
    /// Starts the thread. If that fails, nothing is read.
    pub(super) fn new(host: &Host) -> Self {
        let procfs = host.procfs.clone();
        let open = move || {
            privileges::keep_for_reading();
            let iowait = details::measures_iowait(&procfs);
            move |request| read(&procfs, request, iowait)
        };
        Self {
            worker: Worker::start("details", open).ok(),
            requested_at: None,
            received: None,
            rss: 0,
            took: Duration::ZERO,
        }
    }

    /// Requests a reading if it is due.
    pub(super) fn update(&mut self, processes: &HashMap<ProcessId, Process>) {
        if self.is_busy() {
            return;
        }
        let mut by_size: Vec<_> = with_memory(processes)
            .map(|process| {
                let rss = process.gauges.memory.map_or(0, |memory| memory.rss);
                (rss, process.id)
            })
            .collect();
        let rss: u64 = by_size.iter().map(|(rss, _)| rss).sum();
        let has_grown = rss > self.rss / 100 * GROWTH_PERCENT;
        let pause = if has_grown {
            PAUSE_MIN.max(self.took * PAUSE_FACTOR)
        } else {
            PERIOD
        };
        if self.requested_at.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        self.rss = rss;
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        let is_complete = by_size.len() <= PROCESSES_MAX;
        by_size.truncate(PROCESSES_MAX);
        let ids = by_size.into_iter().map(|(_, id)| id).collect();
        self.request(Request { ids, is_complete });
    }

    /// Reads all processes at the end of the run, unless they are too many or the thread is busy.
    pub(super) fn read_last(&mut self, processes: &HashMap<ProcessId, Process>) {
        if self.is_busy() || processes.len() > LAST_PROCESSES_MAX {
            return;
        }
        let ids = with_memory(processes).map(|process| process.id).collect();
        self.request(Request {
            ids,
            is_complete: true,
        });
        let worker = self.worker.as_mut();
        self.received = worker.and_then(|worker| worker.take(LAST_TIMEOUT));
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
        let worker = self.worker.as_mut();
        let answer = self.received.take();
        let answer = answer.or_else(|| worker?.take(Duration::ZERO));
        let Some(answer) = answer else {
            return (HashMap::new(), None);
        };
        self.took = answer.took;
        let footprints = answer.details.values().filter_map(|found| found.footprint);
        let sum = footprints.map(|footprint| footprint.pss).sum();
        let is_known = answer.is_complete && !answer.details.is_empty();
        (answer.details, is_known.then_some(sum))
    }
}

fn read(procfs: &Path, request: Request, iowait: bool) -> Answer {
    let begin = Instant::now();
    let mut found = HashMap::new();
    let mut is_complete = request.is_complete;
    for id in request.ids {
        match details::read(&procfs.join(id.pid.to_string()), iowait) {
            Ok(Some(details)) => {
                found.insert(id, details);
            }
            Ok(None) => {}
            Err(_) => is_complete = false,
        }
    }
    Answer {
        details: found,
        is_complete,
        took: begin.elapsed(),
    }
}

/// Live processes with an address space.
fn with_memory(processes: &HashMap<ProcessId, Process>) -> impl Iterator<Item = &Process> {
    processes
        .values()
        .filter(|process| process.end.is_none() && process.gauges.memory.is_some())
}
