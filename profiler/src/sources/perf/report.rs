//! Counts and metrics of a whole run for the summary, in the format of perf-stat(1).

use std::fmt::Write as _;

use crate::{
    perf::{Count, GroupPlan, Plan, constants::Constants, evaluate},
    support::units::format_bytes,
};

/// Sums over the run.
pub(super) struct Report {
    counts: Vec<Option<Count>>,
}

impl Report {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            counts: vec![None; plan.events.len()],
        }
    }

    pub(super) fn add(&mut self, counts: &[Option<Count>]) {
        super::add(&mut self.counts, counts);
    }

    /// A block per group, with events on the left and metrics on the right; `None` if nothing was
    /// counted.
    pub(super) fn text(&self, plan: &Plan, constants: &Constants, ns: u64) -> Option<String> {
        let metrics = evaluate(plan, constants, &self.counts, ns as f64 / 1e9);
        let mut text = String::new();
        for group in &plan.groups {
            let is_counted = |index: &&usize| self.counts.get(**index).is_some_and(Option::is_some);
            let events: Vec<String> = group
                .events
                .values()
                .filter(is_counted)
                .map(|index| self.event(plan, *index))
                .collect();
            let metrics: Vec<String> = metrics
                .iter()
                .filter(|found| std::ptr::eq(found.group, group))
                .map(|found| {
                    let value = found.value.map_or_else(
                        || "-".to_owned(),
                        |value| format_value(value, found.metric.unit.as_str()),
                    );
                    format!("{:<22} {value}", found.metric.name.as_str())
                })
                .collect();
            if !events.is_empty() {
                text.push_str(&block(group, &events, &metrics));
            }
        }
        let custom = plan.events.iter().enumerate().filter(|(index, event)| {
            event.group.is_none() && self.counts.get(*index).is_some_and(Option::is_some)
        });
        for (index, _) in custom {
            let _ = writeln!(text, "  {}", self.event(plan, index));
        }
        (!text.is_empty()).then(|| format!("counters\n{text}"))
    }

    fn event(&self, plan: &Plan, index: usize) -> String {
        let count = self
            .counts
            .get(index)
            .copied()
            .flatten()
            .unwrap_or_default();
        let event = &plan.events[index];
        let value = match event.value(&count) {
            Some(value) => grouped(value),
            None => "not counted".to_owned(),
        };
        let share = count
            .quality()
            .filter(|share| *share < 0.995)
            .map(|share| format!(" ({:.0} %)", share * 100.0))
            .unwrap_or_default();
        format!("{value:>20}  {}{share}", event.event.as_str())
    }
}

fn block(group: &GroupPlan, events: &[String], metrics: &[String]) -> String {
    let width = events
        .iter()
        .map(|event| event.chars().count())
        .max()
        .unwrap_or(0)
        .max(48);
    let mut text = String::new();
    for line in 0..events.len().max(metrics.len()) {
        let name = if line == 0 { group.name.as_str() } else { "" };
        let event = events.get(line).map_or("", String::as_str);
        let metric = metrics.get(line).map_or("", String::as_str);
        let line = format!("  {name:<9}{event:<width$}  {metric}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `12,345,678`, with decimals for small values.
fn grouped(value: f64) -> String {
    if value.fract() != 0.0 && value < 1e6 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A value with a prefix of its unit.
fn format_value(value: f64, unit: &str) -> String {
    match unit {
        "1" => format!("{value:.3}"),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates; bandwidths are not negative"
        )]
        "B/s" => format!("{}/s", format_bytes(value as u64)),
        "FLOP/s" | "1/s" => {
            let (scaled, prefix) = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
                .into_iter()
                .find(|(factor, _)| value.abs() >= *factor)
                .map_or((value, ""), |(factor, prefix)| (value / factor, prefix));
            format!("{scaled:.3} {prefix}{}", unit.trim_start_matches('1'))
        }
        unit => format!("{value:.3} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_separators_and_prefixes() {
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(123.0), "123");
        assert_eq!(grouped(12.345), "12.35");
        assert_eq!(grouped(0.0), "0");
        assert_eq!(format_value(2.5e9, "1/s"), "2.500 G/s");
        assert_eq!(format_value(2.5e9, "FLOP/s"), "2.500 GFLOP/s");
        assert_eq!(
            format_value(1.5, "instructions/cycle"),
            "1.500 instructions/cycle"
        );
        assert_eq!(format_value(1024.0, "B/s"), "1.0 KiB/s");
    }
}
