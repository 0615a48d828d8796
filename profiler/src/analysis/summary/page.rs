//! The summary for people.

use super::{
    Figures, OF_LATENCIES, OF_RANKS, OF_REGIONS, OF_TARGETS, Summary, TopProcess, allocation,
    findings, keep_top, mpi, region_energy::ENERGY,
};
use crate::{
    analysis::{
        catalog::{
            DISKS, LATENCIES, NODE, PROCESSES, REGION_TIMES, REGIONS, SYSCALLS, TARGET, THREADS,
        },
        figure::{Unit, scaled},
        page::{NULL, Page, PageTable},
        rows::ProcessKey,
    },
    output::dataset::manifest::State,
    schema::SCHEMA_VERSION,
    support::units::{counted, wall_clock},
};

/// Names of the facts with the findings, of which a report has a section.
pub const BOUND: &str = "bound by";
pub const ALSO: &str = "also";

/// Nodes of a job start within this time, s.
const STARTS_WITHIN: f64 = 30.0;
/// Processes with most CPU time that are shown.
const PROCESSES_SHOWN: usize = 5;
/// Factor by which the CPU time of the target is at least that of its rows if some is not in them.
const UNKNOWN: f64 = 1.001;
/// Length of a run from which the cost of the profiler is shown as a share of it, s.
const SHARE_FROM: f64 = 1.0;
/// Rows of a table that are shown.
const ROWS: usize = 16;
/// Columns about files in each table: figure and heading.
const FILES: [(&str, &str); 4] = [
    ("file_read_bytes", "read"),
    ("file_write_bytes", "written"),
    ("storage_read_bytes", "from storage"),
    ("storage_write_bytes", "dirtied"),
];

impl Figures {
    /// A figure as text; [`NULL`] if the data do not have it.
    pub(super) fn text(&self, name: &str) -> String {
        self.known(name).unwrap_or_else(|| NULL.to_owned())
    }

    /// The cells of [`FILES`].
    fn of_files(&self) -> [String; 4] {
        FILES.map(|(name, _)| self.text(name))
    }

    pub(super) fn known(&self, name: &str) -> Option<String> {
        let value = self.get(name)?;
        let least = self.coverage(name).map_or("", |_| "≥ ");
        Some(format!("{least}{}", unit_of(name).format(value)))
    }

    /// A figure as text, with the number of rows that a partial sum has.
    fn text_with_rows(&self, name: &str) -> String {
        let rows = self.coverage(name);
        let rows = rows.map_or(String::new(), |rows| {
            format!(" ({} of {})", rows.known, rows.of)
        });
        format!("{}{rows}", self.text(name))
    }

    /// A figure that is a lower bound, as text.
    fn at_least(&self, name: &str) -> String {
        self.get(name).map_or_else(
            || NULL.to_owned(),
            |value| format!("≥ {}", unit_of(name).format(value)),
        )
    }

    /// A figure as text, unless it is 0 or not in the data.
    fn positive(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| *value > 0.0)?;
        self.known(name)
    }
}

fn unit_of(name: &str) -> Unit {
    let all = [
        PROCESSES,
        TARGET,
        NODE,
        REGIONS,
        REGION_TIMES,
        DISKS,
        LATENCIES,
        SYSCALLS,
        THREADS,
    ];
    let all = all.concat();
    let all = all.iter().map(|figure| (figure.name, figure.unit));
    let derived = OF_TARGETS
        .into_iter()
        .chain(OF_REGIONS)
        .chain(OF_LATENCIES)
        .chain(OF_RANKS);
    let mut all = all.chain(derived.map(|figure| (figure.name, figure.unit)));
    all.find(|known| known.0 == name)
        .map_or(Unit::Count, |(_, unit)| unit)
}

