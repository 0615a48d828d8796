//! Files of `/proc/PID`, as read by the `/proc` fallback, separated by NUL bytes.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use profiler::{
    bpf::KernelSupport,
    support::clock::{Clock, Tick, monotonic_ns},
    tasks::{
        Reader, TaskTable,
        per_key::PerKeyCounters,
        walk::{Scope, ProcfsReader},
    },
};
use test_support::Tree;

/// The order of the files in the input.
const FILES: [&str; 6] = ["stat", "status", "io", "statm", "smaps_rollup", "cgroup"];

thread_local! {
    static TREE: RefCell<Tree> = RefCell::new(Tree::of("vm", "fuzz-processes"));
}

fuzz_target!(|data: &[u8]| {
    TREE.with_borrow(|tree| {
        let mut contents = data.splitn(FILES.len(), |byte| *byte == 0);
        for file in FILES {
            let content = contents.next().unwrap_or_default();
            tree.put(format!("proc/4242/{file}"), content);
            tree.put(format!("proc/4242/task/4242/{file}"), content);
        }
        let host = tree.host();
        let clock = Clock::new();
        let support = KernelSupport {
            run_delay: false,
            io: true,
            sched: false,
            wakeups: false,
        };
        let reader = Reader::Procfs(Box::new(ProcfsReader::new(Scope::Node, clock, true)));
        let mut tasks = TaskTable::new(
            &host,
            clock,
            reader,
            PerKeyCounters::default(),
            support,
            true,
        );
        for number in 0..2 {
            let monotonic_ns = monotonic_ns();
            let tick = Tick {
                number,
                monotonic_ns,
                ts: clock.wall(monotonic_ns),
            };
            let _ = tasks.refresh(&tick, number == 1);
            tasks.deliver(None);
        }
    });
});
