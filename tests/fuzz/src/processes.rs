//! Processes in a simulated procfs.

use std::fs;

use profiler::{
    bpf::KernelSupport,
    host::Host,
    support::clock::Clock,
    tasks::{
        Reader, TaskTable,
        per_key::PerKeyCounters,
        walk::{Scope, ProcfsReader},
    },
};

use test_support::{Tree, stat};

/// The required lines of /proc/PID/status.
fn status(pid: u32, uid: u32) -> String {
    let masks = [
        "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff",
    ];
    let masks = masks.map(|mask| format!("{mask}:\t0000000000000000\n"));
    format!(
        "Name:\tx\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t1\nTracerPid:\t0\n\
         Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t \nThreads:\t1\n\
         SigQ:\t0/1000\n{}",
        masks.concat()
    )
}

/// Adds a sleeping process that started `start` clock ticks of 10 ms after the boot.
pub fn put(tree: &Tree, pid: u32, uid: u32, start: u64) {
    tree.put(format!("proc/{pid}/stat"), stat(pid, "x", start));
    tree.put(format!("proc/{pid}/status"), status(pid, uid));
    tree.put(format!("proc/{pid}/statm"), "4487 3558 1668 1 0 2345 0\n");
}

/// Removes a process.
pub fn remove(tree: &Tree, pid: u32) {
    let _ = fs::remove_dir_all(tree.path(format!("proc/{pid}")));
}

/// The table of all processes, read with the `/proc` fallback.
pub fn table(host: &Host, clock: Clock) -> TaskTable {
    let support = KernelSupport {
        run_delay: false,
        io: false,
        sched: false,
        wakeups: false,
    };
    let reader = Reader::Procfs(Box::new(ProcfsReader::new(Scope::Node, clock, false)));
    TaskTable::new(
        host,
        clock,
        reader,
        PerKeyCounters::default(),
        support,
        false,
    )
}
