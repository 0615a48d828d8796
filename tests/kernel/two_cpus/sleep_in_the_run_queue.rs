//! Sleep that the scheduler accounts as a wait.

use std::time::{Duration, Instant};

use e2e::{
    cpus::{cpus, move_to, on_cpus},
    dataset::Dataset,
    procfs::{self, Reading},
    rows::sum,
    runs::{Finished, ProcessGroup, Profiler, Running, pid_of, wait_until},
    workload_driver::WorkloadDriver,
};
use rustix::process::setpriority_process;

use crate::{
    WORKLOAD, kernel_release,
    sched::{CLOCKS_APART, longest_reading, of_kind, rows_of},
};

/// A thread that sleeps in the run queue of one CPU, and is moved to that of another, which the kernel then
/// accounts as a wait: it has a low priority and has run on a busy CPU, so that it remains in the
/// queue until the other thread has had its share.
struct Moved {
    workload: WorkloadDriver,
    cpus: [usize; 2],
    _busy: ProcessGroup,
}

impl Moved {
    fn new() -> Self {
        let allowed = cpus();
        let &[here, there, ..] = &allowed[..] else {
            panic!("only one CPU");
        };
        let cpus = [here, there];
        let (workload, busy) = on_cpus(&cpus[..1], || {
            let busy = ProcessGroup::spawn(&["sh", "-c", "while :; do :; done"]);
            (WorkloadDriver::new(WORKLOAD, 0), busy)
        });
        setpriority_process(Some(pid_of(workload.pid())), 10).expect("a lower priority");
        Self {
            workload,
            cpus,
            _busy: busy,
        }
    }

    fn profiler(&self, method: &str) -> Running {
        Profiler::new()
            .args(["-i", "50ms", "--source"])
            .args([format!("process,{method},overhead")])
            .pid(self.workload.pid())
            .start()
    }

    /// It goes to sleep on one CPU, and is moved to the other.
    fn fall_asleep(&mut self) {
        self.move_to(0);
        self.workload.send("spin 20000000");
        self.workload.wait_done();
        // `/proc/PID/syscall` would take it out of the run queue.
        let directory = format!("/proc/{}", self.workload.pid());
        wait_until("it sleeps", || procfs::state(&directory) == Some('S'));
        self.move_to(1);
    }

    fn move_to(&self, cpu: usize) {
        let thread = pid_of(self.workload.pid());
        move_to(Some(thread), &[self.cpus[cpu]]);
    }

    /// Sleeps for a few more samples, and is woken. Returns the time asleep, and whether the kernel accounts
    /// it as a wait.
    fn sleep(&mut self, run: &Running) -> (Duration, bool) {
        let pid = self.workload.pid();
        let waited = || Reading::now(pid).sum(|thread| thread.runqueue_ns);
        let (begin, before) = (Instant::now(), waited());
        Dataset::new(run.run_dir()).wait_for_samples("sched", 4);
        let slept = begin.elapsed();
        self.workload.run("getppid 1");
        let waited = Duration::from_nanos(waited() - before);
        (slept, waited >= slept)
    }
}

/// Most moves of a thread, of which the kernel should account two sleeps as waits.
const ROUNDS: u32 = 20;

/// Linux in which a sleeping thread can remain in the run queue (`DELAY_DEQUEUE` in
/// kernel/sched/features.h).
const DELAYS_DEQUEUE: [u32; 2] = [6, 12];

#[track_caller]
fn assert_slept(finished: &Finished, workload: &WorkloadDriver, slept: Duration) {
    let rows = rows_of(finished, workload);
    let slept = u64::try_from(slept.as_nanos()).expect("short");
    let states = ["oncpu_ns", "runqueue_ns", "sleep_ns", "blocked_ns"];
    let [oncpu, runqueue, asleep, blocked] = states.map(|column| sum(&rows, column));
    assert!(asleep >= slept, "{asleep} of {slept} ns: {rows:?}");
    // The processes are read after the time of the first sample.
    let reading = longest_reading(&finished.dataset());
    let there = sum(&rows, "interval_ns") + reading + CLOCKS_APART;
    let states = oncpu + runqueue + asleep + blocked;
    assert!(states <= there, "{states} of {there} ns: {rows:?}");
    let latency = finished.dataset().table("latency");
    if of_kind(&latency, "wakeup", "count") == 0 {
        assert_eq!(of_kind(&latency, "runqueue", "sum_ns"), runqueue);
    } else {
        let waits = of_kind(&latency, "wakeup", "sum_ns");
        assert!(waits + asleep <= there, "{waits} ns of waits: {rows:?}");
    }
}

#[test]
fn sleep_in_the_run_queue_is_no_wait() {
    for method in ["sched", "sched=wakeup"] {
        let mut moved = Moved::new();
        let run = moved.profiler(method);
        let (mut slept, mut false_waits) = (Duration::ZERO, 0);
        let expected = if kernel_release() >= DELAYS_DEQUEUE {
            2
        } else {
            0
        };
        for _ in 0..ROUNDS {
            moved.fall_asleep();
            let (time, is_false_wait) = moved.sleep(&run);
            slept += time;
            false_waits += u32::from(is_false_wait);
            if false_waits >= expected {
                break;
            }
        }
        let finished = run.interrupt();
        assert_slept(&finished, &moved.workload, slept);
        assert!(false_waits >= expected, "{false_waits} of {ROUNDS} rounds");
    }
}

#[test]
fn thread_asleep_in_the_run_queue_at_the_start_does_not_wait() {
    for method in ["sched", "sched=wakeup"] {
        let mut moved = Moved::new();
        moved.fall_asleep();
        let run = moved.profiler(method);
        let (slept, _) = moved.sleep(&run);
        let finished = run.interrupt();
        assert_slept(&finished, &moved.workload, slept);
    }
}
