//! The text at the end of a session.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write as _},
    sync::Arc,
};

use profiler_ebpf::per_key::{block, net};

use crate::{
    support::{
        clock::process_cpu_ns,
        log::harmless,
        units::{counted, format_bytes, format_ns},
    },
    tasks::{Access, PerKeyCounters, Process, ProcessId, TaskTable},
};

/// Totals of the session; the dataset has the details.
#[derive(Debug, Default)]
pub struct Summary {
    processes: u64,
    user_ns: u64,
    system_ns: u64,
    runqueue_ns: u64,
    blocked_ns: u64,
    read_bytes: u64,
    write_bytes: u64,
    rss: u64,
    peak_rss: u64,
    peak_pss: Option<u64>,
    disks: Transfer,
    network: Transfer,
    local: Transfer,
    by_name: HashMap<Arc<str>, u64>,
    known: HashSet<ProcessId>,
    /// Ended processes that lived for less than [`SHORT`].
    short: u64,
    /// Ended processes with another status than 0.
    failed: u64,
    waiter: Option<Leader>,
    writer: Option<Leader>,
    /// CPU time of the profiler before the first sample, ns.
    own_cpu_before: Option<u64>,
}

/// Processes that live for less than this are short-lived, ns.
const SHORT: u64 = 1_000_000_000;

/// The process with the largest value.
#[derive(Debug)]
struct Leader {
    comm: Arc<str>,
    pid: u32,
    value: u64,
}

impl Leader {
    fn update(leader: &mut Option<Self>, process: &Process, value: u64) {
        if value > leader.as_ref().map_or(0, |leader| leader.value) {
            *leader = Some(Self {
                comm: process.description.comm.clone(),
                pid: process.id.pid,
                value,
            });
        }
    }
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", harmless(&self.comm), self.pid)
    }
}

/// Bytes in and out.
#[derive(Debug, Default)]
struct Transfer {
    read: u64,
    written: u64,
}

impl Transfer {
    /// A line, unless nothing was transferred.
    fn line(&self, name: &str, verbs: [&str; 2], remark: &str) -> Option<String> {
        (self.read + self.written != 0).then(|| {
            format!(
                "  {name:<7} {} {}, {} {}{remark}\n",
                format_bytes(self.read),
                verbs[0],
                format_bytes(self.written),
                verbs[1],
            )
        })
    }
}

impl Summary {
    /// Adds a reading.
    pub fn add(&mut self, tasks: &TaskTable) {
        self.rss = 0;
        for row in tasks.rows.iter().filter(|row| row.tid.is_none()) {
            let (increase, cpu) = (&row.increase, &row.cpu_time);
            self.user_ns += cpu.user;
            self.system_ns += cpu.system;
            self.runqueue_ns += increase.run_delay;
            self.blocked_ns += increase.blocked;
            self.read_bytes += increase.read_bytes;
            self.write_bytes += increase.write_bytes;
            self.local.read += increase.unix_rx_bytes;
            self.local.written += increase.unix_tx_bytes;
            self.rss += row.memory.map_or(0, |memory| memory.rss);
            if increase.oncpu != 0
                && let Some(process) = tasks.get(row.id)
            {
                *self
                    .by_name
                    .entry(process.description.comm.clone())
                    .or_default() += increase.oncpu;
            }
        }
        self.own_cpu_before.get_or_insert_with(process_cpu_ns);
        self.peak_rss = self.peak_rss.max(self.rss);
        self.peak_pss = self.peak_pss.max(tasks.pss);
        self.add_transfers(&tasks.per_key);
        let shown = tasks
            .iter()
            .filter(|process| process.access != Access::None);
        for process in shown {
            if self.known.insert(process.id) {
                self.processes += 1;
            }
            // A short-lived process has no row with a current value.
            self.peak_rss = self.peak_rss.max(process.peak_rss.unwrap_or(0));
            let waited = process.in_run.run_delay + process.in_run.blocked;
            if process.access == Access::Full {
                Leader::update(&mut self.waiter, process, waited);
                Leader::update(&mut self.writer, process, process.in_run.write_bytes);
            }
            if let Some(end) = &process.end {
                self.known.remove(&process.id);
                let started = tasks.clock.monotonic_of_boottime(process.id.start_boottime);
                self.short += u64::from(end.at.saturating_sub(started) < SHORT);
                self.failed += u64::from(end.status.is_some_and(|status| status != 0));
            }
        }
    }

