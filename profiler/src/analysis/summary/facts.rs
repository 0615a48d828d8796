//! Facts about a run, each in a line.

use super::{Figures, Summary, TopProcess, allocation, findings, texts::joined};
use crate::{
    analysis::figure::{Unit, scaled},
    support::units::counted,
};

/// Names of the facts with the findings, of which a report has a section.
pub const BOUND: &str = "bound by";
pub const ALSO: &str = "also";

/// Factor by which the CPU time of the target is at least that of its rows if some is not in them.
const UNKNOWN: f64 = 1.001;
/// Length of a run from which the cost of the profiler is shown as a share of it, s.
const SHARE_FROM: f64 = 1.0;

/// `1.2 GiB read, 3.0 MiB written`.
pub(super) fn transferred(
    figures: &Figures,
    [read, written]: [&str; 2],
    verbs: [&str; 2],
) -> Option<String> {
    joined([
        figures
            .positive(read)
            .map(|bytes| format!("{bytes} {}", verbs[0])),
        figures
            .positive(written)
            .map(|bytes| format!("{bytes} {}", verbs[1])),
    ])
}

impl Summary {
    fn time(&self) -> Option<String> {
        let target = &self.target;
        let cpu = target.get("cpu_s")?;
        let seconds = self.seconds();
        let cores = seconds.filter(|seconds| *seconds > 0.0).map(|seconds| {
            let of = target
                .known(allocation::CPUS.name)
                .map_or(String::new(), |cpus| format!(" of {cpus} allowed CPUs"));
            format!(" ({:.2}{of})", cpu / seconds)
        });
        let parts = ["user_s", "system_s"].map(|name| target.get(name).unwrap_or(0.0));
        // Of processes without rows, only the sum is known.
        let is_partial = cpu > parts.iter().sum::<f64>() * UNKNOWN;
        let of = if is_partial { "≥ " } else { "" };
        joined([
            Some(format!(
                "CPU {}{}",
                target.text("cpu_s"),
                cores.unwrap_or_default()
            )),
            target
                .known("user_s")
                .map(|time| format!("user {of}{time}")),
            target
                .known("system_s")
                .map(|time| format!("system {of}{time}")),
            target
                .known("runqueue_s")
                .map(|time| format!("run queue {time}")),
            target
                .known("blocked_s")
                .map(|time| format!("blocked {time}")),
        ])
    }

    fn memory(&self) -> Option<String> {
        let target = &self.target;
        joined([
            target
                .known("peak_memory_bytes")
                .map(|bytes| format!("peak ≥ {bytes}")),
            target
                .known("peak_rss_bytes")
                .filter(|_| target.get("peak_rss_bytes") != target.get("peak_memory_bytes"))
                .map(|bytes| format!("sum of RSS ≥ {bytes}")),
            target
                .known("max_process_rss_bytes")
                .map(|bytes| format!("largest process {bytes}")),
            target
                .known(allocation::MEMORY.name)
                .map(|bytes| format!("limit {bytes}")),
            target
                .positive("peak_swap_bytes")
                .map(|bytes| format!("swap ≥ {bytes}")),
            target.positive("major_faults").map(|faults| {
                format!(
                    "{faults} major fault{}",
                    if faults == "1" { "" } else { "s" }
                )
            }),
        ])
    }

    fn files(&self) -> Option<String> {
        let target = &self.target;
        let files = ["file_read_bytes", "file_write_bytes"];
        let mount = self.top_mount.as_ref().map(|(mount, bytes)| {
            format!("most writes to {mount} ({})", Unit::Bytes.format(*bytes))
        });
        let blocks = ["block_read_bytes", "block_write_bytes"];
        let storage = ["storage_read_bytes", "storage_write_bytes"];
        joined([
            transferred(target, files, ["read", "written"]),
            mount,
            transferred(target, storage, ["from storage", "written or dirtied"]),
            transferred(target, blocks, ["read from devices", "written to devices"]),
            target
                .positive("fsyncs")
                .map(|count| format!("{count} fsyncs")),
        ])
    }

    fn network(&self) -> Option<String> {
        let target = &self.target;
        let fabric = transferred(
            target,
            ["fabric_rx_bytes", "fabric_tx_bytes"],
            ["in", "out"],
        );
        joined([
            transferred(
                target,
                ["net_rx_bytes", "net_tx_bytes"],
                ["received", "sent"],
            ),
            target
                .positive("loopback_tx_bytes")
                .map(|bytes| format!("{bytes} over loopback")),
            target
                .positive("tcp_retransmits")
                .map(|count| format!("{count} retransmits")),
            fabric.map(|fabric| format!("fabric of the node {fabric}")),
        ])
    }

    fn energy(&self) -> Option<String> {
        let target = &self.target;
        joined([
            target.known("target_energy_j").map(|joules| {
                format!("{joules} of the target (model: packages × share of CPU time)")
            }),
            target
                .known("package_energy_j")
                .map(|joules| format!("packages {joules}")),
            target
                .known("dram_energy_j")
                .map(|joules| format!("memory {joules}")),
            target
                .known("gpu_energy_j")
                .map(|joules| format!("GPUs {joules}")),
        ])
    }

