//! How well a machine keeps time: a CPU that a hypervisor takes away makes everybody late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Time between beats.
const BEAT: Duration = Duration::from_millis(1);
/// Before the profiler of [`crate::runs::Profiler::undelayed`], so that it cannot cause what is measured.
const PRIORITY: i32 = 2;

/// A thread on each CPU that does nothing but note when it is late.
pub struct Metronome {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
}

/// Times in which a CPU did not run who comes before everybody else.
#[derive(Debug)]
pub struct Stalls(Vec<Duration>);

impl Metronome {
    /// Starts on all CPUs that this process may use.
    pub fn start() -> Self {
        let allowed = sched_getaffinity(None).expect("our CPUs");
        let ended = Arc::new(AtomicBool::new(false));
        let beat = |cpu| {
            let ended = ended.clone();
            std::thread::spawn(move || beat(cpu, &ended))
        };
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let threads = cpus.map(beat).collect();
        Self { ended, threads }
    }

    /// Ends, and tells what it has noticed.
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
    /// All of them together.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// The most deadlines, so long apart, that can have passed meanwhile.
    pub fn deadlines(&self, interval: Duration) -> u64 {
        let count = |stall: &Duration| deadlines(*stall, interval) + 1;
        self.0.iter().map(count).sum()
    }
}

/// How many deadlines, so long apart, pass at least in this time.
pub fn deadlines(time: Duration, interval: Duration) -> u64 {
    u64::try_from(time.as_nanos() / interval.as_nanos()).expect("few")
}

fn beat(cpu: usize, ended: &AtomicBool) -> Vec<Duration> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).expect("a CPU of ours");
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the parameters outlive the call, which concerns this thread only.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    let mut stalls = Vec::new();
    let mut before = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(BEAT);
        let now = Instant::now();
        let late = (now - before).saturating_sub(BEAT);
        if late > BEAT {
            stalls.push(late);
        }
        before = now;
    }
    stalls
}
