//! `perf_metrics`: hardware and software events of the target.

use std::collections::BTreeSet;

use super::{
    Export,
    cpu::groups,
    figure,
    samples::{Block, Kind},
};
use crate::{
    analysis::{
        perfmon::{OF_COUNTERS, OF_PROCESSES},
        scan::SEPARATOR,
        stored_run::StoredHost,
    },
    export::series::Column,
};

/// perfmon's names of events: key, name here, name there.
const NAMES: [(&str, &str, &str); 8] = [
    ("hardware_events", "cpu-cycles", "cycles"),
    ("hardware_events", "instructions", "instructions"),
    ("hardware_events", "cache-misses", "cache-misses"),
    ("hardware_events", "cache-references", "cache-references"),
    ("hardware_events", "branch-instructions", "branches"),
    ("hardware_events", "branch-misses", "branch-misses"),
    ("software_events", "context-switches", "context-switches"),
    ("software_events", "cpu-migrations", "cpu-migrations"),
];

/// perfmon's keys of groups, with the groups.
const GROUPS: [(&str, &[&str]); 8] = [
    ("hardware_events", &["HW", "HW_CACHE"]),
    ("software_events", &["SW"]),
    ("L2", &["L2"]),
    ("L2cache", &["L2CACHE"]),
    ("L3", &["L3"]),
    ("L3cache", &["L3CACHE"]),
    ("FLOPS_SP", &["FLOPS_SP", "FLOPS"]),
    ("FLOPS_DP", &["FLOPS_DP", "FLOPS"]),
];

/// Software events that are counted without a group.
const WITHOUT_GROUP: [(&str, &str); 2] = [
    ("context-switches", "switches"),
    ("cpu-migrations", "migrations"),
];

const BY_EVENT: &[&str] = &["group", "event"];
const BY_METRIC: &[&str] = &["group", "metric", "unit", "scope"];

/// A block for each host with events.
pub fn blocks(export: &mut Export<'_>) -> Vec<Block> {
    let run = export.run;
    let mut blocks = Vec::new();
    for (number, host) in run.hosts.iter().enumerate() {
        blocks.extend(block(export, number, host));
    }
    blocks
}

fn block(export: &mut Export<'_>, number: usize, host: &StoredHost) -> Option<Block> {
    let count = figure(OF_COUNTERS, "count");
    let metric = figure(OF_COUNTERS, "metric");
    let presence = Column::of(figure(OF_PROCESSES, "samples"));
    let mut block = Block::new(number, host.name.clone(), presence);
    block.at_start = true;
    let events = groups(export.run, host, &count, BY_EVENT, &mut export.failures);
    let metrics = groups(export.run, host, &metric, BY_METRIC, &mut export.failures);
    let mut headers = BTreeSet::new();
    for (key, of) in GROUPS {
        let is_named = NAMES.iter().any(|(named, ..)| *named == key);
        for group in events.iter().filter(|group| of.contains(&first(group))) {
            let event = group.split(SEPARATOR).nth(1).unwrap_or_default();
            let known = NAMES
                .iter()
                .find(|(named, own, _)| *named == key && *own == event);
            let name = match known {
                Some((.., name)) => name,
                None if is_named => continue,
                None => event,
            };
            let header = headers.insert(name.to_owned()).then(|| name.to_owned());
            let column = Column::of_group(count, BY_EVENT, group);
            block.add_at(
                vec![key.to_owned(), name.to_owned()],
                header,
                Kind::Gauge,
                column,
            );
        }
        if is_named {
            continue;
        }
        for group in metrics.iter().filter(|group| of.contains(&first(group))) {
            let parts: Vec<_> = group.split(SEPARATOR).collect();
            let [_, metric_name, unit, scope] = parts[..] else {
                continue;
            };
            // The node's only if the target has none.
            let of_target = group.replace(scope, "target");
            if scope == "node" && metrics.contains(&of_target) {
                continue;
            }
            let name = format!("derv_{metric_name}");
            let header = headers.insert(name.clone()).then(|| name.clone());
            let column = Column::of_group(metric, BY_METRIC, group);
            let quantity = block.add_at(vec![key.to_owned(), name], header, Kind::Gauge, column);
            if matches!(unit, "FLOP/s" | "B/s") {
                quantity.factor = 1e-6;
            }
        }
    }
    for (name, of) in WITHOUT_GROUP {
        if !headers.contains(name) && host.tables.contains(figure(OF_PROCESSES, of).table) {
            let path = format!("software_events.{name}");
            let column = Column::of(figure(OF_PROCESSES, of));
            block.add(&path, name, Kind::Gauge, column);
        }
    }
    for (key, _) in GROUPS {
        if !block
            .quantities
            .iter()
            .any(|quantity| quantity.path[0] == key)
        {
            block.facts.push((key.to_owned(), serde_json::json!({})));
        }
    }
    (!block.quantities.is_empty()).then_some(block)
}

/// Name of the group of events.
fn first(group: &str) -> &str {
    group.split(SEPARATOR).next().unwrap_or_default()
}
