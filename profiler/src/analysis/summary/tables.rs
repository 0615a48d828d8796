//! Tables of processes, nodes, jobs, ranks, sessions and regions.

use super::{Figures, Summary, TopProcess, keep_top, mpi, region_energy::ENERGY};
use crate::{
    analysis::{
        figure::Unit,
        page::{NULL, PageTable},
        rows::ProcessKey,
    },
    output::dataset::manifest::State,
    support::units::wall_clock,
};

/// Processes with most CPU time that are shown.
const PROCESSES_SHOWN: usize = 5;
/// Rows of a table that are shown.
const ROWS: usize = 16;
/// Columns about files in each table: figure and heading.
const FILES: [(&str, &str); 4] = [
    ("file_read_bytes", "read"),
    ("file_write_bytes", "written"),
    ("storage_read_bytes", "from storage"),
    ("storage_write_bytes", "to storage"),
];

/// The cells of [`FILES`].
fn of_files(figures: &Figures) -> [String; 4] {
    FILES.map(|(name, _)| figures.text(name))
}

impl TopProcess {
    /// Time in the run queue and blocked, as far as it is known.
    pub(super) fn waited_text(&self) -> String {
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
    pub(super) fn process_table(&self) -> PageTable {
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
            row.extend(of_files(figures));
            row.push(figures.text("max_process_rss_bytes"));
            row.extend(has_gpus.then(|| figures.text("gpu_memory_bytes")));
            row.extend([
                process.key.0.to_string(),
                format!("{}{ended}{}", shortened(name), self.on(&top.host)),
            ]);
            table.rows.push(row);
        }
        table
    }

    pub(super) fn node_table(&self) -> PageTable {
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
                node.node.text("node_cpu_utilization_percent"),
                node.target.text("runqueue_s"),
            ];
            row.extend(of_files(&node.target));
            row.extend([
                node.target.at_least("peak_memory_bytes"),
                node.target.text("target_energy_j"),
                format!("{}{tags}", node.host),
            ]);
            table.rows.push(row);
        }
        limited(table)
    }

    pub(super) fn session_table(&self) -> PageTable {
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
            let length = session.seconds();
            let mut row = vec![
                length.map_or_else(|| NULL.to_owned(), |length| Unit::Seconds.format(length)),
                figures.text("cpu_s"),
                figures.text("runqueue_s"),
            ];
            row.extend(of_files(figures));
            row.extend([
                figures.at_least("peak_memory_bytes"),
                exit.unwrap_or_else(|| NULL.to_owned()),
                format!("{}, {}{state}", wall_clock(session.start), session.target),
            ]);
            table.rows.push(row);
        }
        table.more = self.sessions.len() - table.rows.len();
        table
    }

    pub(super) fn region_table(&self) -> PageTable {
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
}

/// A table of groups of processes.
pub(super) fn group_table<'a>(
    name: &str,
    groups: impl Iterator<Item = (String, &'a Figures)>,
) -> PageTable {
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
        row.extend(of_files(figures));
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

/// The first rows of a table.
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