    fn add_transfers(&mut self, per_key: &PerKeyCounters) {
        let block_io = per_key.block_io.iter().flat_map(|table| &table.rows);
        for row in block_io.filter(|row| row.tid.is_none()) {
            match block::op_of(row.dimension) {
                block::op::READ => self.disks.read += row.increase.counts.bytes,
                block::op::WRITE => self.disks.written += row.increase.counts.bytes,
                _ => {}
            }
        }
        let net_io = per_key.net_io.iter().flat_map(|table| &table.rows);
        for row in net_io.filter(|row| row.tid.is_none()) {
            let sum = match net::scope_of(row.dimension) {
                net::scope::LOOPBACK => &mut self.local,
                _ => &mut self.network,
            };
            sum.read += row.increase.rx_bytes;
            sum.written += row.increase.tx_bytes;
        }
    }

    /// Lines about `samples` samples, taken during `ns`.
    pub fn text(&self, ns: u64, samples: u64) -> String {
        let mut text = counted(self.processes, "process");
        let parts = [(self.short, "short-lived"), (self.failed, "failed")];
        let parts = parts.into_iter().filter(|(count, _)| *count != 0);
        let parts: Vec<_> = parts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if !parts.is_empty() {
            let _ = write!(text, " ({})", parts.join(", "));
        }
        let samples = counted(samples, "sample");
        let _ = writeln!(text, ", {}, {samples}", format_ns(ns));
        if self.processes == 0 {
            return text;
        }
        let cores = (self.user_ns + self.system_ns) as f64 / ns.max(1) as f64;
        let _ = writeln!(
            text,
            "  CPU     {} user, {} system ({cores:.2} cores); run queue {}, blocked {}",
            format_ns(self.user_ns),
            format_ns(self.system_ns),
            format_ns(self.runqueue_ns),
            format_ns(self.blocked_ns),
        );
        let mut names: Vec<_> = self.by_name.iter().collect();
        names.sort_by_key(|(name, ns)| (std::cmp::Reverse(**ns), (*name).clone()));
        let names: Vec<_> = names
            .iter()
            .take(5)
            .map(|(name, ns)| format!("{} {}", harmless(name), format_ns(**ns)))
            .collect();
        if !names.is_empty() {
            let _ = writeln!(text, "  top CPU {}", names.join(", "));
        }
        if let Some(leader) = &self.waiter {
            let waited = format_ns(leader.value);
            let _ = writeln!(
                text,
                "  waited  {waited} by {leader} for CPUs and I/O, the longest"
            );
        }
        let pss = self.peak_pss.map_or("not read".to_owned(), format_bytes);
        let _ = writeln!(
            text,
            "  memory  peak PSS {pss}; peak sum of RSS {} (shared pages counted once per process)",
            format_bytes(self.peak_rss),
        );
        let (read, written) = (
            format_bytes(self.read_bytes),
            format_bytes(self.write_bytes),
        );
        let _ = write!(text, "  storage {read} read, {written} dirtied");
        match &self.writer {
            Some(leader) => {
                let _ = writeln!(text, ", most by {leader}");
            }
            None => text.push('\n'),
        }
        let rw = ["read", "written"];
        let sr = ["received", "sent"];
        let lines = [
            self.disks.line("disks", rw, ""),
            self.network.line("network", sr, ""),
            self.local
                .line("local", sr, " over loopback and unix sockets"),
        ];
        text.extend(lines.into_iter().flatten());
        let own = process_cpu_ns() - self.own_cpu_before.unwrap_or(0);
        let share = 100.0 * own as f64 / ns.max(1) as f64;
        let _ = writeln!(
            text,
            "  profiler {} of CPU time ({share:.2} % of a core)",
            format_ns(own)
        );
        text
    }
}
