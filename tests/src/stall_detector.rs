//! Detects stalls of the CPUs, for example time stolen by a hypervisor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::cpus::{cpus, move_to};

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(1);
/// Above that of [`crate::runs::Profiler::realtime`], so that the profiler causes no stall.
const PRIORITY: i32 = 2;

/// One thread per CPU that wakes up periodically and records its delays.
pub struct StallDetector {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
}

/// Delays of the threads with the highest priority on their CPU.
#[derive(Debug)]
pub struct Stalls(Vec<Duration>);

impl StallDetector {
    /// Starts on all CPUs of this process's affinity mask.
    pub fn start() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let start = |cpu| {
            let ended = ended.clone();
            std::thread::spawn(move || delays(cpu, &ended))
        };
        let threads = cpus().into_iter().map(start).collect();
        Self { ended, threads }
    }

    /// Stops and returns the delays.
    pub fn stop(self) -> Stalls {
        self.ended.store(true, Ordering::Relaxed);
        let stalls = self
            .threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a thread"));
        Stalls(stalls.collect())
    }
}

impl Stalls {
    /// Sum of all delays.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// Maximum number of deadlines, `interval` apart, that can have passed during the delays.
    pub fn deadlines(&self, interval: Duration) -> u64 {
        let count = |stall: &Duration| deadlines(*stall, interval) + 1;
        self.0.iter().map(count).sum()
    }
}

/// Minimum number of deadlines, `interval` apart, in `time`.
pub fn deadlines(time: Duration, interval: Duration) -> u64 {
    u64::try_from(time.as_nanos() / interval.as_nanos()).expect("few")
}

/// Gives this thread a real-time priority: no ordinary process delays it.
pub fn be_realtime() {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the parameters outlive the call, which changes only this thread.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn delays(cpu: usize, ended: &AtomicBool) -> Vec<Duration> {
    move_to(None, &[cpu]);
    be_realtime();
    let mut stalls = Vec::new();
    let mut before = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(PERIOD);
        let now = Instant::now();
        let late = (now - before).saturating_sub(PERIOD);
        if late > PERIOD {
            stalls.push(late);
        }
        before = now;
    }
    stalls
}
