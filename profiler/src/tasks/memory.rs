//! Proportional and unique memory, from /proc/PID/smaps_rollup.
//!
//! Reading it takes the process's mmap lock for milliseconds, so it has a schedule and a thread of its own.

use std::{
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread,
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use procfs::process::Process as ProcfsProcess;

use super::{Process, ProcessId};
use crate::host::Host;

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(30);
/// Most processes that are read in one period: the largest of those that have run since they were read.
const PROCESSES_PER_PERIOD: usize = 512;
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
    requests: Sender<Vec<ProcessId>>,
    answers: Receiver<HashMap<ProcessId, Footprint>>,
    asked: Option<Instant>,
    waiting: bool,
    ready: Option<HashMap<ProcessId, Footprint>>,
}

impl Reader {
    /// Starts the thread; it ends with the reader.
    pub fn new(host: &Host) -> Self {
        let (requests, inbox) = channel::<Vec<ProcessId>>();
        let (outbox, answers) = channel();
        let root = host.procfs.clone();
        thread::spawn(move || {
            for ids in inbox {
                let read = ids
                    .into_iter()
                    .filter_map(|id| {
                        let process = ProcfsProcess::new_with_root(root.join(id.pid.to_string()));
                        Some((id, footprint(&process.ok()?)?))
                    })
                    .collect();
                if outbox.send(read).is_err() {
                    break;
                }
            }
        });
        Self {
            requests,
            answers,
            asked: None,
            waiting: false,
            ready: None,
        }
    }

    /// Asks for a new reading when it is time.
    pub fn update(&mut self, processes: &mut HashMap<ProcessId, Process>) {
        if self.waiting || self.asked.is_some_and(|asked| asked.elapsed() < PERIOD) {
            return;
        }
        let mut due: Vec<_> = readable(processes)
            .filter(|process| process.footprint_at != Some(process.totals.oncpu))
            .map(|process| {
                (
                    process.gauges.memory.map_or(0, |memory| memory.rss),
                    process.id,
                )
            })
            .collect();
        due.sort_unstable_by(|a, b| b.cmp(a));
        due.truncate(PROCESSES_PER_PERIOD);
        let ids: Vec<_> = due.into_iter().map(|(_, id)| id).collect();
        for id in &ids {
            if let Some(process) = processes.get_mut(id) {
                process.footprint_at = Some(process.totals.oncpu);
            }
        }
        self.ask(ids);
    }

    /// Makes the reading at the end, unless that would take too long.
    pub fn read_last(&mut self, processes: &HashMap<ProcessId, Process>) {
        if self.waiting || processes.len() > LAST_PROCESSES {
            return;
        }
        self.ask(readable(processes).map(|process| process.id).collect());
        self.ready = self.answers.recv_timeout(LAST_WAIT).ok();
        self.waiting = false;
    }

    fn ask(&mut self, ids: Vec<ProcessId>) {
        self.waiting = self.requests.send(ids).is_ok();
        self.asked = Some(Instant::now());
    }

    /// What was read since the last call.
    pub fn take(&mut self) -> HashMap<ProcessId, Footprint> {
        if let Some(read) = self.ready.take() {
            return read;
        }
        match self.answers.try_recv() {
            Ok(read) => {
                self.waiting = false;
                read
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => HashMap::new(),
        }
    }
}

/// Processes that live and have memory of their own.
fn readable(processes: &HashMap<ProcessId, Process>) -> impl Iterator<Item = &Process> {
    processes
        .values()
        .filter(|process| process.end.is_none() && process.gauges.memory.is_some())
}

/// The figures of one process; `None` when it is gone or not ours to read.
fn footprint(process: &ProcfsProcess) -> Option<Footprint> {
    let rollup = process.smaps_rollup().ok()?;
    let map = &rollup.memory_map_rollup.0.first()?.extension.map;
    let get = |name: &str| map.get(name).copied();
    Some(Footprint {
        pss: get("Pss")?,
        uss: get("Private_Clean")? + get("Private_Dirty")? + get("Private_Hugetlb").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let read = footprint(&ProcfsProcess::myself().expect("myself")).expect("smaps_rollup");
        assert!(read.uss > 0 && read.uss <= read.pss, "{read:?}");
        assert_eq!(read.pss % 1024, 0);
    }
}
