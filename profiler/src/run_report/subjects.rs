//! What a reader can select in a report: processes, ranks, nodes, devices and regions, with
//! their figures over time or their times.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    over_time::{OfHost, OverTime, RANKS},
    plots::{DEVICES, DeviceKind},
};
use crate::{
    analysis::{
        series::{Named, Series, summed},
        summary::{node_subject, rank_subject, region_subject},
    },
    charts::lines::rounded,
    support::log,
};

/// Nodes whose figures can be selected: all figures of more would be too many.
const NODES: usize = 16;

/// Name of a device in scripts.
pub fn device_subject(kind: &DeviceKind, host: &str, device: &str) -> String {
    format!("{} {host} {device}", kind.noun)
}

/// Number of a rank without the zeros that sort it.
pub fn rank_number(name: &str) -> &str {
    let number = name.trim_start_matches('0');
    if number.is_empty() { "0" } else { number }
}

/// Values of all subjects together: more would be most of a report.
const VALUES: usize = 60_000;
/// Values of a figure, however many there are.
const LEAST: usize = 20;

/// Values over time.
type Values = Vec<Option<f64>>;

/// Label and figures of each subject, by the names of scripts.
#[derive(Default)]
struct Subjects(BTreeMap<String, (String, BTreeMap<String, Values>)>);

impl Subjects {
    fn add(&mut self, subject: String, label: &str, figure: &str, values: Values) {
        if values.iter().all(|value| value.unwrap_or(0.0) == 0.0) {
            return;
        }
        let entry = self.0.entry(subject);
        let (_, figures) = entry.or_insert_with(|| (label.to_owned(), BTreeMap::new()));
        figures.insert(figure.to_owned(), values);
    }

    /// Neighbouring values that are combined, so that all are not too many.
    fn combined(&self) -> usize {
        let figures = self.0.values().flat_map(|(_, figures)| figures.values());
        let longest = figures.clone().map(Vec::len).max().unwrap_or(0);
        let each = (VALUES / figures.count().max(1)).max(LEAST);
        longest.div_ceil(each).max(1)
    }
}

/// Means of `count` neighbours each.
fn thinned(values: &[Option<f64>], count: usize) -> Vec<Option<f64>> {
    let chunks = values.chunks(count).map(|chunk| {
        let known: Vec<f64> = chunk.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        (!known.is_empty()).then(|| rounded(mean))
    });
    chunks.collect()
}

/// The document for scripts: of each subject its label, the figures over time by name, and for
/// regions the times as parts of the run.
pub fn json(over_time: &OverTime) -> String {
    let mut subjects = Subjects::default();
    for host in &over_time.hosts {
        add_processes(host, &mut subjects);
        for kind in DEVICES {
            for figure in kind.figures {
                for (device, series) in host.devices.get(figure.name).into_iter().flatten() {
                    let label = format!("{} {device} of {}", kind.noun, host.name);
                    let subject = device_subject(kind, &host.name, device);
                    subjects.add(subject, &label, figure.name, series.means());
                }
            }
        }
    }
    for (rank, figures) in ranks(over_time) {
        for (figure, values) in figures {
            let rank = rank_number(rank);
            let label = format!("rank {rank}");
            subjects.add(rank_subject(rank), &label, figure, values);
        }
    }
    if (2..=NODES).contains(&over_time.hosts.len()) {
        for host in &over_time.hosts {
            let label = format!("node {}", host.name);
            for (figure, named) in &host.figures {
                if let Some(series) = named.get("") {
                    subjects.add(node_subject(&host.name), &label, figure, series.means());
                }
            }
        }
    }
    let count = subjects.combined();
    let mut document = Map::new();
    for (subject, (label, figures)) in subjects.0 {
        let figures = figures.into_iter();
        let figures: Map<_, _> = figures
            .map(|(figure, values)| (figure, json!(thinned(&values, count))))
            .collect();
        let label = log::escaped(&label);
        // As in the attributes of the page.
        let subject = log::escaped(&subject);
        document.insert(subject, json!({ "label": label, "figures": figures }));
    }
    for (name, times) in regions(over_time) {
        document.insert(
            log::escaped(&region_subject(name)),
            json!({ "label": log::escaped(&format!("region {name}")), "times": times }),
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
            subjects.add(subject.clone(), &label, figure, series.means());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_are_combined() {
        let mut subjects = Subjects::default();
        for number in 0..1000 {
            subjects.add(number.to_string(), "", "cpu_s", vec![Some(1.0); 360]);
        }
        assert_eq!(subjects.combined(), 6);
        assert_eq!(Subjects::default().combined(), 1);
        let values = [Some(1.0), None, Some(3.0), None, None, Some(7.0)];
        assert_eq!(thinned(&values, 2), [Some(1.0), Some(3.0), Some(7.0)]);
        assert_eq!(thinned(&values, 3), [Some(2.0), Some(7.0)]);
    }
}