    fn compute(&self) -> Option<String> {
        let target = &self.target;
        let seconds = self.seconds();
        let rate = |name: &str, precision: &str| {
            let flop = target.get(name).filter(|flop| *flop > 0.0)?;
            Some(format!("{}{precision}", scaled(flop / seconds?, "FLOP/s")))
        };
        let ipc = target.get("instructions").zip(target.get("cycles"));
        let ipc = ipc.filter(|(_, cycles)| *cycles > 0.0);
        joined([
            rate("flop", ""),
            rate("flop_dp", " double"),
            rate("flop_sp", " single"),
            rate("flop_hp", " half"),
            ipc.map(|(instructions, cycles)| format!("IPC {:.2}", instructions / cycles)),
        ])
    }

    fn counts(&self) -> Option<String> {
        let target = &self.target;
        joined([
            target.known("processes"),
            target
                .positive("failed_processes")
                .map(|count| format!("{count} failed")),
            target
                .positive("killed_processes")
                .map(|count| format!("{count} killed by signals")),
        ])
    }

    fn profiler(&self) -> Option<String> {
        let target = &self.target;
        let start = target.get("profiler_start_cpu_s");
        let cpu = target
            .get("profiler_cpu_s")
            .map(|cpu| cpu - start.unwrap_or(0.0));
        let cost = cpu.map(|cpu| {
            // In a short run, the last sample alone would be most of the share.
            let seconds = self.seconds().filter(|seconds| *seconds >= SHARE_FROM);
            let share = seconds.map(|seconds| {
                let each = 100.0 * cpu / seconds / self.nodes.len().max(1) as f64;
                let on = if self.nodes.len() > 1 {
                    " on each node"
                } else {
                    ""
                };
                format!(" ({each:.2} % of a core{on})")
            });
            let started = match start {
                Some(start) => format!("start {}, then", Unit::Seconds.format(start)),
                None => "after the start".to_owned(),
            };
            format!(
                "{started} {} CPU{}",
                Unit::Seconds.format(cpu),
                share.unwrap_or_default()
            )
        });
        joined([cost, target.known("profiler_rss_bytes")])
    }

    /// The node, if there are several.
    pub(super) fn on(&self, host: &str) -> String {
        if self.nodes.len() > 1 {
            format!(" on {host}")
        } else {
            String::new()
        }
    }

    /// `4.2 s`; `4.2 s in 2 sessions within 10.1 s`.
    fn length(&self) -> Option<String> {
        let length = Unit::Seconds.format(self.seconds()?);
        let start = self.sessions.first().map(|session| session.start);
        let end = self.sessions.iter().map(|session| session.end).max();
        let several = self.sessions.len() > 1;
        let Some((start, end)) = start
            .zip(end)
            .filter(|(start, end)| several && start <= end)
        else {
            return Some(length);
        };
        let within = Unit::Seconds.format(end.saturating_sub(start) as f64 / 1e9);
        let sessions = counted(self.sessions.len() as u64, "session");
        Some(format!("{length} in {sessions} within {within}"))
    }

    /// `4.20 s, 5 samples, complete, exit code 0`.
    pub(super) fn when(&self) -> Option<String> {
        let identity = &self.identity;
        joined([
            self.length(),
            identity.samples.map(|samples| counted(samples, "sample")),
            identity.state.map(|state| state.name().to_owned()),
            identity.exit_code.map(|code| format!("exit code {code}")),
        ])
    }

    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let found = findings(self);
        let names = std::iter::once(BOUND).chain(std::iter::repeat(ALSO));
        let verdict = names
            .zip(&found)
            .map(|(name, finding)| (name, Some(format!("{}: {}", finding.name, finding.text))));
        let of_nodes = self.is_of_nodes().then(|| self.node_facts());
        let facts = [
            ("time", self.time()),
            ("compute", self.compute()),
            ("memory", self.memory()),
            ("files", self.files()),
            ("disks", self.disks()),
            ("network", self.network()),
            ("energy", self.energy()),
            ("processes", self.counts()),
            ("profiler", self.profiler()),
        ];
        let facts = of_nodes.into_iter().flatten().chain(facts);
        let facts = verdict.chain(facts);
        facts
            .filter_map(|(name, fact)| Some((name, fact?)))
            .collect()
    }

    /// Commands with the most CPU time, and the processes that waited and wrote most.
    pub(super) fn leaders(&self) -> Vec<(&'static str, String)> {
        let names = self
            .top_names
            .iter()
            .map(|(name, seconds)| format!("{} {name}", Unit::Seconds.format(*seconds)));
        let leader = |of: &dyn Fn(&TopProcess) -> f64| {
            let most = self.processes.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
            most.filter(|process| of(process) > 0.0)
        };
        let name = |of: &TopProcess| {
            let on = self.on(&of.host);
            format!("{} ({}{on})", of.process.comm, of.process.key.0)
        };
        let waits = leader(&TopProcess::waited).map(|process| {
            let waited = process.waited_text();
            format!("{waited} {}, run queue + blocked", name(process))
        });
        let write = leader(&TopProcess::written).map(|process| {
            let written = Unit::Bytes.format(process.written());
            format!("{written} {}", name(process))
        });
        let leaders = [
            ("top CPU", joined(names.map(Some))),
            ("top wait", waits),
            ("top write", write),
        ];
        let known = leaders.into_iter();
        known
            .filter_map(|(name, fact)| Some((name, fact?)))
            .collect()
    }
}