/// Parts that are known, separated by commas.
pub(super) fn joined(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `1.2 GiB read, 3.0 MiB written`.
fn transferred(figures: &Figures, [read, written]: [&str; 2], verbs: [&str; 2]) -> Option<String> {
    joined([
        figures
            .positive(read)
            .map(|bytes| format!("{bytes} {}", verbs[0])),
        figures
            .positive(written)
            .map(|bytes| format!("{bytes} {}", verbs[1])),
    ])
}

impl TopProcess {
    /// Time in the run queue and blocked, as far as it is known.
    fn waited_text(&self) -> String {
        let known = ["runqueue_s", "blocked_s"].map(|name| self.figures.get(name).is_some());
        let time = Unit::Seconds.format(self.waited());
        match known {
            [true, true] => time,
            [false, false] => NULL.to_owned(),
            _ => format!("≥ {time}"),
        }
    }
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
                .known("peak_process_bytes")
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

    fn process_table(&self) -> PageTable {
        let mut shown = self.processes.clone();
        keep_top(&mut shown, PROCESSES_SHOWN);
        let has_gpus = self.target.get("gpu_memory_bytes").is_some();
        let mut headings = vec!["CPU", "waited"];
        headings.extend(FILES.map(|(_, heading)| heading));
        headings.push("memory");
        headings.extend(has_gpus.then_some("GPU memory"));
        headings.extend(["pid", "process"]);
        let mut table = PageTable::new(&headings);
        for top in &shown {
            let figures = &top.figures;
            let process = &top.process;
            let name = if process.cmdline.is_empty() {
                &process.comm
            } else {
                &process.cmdline
            };
            let ended = match (process.exit_code, process.exit_signal) {
                (Some(code), _) if code != 0 => format!(" (exit code {code})"),
                (_, Some(signal)) => format!(" (signal {signal})"),
                _ => String::new(),
            };
            table.subjects.push(process_subject(&top.host, process.key));
            let mut row = vec![figures.text("cpu_s"), top.waited_text()];
            row.extend(figures.of_files());
            row.push(figures.text("peak_process_bytes"));
            row.extend(has_gpus.then(|| figures.text("gpu_memory_bytes")));
            row.extend([
                process.key.0.to_string(),
                format!("{}{ended}{}", shortened(name), self.on(&top.host)),
            ]);
            table.rows.push(row);
        }
        table
    }

    fn node_table(&self) -> PageTable {
        let mut headings = vec!["CPU", "of node", "run queue"];
        headings.extend(FILES.map(|(_, heading)| heading));
        headings.extend(["memory", "energy", "node"]);
        let mut table = PageTable::new(&headings);
        for node in &self.nodes {
            let tags = if node.tags.is_empty() {
                String::new()
            } else {
                format!(" [{}]", node.tags.join(", "))
            };
            table.subjects.push(node_subject(&node.host));
            let mut row = vec![
                node.target.text("cpu_s"),
                node.node.text("cpu_avg_utilization_pct"),
                node.target.text("runqueue_s"),
            ];
            row.extend(node.target.of_files());
            row.extend([
                node.target.at_least("peak_memory_bytes"),
                node.target.text("target_energy_j"),
                format!("{}{tags}", node.host),
            ]);
            table.rows.push(row);
        }
        limited(table)
    }

    /// `4.20 s, 5 samples, complete, exit code 0`.
    fn when(&self) -> Option<String> {
        let identity = &self.identity;
        joined([
            self.length(),
            identity.samples.map(|samples| counted(samples, "sample")),
            identity.state.map(|state| state.name().to_owned()),
            identity.exit_code.map(|code| format!("exit code {code}")),
        ])
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let found = findings(self);
        let names = std::iter::once(BOUND).chain(std::iter::repeat(ALSO));
        let verdict = names
            .zip(&found)
            .map(|(name, finding)| (name, Some(format!("{}: {}", finding.name, finding.text))));
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
        let facts = verdict.chain(facts);
        facts
            .filter_map(|(name, fact)| Some((name, fact?)))
            .collect()
    }

    /// Who used, waited and wrote most.
    fn leaders(&self) -> Vec<(&'static str, String)> {
        let names = self
            .top_names
            .iter()
            .map(|(name, seconds)| format!("{} {name}", Unit::Seconds.format(*seconds)));
        let leader = |of: &dyn Fn(&TopProcess) -> f64| {
            let most = self.processes.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
            let most = most.filter(|process| of(process) > 0.0)?;
            let process = &most.process;
            let on = self.on(&most.host);
            Some((
                of(most),
                format!("{} (process {}{on})", process.comm, process.key.0),
            ))
        };
        let waited = leader(&TopProcess::waited).map(|(seconds, by)| {
            let waited = Unit::Seconds.format(seconds);
            format!("{waited} for CPUs and I/O by {by}")
        });
        let written = leader(&TopProcess::written)
            .map(|(bytes, by)| format!("{} by {by}", Unit::Bytes.format(bytes)));
        let leaders = [
            ("top CPU", joined(names.map(Some))),
            ("waited", waited),
            ("written", written),
        ];
        let known = leaders.into_iter();
        known
            .filter_map(|(name, fact)| Some((name, fact?)))
            .collect()
    }

    fn session_table(&self) -> PageTable {
        let mut headings = vec!["time", "CPU", "run queue"];
        headings.extend(FILES.map(|(_, heading)| heading));
        headings.extend(["memory", "exit", "session"]);
        let mut table = PageTable::new(&headings);
        for session in self.sessions.iter().rev().take(ROWS).rev() {
            let figures = &session.figures;
            let state = match session.state {
                State::Complete => String::new(),
                state => format!(" ({})", state.name()),
            };
            let exit = session.exit_code.map(|code| code.to_string());
            let mut row = vec![
                Unit::Seconds.format(session.seconds()),
                figures.text("cpu_s"),
                figures.text("runqueue_s"),
            ];
            row.extend(figures.of_files());
            row.extend([
                figures.text("peak_rss_bytes"),
                exit.unwrap_or_else(|| NULL.to_owned()),
                format!("{}, {}{state}", wall_clock(session.start), session.target),
            ]);
            table.rows.push(row);
        }
        table.more = self.sessions.len() - table.rows.len();
        table
    }

    /// `4.2 s`; `4.2 s in 2 sessions within 10.1 s`.
    fn length(&self) -> Option<String> {
        let length = Unit::Seconds.format(self.seconds()?);
        let start = self.sessions.first().map(|session| session.start);
        let end = self.sessions.iter().map(|session| session.end).max();
        let Some((start, end)) = start.zip(end).filter(|_| self.sessions.len() > 1) else {
            return Some(length);
        };
        let within = Unit::Seconds.format(end.saturating_sub(start) as f64 / 1e9);
        let sessions = counted(self.sessions.len() as u64, "session");
        Some(format!("{length} in {sessions} within {within}"))
    }

    fn region_table(&self) -> PageTable {
        let mut regions: Vec<_> = self.regions.iter().collect();
        let energy = |figures: &Figures| figures.get(ENERGY.name);
        let has_energy = regions.iter().any(|(_, figures)| energy(figures).is_some());
        let mut headings = vec!["regions", "time", "longest", "CPU", "run queue", "blocked"];
        headings.extend(has_energy.then_some("energy"));
        headings.push("region");
        let mut table = PageTable::new(&headings);
        let time = |figures: &Figures| figures.get("region_s").unwrap_or(0.0);
        regions.sort_by(|a, b| time(b.1).total_cmp(&time(a.1)));
        for (name, figures) in regions {
            table.subjects.push(region_subject(name));
            let mut row = vec![
                figures.text("count"),
                figures.text("region_s"),
                figures.text("region_max_s"),
                figures.text_with_rows("region_cpu_s"),
                figures.text_with_rows("region_runqueue_s"),
                figures.text_with_rows("region_blocked_s"),
            ];
            row.extend(has_energy.then(|| figures.text_with_rows(ENERGY.name)));
            row.push(name.clone());
            table.rows.push(row);
        }
        limited(table)
    }

    /// What a reader has to know before the figures are believed: what is missing, and why.
    pub fn doubts(&self) -> Vec<String> {
        let identity = &self.identity;
        let mut notes = Vec::new();
        if identity.schema_version != SCHEMA_VERSION && identity.schema_version != 0 {
            notes.push(format!(
                "The run has version {} of the schema, this program version {SCHEMA_VERSION}: figures \
                 of columns that it does not have are missing.",
                identity.schema_version
            ));
        }
        let apart = identity.starts_within as f64 / 1e9;
        if apart > STARTS_WITHIN {
            notes.push(format!(
                "The nodes started within {}, each by its own clock: if they started together, their \
                 clocks differ.",
                Unit::Seconds.format(apart)
            ));
        }
        if self.process_count == 0 {
            let mut of_processes = ["user_s", "runqueue_s", "file_read_bytes"].iter();
            let has_rows = of_processes.any(|name| self.target.get(name).is_some());
            notes.push(if has_rows {
                "The processes have neither names nor ends: the run has no table process."
                    .to_owned()
            } else {
                "No process was recorded.".to_owned()
            });
        }
        let several = self.nodes.len() > 1;
        let host = |host: &str| {
            if several {
                format!("{host}: ")
            } else {
                String::new()
            }
        };
        for (of, start, interruption) in &identity.interruptions {
            let what = if self.sessions.len() > 1 {
                format!("session of {}", wall_clock(*start))
            } else {
                "run".to_owned()
            };
            notes.push(match host(of).as_str() {
                "" => format!("The {what} {interruption}."),
                host => format!("{host}the {what} {interruption}."),
            });
        }
        let losses = identity.losses.iter();
        notes.extend(losses.map(|(of, loss)| format!("{}{loss}", host(of))));
        notes.extend(self.problems.iter().cloned());
        notes
    }

    /// Sums of the target that are too small because some rows have no value.
    pub fn partial_sums(&self) -> impl Iterator<Item = String> {
        let names = self.target.partial.keys();
        names.map(|name| format!("{name} is too small: some rows have no value."))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.doubts();
        if notes.is_empty() {
            notes.push("No losses.".to_owned());
        }
        notes
    }
}

/// A table of groups of processes.
fn group_table<'a>(name: &str, groups: impl Iterator<Item = (String, &'a Figures)>) -> PageTable {
    // Only ranks can have times in MPI.
    let mut headings = vec!["in MPI", "outside MPI", "CPU", "run queue", "blocked"];
    headings.extend(FILES.map(|(_, heading)| heading));
    headings.extend(["memory", name]);
    let mut table = PageTable::new(&headings);
    for (group, figures) in groups {
        table.subjects.push(format!("{name} {group}"));
        let mut row = vec![
            figures.text(mpi::INSIDE.name),
            figures.text(mpi::OUTSIDE.name),
            figures.text("cpu_s"),
            figures.text("runqueue_s"),
            figures.text("blocked_s"),
        ];
        row.extend(figures.of_files());
        row.extend([figures.at_least("peak_memory_bytes"), group]);
        table.rows.push(row);
    }
    limited(table)
}

