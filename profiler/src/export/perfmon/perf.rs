//! `perf_metrics`: hardware and software events of the target.

use std::collections::BTreeSet;

use super::{
    Export,
    keys::{GROUPS, Kind, NAMES, WITHOUT_GROUP, find},
    samples::Block,
};
use crate::{
    analysis::{
        perfmon::{OF_COUNTERS, OF_PROCESSES},
        scan::SEPARATOR,
        stored_run::StoredHost,
    },
    export::series::{Column, groups},
};

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
    let count = find(OF_COUNTERS, "count");
    let metric = find(OF_COUNTERS, "metric");
    let presence = Column::of(find(OF_PROCESSES, "samples"));
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
            if scope == "node" && metrics.contains(&of_target(group)) {
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
        if !headers.contains(name) && host.tables.contains(find(OF_PROCESSES, of).table) {
            let path = format!("software_events.{name}");
            let column = Column::of(find(OF_PROCESSES, of));
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

/// The same metric of the target; the scope is the last of the keys.
fn of_target(group: &str) -> String {
    let metric = group
        .rsplit_once(SEPARATOR)
        .map_or(group, |(metric, _)| metric);
    format!("{metric}{SEPARATOR}target")
}

/// Name of the group of events.
fn first(group: &str) -> &str {
    group.split(SEPARATOR).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scope_becomes_the_target() {
        let [of_node, expected] =
            ["node", "target"].map(|scope| ["MEM", "node_bw", "B/s", scope].join(SEPARATOR));
        assert_eq!(of_target(&of_node), expected);
    }
}
