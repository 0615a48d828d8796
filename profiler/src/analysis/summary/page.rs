//! The summary for people.

use super::{Summary, tables::group_table, texts::joined};
use crate::{
    analysis::{
        figure::Unit,
        page::{Page, PageTable},
    },
    schema::SCHEMA_VERSION,
    support::units::{counted, wall_clock},
};

/// Nodes of a job start within this time, s.
const STARTS_WITHIN: f64 = 30.0;

impl Summary {
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
        if self.is_of_nodes() {
            notes.push("No process was recorded: these are figures of the node.".to_owned());
        } else if self.process_count == 0 {
            notes.push(
                "The processes have neither names nor ends: the run has no table process."
                    .to_owned(),
            );
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
