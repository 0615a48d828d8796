//! Metrics from counts.

use std::collections::HashMap;

use super::{Count, GroupPlan, Plan, constants::Constants, plan::Metric};

/// Counts in the order of a plan's slots; `None` where nothing counts.
pub type Counts = [Option<Count>];

/// A metric of one group.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// Whose.
    pub group: &'a GroupPlan,
    /// Which.
    pub metric: &'a Metric,
    /// Its value; null when an event has none, or it would divide by 0.
    pub value: Option<f64>,
    /// Share of the time that its events were counted: that of the worst; null when nobody ran.
    pub quality: Option<f64>,
}

/// A number with the share of the time that it was counted.
type Known = (Option<f64>, Option<f64>);

/// All metrics of the groups that these counts are of, in order.
pub fn evaluate<'a>(
    plan: &'a Plan,
    constants: &Constants,
    counts: &Counts,
    seconds: f64,
) -> Vec<Value<'a>> {
    let mut values = Vec::new();
    for group in &plan.groups {
        let count = |slot: usize| counts.get(slot).copied().flatten();
        if !group.slots.values().any(|slot| count(*slot).is_some()) {
            continue;
        }
        let mut known: HashMap<&str, Known> = HashMap::new();
        for (alias, slot) in &group.slots {
            if let Some(count) = count(*slot) {
                let value = plan.slots[*slot].value(&count);
                known.insert(alias, (value, count.quality()));
            }
        }
        for metric in &group.metrics {
            let value = metric.formula.evaluate(|name| match known.get(name) {
                Some((value, _)) => *value,
                None if group.slots.contains_key(name) => None,
                None => constants.get(name, seconds),
            });
            let names = metric.formula.names();
            let quality = names
                .iter()
                .filter_map(|name| known.get(name)?.1)
                .reduce(f64::min);
            known.insert(metric.name.as_str(), (value, quality));
            values.push(Value {
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
    use crate::{perf::EventIndex, schema::Label};

    #[test]
    fn metrics_follow_from_counts_and_from_one_another() {
        let slot = |event: &'static str| EventIndex {
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
            slots: vec![slot("A"), slot("B"), slot("C")],
            groups: vec![GroupPlan {
                name: Label::Static("G"),
                pmu: Label::Static("cpu"),
                slots: [
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
                node_batches: false,
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
        let nobody = evaluate(&plan, &Constants::default(), &[None, None, None], 2.0);
        assert!(nobody.is_empty());
    }
}
