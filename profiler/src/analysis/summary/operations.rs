//! Disks, durations of operations, system calls and threads of the summary for people.

use super::{Figures, Summary, tables::limited_to, texts::joined};
use crate::analysis::{
    figure::scaled,
    page::{NULL, PageTable},
};

/// Disks, system calls and threads that are shown.
const DISKS_SHOWN: usize = 3;
const CALLS_SHOWN: usize = 8;
const THREADS_SHOWN: usize = 8;

/// Kinds of operations whose durations are shown, with their names.
const LATENCIES_SHOWN: [(&str, &str); 6] = [
    ("block_read", "read request of a disk"),
    ("block_write", "write request of a disk"),
    ("file_read", "read of a file"),
    ("file_write", "write to a file"),
    ("fsync", "fsync"),
    ("runqueue", "wait for a CPU"),
];

impl Summary {
    pub(super) fn disks(&self) -> Option<String> {
        let mut used: Vec<_> = self.disks.iter().collect();
        let time = |figures: &Figures| figures.get("disk_request_s").unwrap_or(0.0);
        used.retain(|(_, figures)| time(figures) > 0.0);
        used.sort_by(|a, b| time(b.1).total_cmp(&time(a.1)));
        joined(used.into_iter().take(DISKS_SHOWN).map(|(device, figures)| {
            let busy = figures.known("disk_busy_percent");
            Some(match busy {
                Some(busy) => format!("{device} busy {busy} of the time"),
                None => device.clone(),
            })
        }))
    }

    pub(super) fn latency_table(&self) -> PageTable {
        let mut table = PageTable::new(&["count", "rate", "p50", "p99", "longest", "operation"]);
        for (kind, name) in LATENCIES_SHOWN {
            let Some(figures) = self.latencies.get(kind) else {
                continue;
            };
            table.rows.push(vec![
                figures.text("latency_count"),
                figures
                    .get("latency_per_s")
                    .map_or(NULL.to_owned(), |rate| format!("{}/s", scaled(rate, ""))),
                figures.text("latency_p50_s"),
                figures.text("latency_p99_s"),
                figures.text("latency_max_s"),
                name.to_owned(),
            ]);
        }
        table
    }

    pub(super) fn syscall_table(&self) -> PageTable {
        let mut table = PageTable::new(&["calls", "errors", "time", "system call"]);
        let mut calls: Vec<_> = self.syscalls.iter().collect();
        let time = |figures: &Figures| figures.get("syscall_s").unwrap_or(0.0);
        calls.sort_by(|a, b| time(b.1).total_cmp(&time(a.1)));
        for (name, figures) in calls {
            table.rows.push(vec![
                figures.text("syscall_count"),
                figures.text("syscall_errors"),
                figures.text("syscall_s"),
                name.clone(),
            ]);
        }
        limited_to(table, CALLS_SHOWN)
    }

    pub(super) fn thread_table(&self) -> PageTable {
        let mut table =
            PageTable::new(&["CPU", "run queue", "blocked", "asleep", "tid", "thread of"]);
        for thread in &self.threads {
            let figures = &thread.figures;
            let mut processes = self.processes.iter();
            let process =
                processes.find(|top| top.host == thread.host && top.process.key.0 == thread.pid);
            let comm = process.map_or(String::new(), |top| format!("{} ", top.process.comm));
            table.rows.push(vec![
                figures.text("thread_cpu_s"),
                figures.text("thread_runqueue_s"),
                figures.text("thread_blocked_s"),
                figures.text("thread_sleep_s"),
                thread.tid.to_string(),
                format!("{comm}{}{}", thread.pid, self.on(&thread.host)),
            ]);
        }
        limited_to(table, THREADS_SHOWN)
    }
}