/// Name of a process in scripts.
pub fn process_subject(host: &str, (pid, start): ProcessKey) -> String {
    format!("process {host} {pid} {start}")
}

/// Name of a node in scripts.
pub fn node_subject(host: &str) -> String {
    format!("node {host}")
}

/// Name of a region in scripts.
pub fn region_subject(name: &str) -> String {
    format!("region {name}")
}

/// Name of a rank in scripts.
pub fn rank_subject(rank: &str) -> String {
    format!("rank {rank}")
}

fn limited(table: PageTable) -> PageTable {
    limited_to(table, ROWS)
}

pub(super) fn limited_to(mut table: PageTable, rows: usize) -> PageTable {
    table.more = table.rows.len().saturating_sub(rows);
    table.rows.truncate(rows);
    table
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// A few lines about a run that has just ended.
pub fn closing(summary: &Summary) -> Page {
    let mut facts = summary.facts();
    facts.extend(summary.leaders());
    Page {
        title: summary.when().unwrap_or_default(),
        facts,
        ..Page::default()
    }
}

/// One screen about a run.
pub fn page(summary: &Summary) -> Page {
    let identity = &summary.identity;
    let labels = identity
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let job = identity.job_id.as_ref().map(|job| {
        let scheduler = identity.scheduler.as_deref().unwrap_or("batch");
        format!("{scheduler} job {job}")
    });
    let origin = [
        job,
        identity.user.clone(),
        Some(counted(summary.nodes.len() as u64, "node")),
    ];
    let origin: Vec<_> = origin.into_iter().flatten().chain(labels).collect();
    let when = joined([identity.start.map(wall_clock), summary.when()]);
    let mut tables = vec![
        summary.process_table(),
        summary.thread_table(),
        summary.latency_table(),
        summary.syscall_table(),
    ];
    if summary.nodes.len() > 1 || summary.nodes.iter().any(|node| !node.tags.is_empty()) {
        tables.push(summary.node_table());
    }
    if summary.jobs.len() > 1 {
        let jobs = summary.jobs.iter();
        tables.push(group_table(
            "job",
            jobs.map(|(job, figures)| (job.clone(), figures)),
        ));
    }
    if summary.ranks.len() > 1 {
        let ranks = summary.ranks.iter();
        tables.push(group_table(
            "rank",
            ranks.map(|(rank, figures)| (rank.to_string(), figures)),
        ));
    }
    if summary.sessions.len() > 1 {
        tables.push(summary.session_table());
    }
    tables.push(summary.region_table());
    tables.retain(|table| !table.rows.is_empty());
    tables.iter_mut().for_each(PageTable::remove_unknown);
    Page {
        title: format!("{}: {}", identity.run_id, origin.join(" · ")),
        subtitle: when.into_iter().chain([identity.target.clone()]).collect(),
        facts: summary.facts(),
        tables,
        notes: summary.notes(),
    }
}
