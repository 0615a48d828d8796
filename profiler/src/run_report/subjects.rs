//! What a reader can select in a report: processes, ranks, nodes, GPUs and regions, with their
//! figures over time or their times.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::over_time::{OfHost, OverTime, RANKS};
use crate::{
    analysis::{
        series::{Named, Series, summed},
        summary::{node_subject, rank_subject, region_subject},
    },
    charts::lines::rounded,
};

/// Nodes whose figures can be selected: all figures of more would be too many.
const NODES: usize = 16;

/// Name of a GPU in scripts.
pub fn gpu_subject(host: &str, bdf: &str) -> String {
    format!("gpu {host} {bdf}")
}

/// Number of a rank without the zeros that sort it.
pub fn rank_number(name: &str) -> &str {
    let number = name.trim_start_matches('0');
    if number.is_empty() { "0" } else { number }
}

/// All figures of each subject, by the names of scripts.
#[derive(Default)]
struct Subjects(BTreeMap<String, (String, Map<String, Value>)>);

impl Subjects {
    fn add(&mut self, subject: String, label: &str, figure: &str, values: &[Option<f64>]) {
        if values.iter().all(|value| value.unwrap_or(0.0) == 0.0) {
            return;
        }
        let values = values.iter().map(|value| value.map(rounded));
        let entry = self.0.entry(subject);
        let (_, figures) = entry.or_insert_with(|| (label.to_owned(), Map::new()));
        figures.insert(figure.to_owned(), values.collect());
    }
}

/// The document for scripts: of each subject its label, the figures over time by name, and for
/// regions the times as parts of the run.
pub fn json(over_time: &OverTime) -> String {
    let mut subjects = Subjects::default();
    for host in &over_time.hosts {
        add_processes(host, &mut subjects);
        for (figure, gpus) in &host.gpus {
            for (bdf, series) in gpus {
                let label = format!("GPU {bdf} of {}", host.name);
                subjects.add(
                    gpu_subject(&host.name, bdf),
                    &label,
                    figure,
                    &series.means(),
                );
            }
        }
    }
    for (rank, figures) in ranks(over_time) {
        for (figure, values) in figures {
            let rank = rank_number(rank);
            let label = format!("rank {rank}");
            subjects.add(rank_subject(rank), &label, figure, &values);
        }
    }
    if (2..=NODES).contains(&over_time.hosts.len()) {
        for host in &over_time.hosts {
            let label = format!("node {}", host.name);
            for (figure, named) in &host.figures {
                if let Some(series) = named.get("") {
                    subjects.add(node_subject(&host.name), &label, figure, &series.means());
                }
            }
        }
    }
    let mut document = Map::new();
    for (subject, (label, figures)) in subjects.0 {
        document.insert(subject, json!({ "label": label, "figures": figures }));
    }
    for (name, times) in regions(over_time) {
        document.insert(
            region_subject(name),
            json!({ "label": format!("region {name}"), "times": times }),
        );
    }
    Value::Object(document).to_string()
}

fn add_processes(host: &OfHost, subjects: &mut Subjects) {
    let lives = host.processes.iter();
    let labels: BTreeMap<_, _> = lives
        .map(|life| (life.subject.as_str(), (life.key.0, &life.name)))
        .collect();
    for (figure, named) in &host.top {
        for (subject, series) in named {
            let Some((pid, name)) = labels.get(subject.as_str()) else {
                continue;
            };
            let label = format!("process {pid}, {name}");
            subjects.add(subject.clone(), &label, figure, &series.means());
        }
    }
}

/// Figures of each rank, the sums over its nodes.
pub fn ranks(over_time: &OverTime) -> BTreeMap<&str, BTreeMap<&'static str, Vec<Option<f64>>>> {
    let mut found: BTreeMap<&str, BTreeMap<&'static str, Vec<&Series>>> = BTreeMap::new();
    let of_hosts = over_time.hosts.iter().flat_map(|host| &host.ranks);
    for (figure, named) in of_hosts {
        let named: &Named = named;
        for (rank, series) in named {
            let figures = found.entry(rank).or_default();
            figures.entry(figure).or_default().push(series);
        }
    }
    let found = found.into_iter().take(RANKS);
    let summed = found.map(|(rank, figures)| {
        let figures = figures.into_iter();
        let figures = figures.map(|(figure, series)| (figure, summed(&series)));
        (rank, figures.collect())
    });
    summed.collect()
}

/// Begin and end of the regions of each name, as parts of the run.
fn regions(over_time: &OverTime) -> BTreeMap<&str, Vec<[f64; 2]>> {
    /// Times of a region that are marked.
    const TIMES: usize = 200;
    let span = over_time.span;
    let part = |ts| rounded((span.position(ts) / span.intervals as f64).clamp(0.0, 1.0));
    let mut regions: BTreeMap<&str, Vec<[f64; 2]>> = BTreeMap::new();
    for region in over_time.hosts.iter().flat_map(|host| &host.regions) {
        let times = regions.entry(&region.name).or_default();
        if times.len() < TIMES {
            times.push([part(region.start), part(region.end.unwrap_or(span.end))]);
        }
    }
    regions
}
