//! Events that a sandbox hides.
//!
//! Some sandboxed kernels hide pid 1 from BPF programs: they run no program while one of its threads
//! is on the CPU. The events of other tasks in interrupts during that time, such as wakeups by
//! timers, are missing as well.

use std::{fs, path::PathBuf, time::Duration};

use crate::runs::Profiler;

/// Time for which pid 1 has run.
#[derive(Clone, Copy)]
pub struct HiddenTime {
    ns: u64,
    slices: u64,
}

impl HiddenTime {
    /// The time until now.
    pub fn now() -> Self {
        let tasks = fs::read_dir("/proc/1/task").expect("threads of pid 1");
        let files = tasks.map(|task| task.expect("a thread").path().join("schedstat"));
        // A thread can end in between.
        let texts = files.filter_map(|file: PathBuf| fs::read_to_string(file).ok());
        let mut sum = Self { ns: 0, slices: 0 };
        for text in texts {
            let numbers: Vec<u64> = text
                .split_whitespace()
                .map(|word| word.parse().expect("a number"))
                .collect();
            sum.ns += numbers[0];
            sum.slices += numbers[2];
        }
        sum
    }

    /// Maximum number of events since this time that are hidden, if two events are at least
    /// `distance` apart. 0 if the kernel does not hide pid 1.
    pub fn events_since(self, distance: Duration) -> u64 {
        let now = Self::now();
        let probe = Profiler::new().args(["-d", "10ms"]).pid(1).finish();
        if !probe.stderr.contains("hidden from BPF programs") {
            return 0;
        }
        let distance = u64::try_from(distance.as_nanos()).expect("short");
        // One event at the begin of each slice, and the following ones.
        now.slices.saturating_sub(self.slices) + now.ns.saturating_sub(self.ns) / distance
    }
}
