//! What a process does after it has slept, so that readings have left it out.

use std::io;

use e2e::{
    cpus::{cpus, on_cpus},
    dataset::Dataset,
    procfs::Reading,
    rows::{Row, sum},
    runs::{ProcessGroup, Profiler, Running},
    workload_driver::WorkloadDriver,
};

use crate::{
    WORKLOAD,
    sched::{CLOCKS_APART, longest_reading},
};

/// Has other processes on its CPU wait as long as it computes.
fn make_realtime(pid: u32) {
    let priority = libc::sched_param { sched_priority: 1 };
    let pid = pid.try_into().expect("a pid");
    // SAFETY: a system call with a valid structure.
    let result = unsafe { libc::sched_setscheduler(pid, libc::SCHED_FIFO, &raw const priority) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// A process of this target sleeps on the last CPU, and readings leave it out.
struct OnLastCpu {
    run: Running,
    cpu: usize,
    process: WorkloadDriver,
}

impl OnLastCpu {
    fn asleep() -> Self {
        let mut others = cpus();
        let cpu = others.pop().expect("a CPU");
        let process = on_cpus(&[cpu], || WorkloadDriver::new(WORKLOAD, 0));
        let profiler = Profiler::new().args([
            "-i",
            "20ms",
            "--node",
            "--source",
            "process,sched,system,overhead",
        ]);
        // Behind a real-time process, the profiler itself would wait.
        let run = on_cpus(&others, || profiler.start());
        let asleep = Self { run, cpu, process };
        asleep.wait_for_samples();
        asleep
    }

    fn wait_for_samples(&self) {
        Dataset::new(self.run.run_dir()).wait_for_samples("system", 10);
    }

    /// Its rows, and the longest time of a reading, ns.
    fn finish(self) -> (Vec<Row>, u64) {
        let finished = self.run.interrupt();
        let data = finished.dataset();
        let mut rows = data.table("sched");
        let pid = u64::from(self.process.pid());
        rows.retain(|row| row.u64("pid") == Some(pid));
        (rows, longest_reading(&data))
    }
}

#[test]
fn wait_after_sleep_is_in_the_samples_in_which_it_lasts() {
    let mut waiting = OnLastCpu::asleep();
    let pid = waiting.process.pid();
    let waited = || Reading::now(pid).sum(|thread| thread.runqueue_ns);
    let before = waited();
    let busy = on_cpus(&[waiting.cpu], || {
        ProcessGroup::spawn(&["sh", "-c", "while :; do :; done"])
    });
    make_realtime(busy.pid());
    waiting.process.send("getppid 1");
    waiting.wait_for_samples();
    drop(busy);
    waiting.process.wait_idle();
    let waited = waited() - before;
    let (rows, reading) = waiting.finish();
    assert_eq!(sum(&rows, "runqueue_ns"), waited);
    let mut all_of_it = 0;
    for row in &rows {
        let of = |column| row.u64(column).expect("known");
        let (interval, waited) = (of("interval_ns"), of("runqueue_ns"));
        // It can come to the CPU between the time of a sample and its visit.
        let most = interval + reading + CLOCKS_APART;
        assert!(waited <= most, "{waited} of {most} ns: {rows:?}");
        all_of_it += u32::from(waited > interval - interval / 10);
    }
    assert!(all_of_it >= 3, "{waited}: {rows:?}");
}

#[test]
fn computation_after_sleep_is_in_the_samples_in_which_it_lasts() {
    let mut computing = OnLastCpu::asleep();
    // It does not leave the CPU.
    make_realtime(computing.process.pid());
    computing.process.send("spin 1000000000");
    computing.wait_for_samples();
    computing.process.wait_idle();
    let (rows, _) = computing.finish();
    let with_time = rows.iter().filter(|row| row.u64("oncpu_ns") != Some(0));
    assert!(with_time.count() >= 3, "{rows:?}");
}
