//! The text at the end of a session.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::Arc,
};

use profiler_ebpf::per_key::{block, net};

use crate::{
    support::units::{format_bytes, format_ns},
    tasks::{PerKeyCounters, ProcessId, TaskTable},
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
        self.peak_rss = self.peak_rss.max(self.rss);
        self.peak_pss = self.peak_pss.max(tasks.pss);
        self.add_transfers(&tasks.per_key);
        for process in tasks.iter() {
            if self.known.insert(process.id) {
                self.processes += 1;
            }
            // A short-lived process has no row with a current value.
            self.peak_rss = self.peak_rss.max(process.peak_rss.unwrap_or(0));
            if process.end.is_some() {
                self.known.remove(&process.id);
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
        let mut text = format!(
            "{}, {}, {}\n",
            counted(self.processes, "process", "processes"),
            format_ns(ns),
            counted(samples, "sample", "samples"),
        );
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
            .map(|(name, ns)| format!("{name} {}", format_ns(**ns)))
            .collect();
        if !names.is_empty() {
            let _ = writeln!(text, "  top CPU {}", names.join(", "));
        }
        let pss = self.peak_pss.map_or("not read".to_owned(), format_bytes);
        let _ = writeln!(
            text,
            "  memory  peak PSS {pss}; peak sum of RSS {} (shared pages counted once per process)",
            format_bytes(self.peak_rss),
        );
        let _ = writeln!(
            text,
            "  storage {} read, {} dirtied",
            format_bytes(self.read_bytes),
            format_bytes(self.write_bytes),
        );
        let rw = ["read", "written"];
        let sr = ["received", "sent"];
        let lines = [
            self.disks.line("disks", rw, ""),
            self.network.line("network", sr, ""),
            self.local
                .line("local", sr, " over loopback and unix sockets"),
        ];
        text.extend(lines.into_iter().flatten());
        text
    }
}

fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
