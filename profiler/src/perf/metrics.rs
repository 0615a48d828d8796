//! Metrics computed from counts.

use std::collections::HashMap;

use super::{
    constants::Constants,
    count::Count,
    plan::{GroupPlan, Metric, Plan},
};

/// Counts by event index; `None` for events that are not open.
pub type Counts = [Option<Count>];

/// A metric of a group.
#[derive(Clone, Copy, Debug)]
pub struct MetricValue<'a> {
    pub group: &'a GroupPlan,
    pub metric: &'a Metric,
    /// Value; `None` if an event has none, or if the formula divides by 0.
    pub value: Option<f64>,
    /// Least ratio of running to enabled time among its events; `None` if no thread was running.
    pub quality: Option<f64>,
}

/// Value and quality of a name in formulas.
#[derive(Clone, Copy)]
struct Estimate {
    value: Option<f64>,
    quality: Option<f64>,
}

/// All metrics of the groups with counts, in order.
pub fn evaluate<'a>(
    plan: &'a Plan,
    constants: &Constants,
    counts: &Counts,
    seconds: f64,
) -> Vec<MetricValue<'a>> {
    let mut values = Vec::new();
    for group in &plan.groups {
        let count = |index: usize| counts.get(index).copied().flatten();
        if !group.events.values().any(|index| count(*index).is_some()) {
            continue;
        }
        let mut estimates: HashMap<&str, Estimate> = HashMap::new();
        for (alias, index) in &group.events {
            if let Some(count) = count(*index) {
                let estimate = Estimate {
                    value: plan.events[*index].value(&count),
                    quality: count.quality(),
                };
                estimates.insert(alias, estimate);
            }
        }
        for metric in &group.metrics {
            let value = metric.formula.evaluate(|name| match estimates.get(name) {
                Some(estimate) => estimate.value,
                None if group.events.contains_key(name) => None,
                None => constants.get(name, seconds),
            });
            let names = metric.formula.names();
            let quality = names
                .iter()
                .filter_map(|name| estimates.get(name)?.quality)
                .reduce(f64::min);
            estimates.insert(metric.name.as_str(), Estimate { value, quality });
            values.push(MetricValue {
                group,
                metric,
                value,
                quality,
            });
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{perf::PlannedEvent, schema::Label};

    #[test]
    fn metrics_use_counts_and_preceding_metrics() {
        let event = |event: &'static str| PlannedEvent {
            group: Some(Label::Static("G")),
            event: Label::Static(event),
            pmu: Label::Static("cpu"),
            scale: Some(1.0),
        };
        let metric = |name: &'static str, formula: &str| Metric {
            name: Label::Static(name),
            unit: Label::Static("1"),
            formula: formula.parse().expect("valid"),
        };
        let plan = Plan {
            events: vec![event("A"), event("B"), event("C")],
            groups: vec![GroupPlan {
                name: Label::Static("G"),
                pmu: Label::Static("cpu"),
                events: [
                    ("a".to_owned(), 0),
                    ("b".to_owned(), 1),
                    ("c".to_owned(), 2),
                ]
                .into(),
                metrics: vec![
                    metric("rate", "a / time"),
                    metric("share", "a / b"),
                    metric("twice", "2 * share"),
                    metric("none", "a / c"),
                    metric("line", "line_size + a"),
                ],
                is_node_wide: false,
            }],
            ..Plan::default()
        };
        let mut a = Count::default();
        a.add(100, 10, 5);
        let mut b = Count::default();
        b.add(50, 10, 10);
        let values = evaluate(&plan, &Constants::default(), &[Some(a), Some(b), None], 2.0);
        let found: Vec<_> = values
            .iter()
            .map(|value| (value.metric.name.as_str(), value.value, value.quality))
            .collect();
        assert_eq!(
            found,
            [
                ("rate", Some(100.0), Some(0.5)),
                ("share", Some(4.0), Some(0.5)),
                ("twice", Some(8.0), Some(0.5)),
                ("none", None, Some(0.5)),
                ("line", None, Some(0.5)),
            ]
        );
        let without_counts = evaluate(&plan, &Constants::default(), &[None, None, None], 2.0);
        assert!(without_counts.is_empty());
    }
}
