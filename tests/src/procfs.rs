//! The kernel's accounting of a process, read from `/proc`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::cpus::{cpus, move_to};

/// `CLOCK_REALTIME` in ns.
pub fn wall_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.expect("after 1970").as_nanos()).expect("before 2262")
}

/// The scheduler's counters of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Time on CPU; for a running thread, up to its last timer interrupt or switch.
    pub oncpu_ns: u64,
    /// Time in the run queue, without the present wait.
    pub runqueue_ns: u64,
    /// Number of times it was put on a CPU.
    pub arrivals: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
}

/// Selects a counter.
pub type Field = fn(&Thread) -> u64;

/// One reading of all threads of a process.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Wall clock before the first file was read.
    pub begin: i64,
    /// Wall clock after the last file was read.
    pub end: i64,
    /// By thread id.
    pub threads: BTreeMap<u32, Thread>,
}

impl Reading {
    /// Reads /proc/PID/task/*.
    pub fn now(pid: u32) -> Self {
        let begin = wall_ns();
        let threads = thread_ids(pid)
            .into_iter()
            .filter_map(|tid| Some((tid, thread(pid, tid)?)))
            .collect();
        let end = wall_ns();
        Self {
            begin,
            end,
            threads,
        }
    }

    /// Sum over all threads.
    pub fn sum(&self, field: Field) -> u64 {
        self.threads.values().map(field).sum()
    }
}

/// Ids of the threads of a process.
pub fn thread_ids(pid: u32) -> Vec<u32> {
    fs::read_dir(format!("/proc/{pid}/task"))
        .expect("the process is alive")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Children of a process, started by any of its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let texts =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let texts: String = texts.collect();
    texts
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn thread(pid: u32, tid: u32) -> Option<Thread> {
    let directory = format!("/proc/{pid}/task/{tid}");
    let schedstat = fs::read_to_string(format!("{directory}/schedstat")).ok()?;
    let mut fields = schedstat.split_whitespace().map(str::parse);
    let mut next = || fields.next()?.ok();
    let (oncpu_ns, runqueue_ns, arrivals) = (next()?, next()?, next()?);
    let status = fs::read_to_string(format!("{directory}/status")).ok()?;
    Some(Thread {
        oncpu_ns,
        runqueue_ns,
        arrivals,
        voluntary: field(&status, "voluntary_ctxt_switches")?,
        involuntary: field(&status, "nonvoluntary_ctxt_switches")?,
    })
}

/// The number after `name:` in a file such as `status` or `io`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

/// The number after `name:` in /proc/PID/FILE.
pub fn number(pid: u32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("the process is alive");
    field(&text, name).unwrap_or_else(|| panic!("{file} without {name}"))
}

/// State letter of a thread or process; `None` if it no longer exists.
pub fn state(directory: impl AsRef<Path>) -> Option<char> {
    let stat = fs::read_to_string(directory.as_ref().join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// CPU time of a process and of the descendants it has waited for.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is alive");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let fields = fields.split(' ').skip(11).take(4);
    let ticks: u64 = fields
        .map(|ticks| ticks.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_secs(ticks)
        / u32::try_from(rustix::param::clock_ticks_per_second()).expect("100")
}

/// Resolution of the times in `/proc/stat`.
pub const TICK_NS: u64 = 10_000_000;

/// Time that the hypervisor has taken from all CPUs, in ns, including a CPU that is stopped at the start of
/// this reading: it waits until each of them has accounted its time.
pub fn stolen_ns() -> u64 {
    for cpu in cpus() {
        let account = move || {
            move_to(None, &[cpu]);
            let before = cpu_ticks(&format!("cpu{cpu}"))[..3].to_vec();
            while cpu_ticks(&format!("cpu{cpu}"))[..3] == before {}
        };
        std::thread::spawn(account).join().expect("a thread");
    }
    cpu_ticks("cpu")[7] * TICK_NS
}

/// user, nice, system, idle, iowait, irq, softirq, steal of `/proc/stat`.
fn cpu_ticks(name: &str) -> Vec<u64> {
    let stat = fs::read_to_string("/proc/stat").expect("readable");
    let mut lines = stat.lines().map(str::split_whitespace);
    let mut line = lines
        .find(|line| line.clone().next() == Some(name))
        .expect("a CPU");
    line.next();
    line.map(|ticks| ticks.parse().expect("a number")).collect()
}

/// Whether a process has ended: it is a zombie, or has no entry.
pub fn has_ended(pid: u32) -> bool {
    matches!(state(format!("/proc/{pid}")), None | Some('Z'))
}

/// Whether all threads of the process sleep and have left their CPU: the state changes before the
/// last context switch.
pub fn is_idle(pid: u32) -> bool {
    thread_ids(pid).into_iter().all(|tid| {
        let directory = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        let is_inactive = || {
            let call = fs::read_to_string(directory.join("syscall"));
            call.is_ok_and(|call| call.trim() != "running")
        };
        state(&directory) == Some('S') && is_inactive()
    })
}

/// Reads a process every millisecond.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Reading>>,
}

impl Sampler {
    /// Starts reading.
    pub fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut readings = vec![Reading::now(pid)];
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                readings.push(Reading::now(pid));
            }
            // After everything that the caller has waited for.
            readings.push(Reading::now(pid));
            readings
        });
        Self { stop, thread }
    }

    /// Stops; returns the readings in order.
    pub fn stop(self) -> Vec<Reading> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the process was alive")
    }
}

/// Bounds of the true counters of a process at one moment, from the readings around it.
pub struct Bounds {
    /// The last reading before the moment.
    pub low: BTreeMap<u32, Thread>,
    /// For each thread, the first later reading that includes the interval in progress.
    pub high: BTreeMap<u32, Thread>,
}

impl Bounds {
    /// The bounds at `ts`, whose values may have been read up to `slack` ns later.
    pub fn at(readings: &[Reading], ts: i64, slack: i64) -> Self {
        let next = readings.partition_point(|reading| reading.end <= ts);
        assert!(next > 0, "no reading before");
        let low = readings[next - 1].threads.clone();
        let later = readings.partition_point(|reading| reading.begin < ts + slack);
        let first = readings.get(later).expect("a reading after");
        // The file lacks the present interval until the thread has been put on a CPU again.
        let settled = |tid: &u32| {
            let arrivals = first.threads[tid].arrivals;
            let after = &readings[later..];
            let found = after.iter().map(|reading| reading.threads[tid]);
            let mut found = found.filter(|thread| thread.arrivals > arrivals);
            found
                .next()
                .expect("a reading after the next time on a CPU")
        };
        let high = low.keys().map(|tid| (*tid, settled(tid))).collect();
        Self { low, high }
    }

    /// Lower and upper bound of the sum over all threads.
    pub fn sum(&self, field: Field) -> (u64, u64) {
        let sum = |threads: &BTreeMap<u32, Thread>| threads.values().map(field).sum();
        (sum(&self.low), sum(&self.high))
    }
}
