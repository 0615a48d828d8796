//! The comparison for people.

use super::{Compared, Comparison, Verdict, statistics::Estimate};
use crate::analysis::page::{NULL, Page, PageTable};

/// Rows of a table of others than primary figures.
const ROWS: usize = 20;

impl Compared {
    fn row(&self) -> Vec<String> {
        let mark = match self.verdict() {
            Verdict::Same => "~",
            Verdict::More => "▲",
            Verdict::Less => "▼",
        };
        let change = self
            .ratio
            .map_or(NULL.to_owned(), |ratio| percent(ratio.value));
        let interval = self.ratio.and_then(|ratio| ratio.interval);
        let interval = interval.map_or(NULL.to_owned(), |(low, high)| {
            format!("{} to {}", percent(low), percent(high))
        });
        let p = self.p.map_or(NULL.to_owned(), |p| format!("{p:.3}"));
        let needed = self.needed.filter(|_| self.verdict() == Verdict::Same);
        let is_change = self
            .ratio
            .is_some_and(|ratio| (ratio.value - 1.0).abs() >= super::LEAST_EFFECT);
        let needed = needed.filter(|needed| is_change && *needed > self.runs[0].min(self.runs[1]));
        vec![
            self.value(self.a),
            self.value(self.b),
            change,
            interval,
            p,
            needed.map_or(String::new(), |needed| needed.to_string()),
            mark.to_owned(),
            self.name.clone(),
        ]
    }

    fn value(&self, estimate: Estimate) -> String {
        self.unit.format(estimate.value)
    }
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", 100.0 * (ratio - 1.0))
}

fn table(name: &str, compared: &[&Compared]) -> PageTable {
    let columns = [
        "A",
        "B",
        "change",
        "interval (95 %)",
        "p",
        "runs needed",
        "",
        name,
    ];
    let mut table = PageTable::new(&columns);
    table.rows = compared.iter().map(|compared| compared.row()).collect();
    table.more = table.rows.len().saturating_sub(ROWS);
    table.rows.truncate(ROWS);
    table
}

/// The largest changes first.
fn by_change(compared: &[Compared]) -> Vec<&Compared> {
    let change = |of: &Compared| of.ratio.map_or(0.0, |ratio| ratio.value.ln().abs());
    let is_used = |of: &&Compared| of.a.value != 0.0 || of.b.value != 0.0;
    let others = compared.iter().filter(|of| !of.is_primary);
    let mut sorted: Vec<_> = others.filter(is_used).collect();
    let rank = |of: &Compared| (of.verdict() == Verdict::Same, change(of));
    sorted.sort_by(|a, b| {
        let (a, b) = (rank(a), rank(b));
        a.0.cmp(&b.0).then(b.1.total_cmp(&a.1))
    });
    sorted
}

/// One page about a comparison.
pub fn page(comparison: &Comparison) -> Page {
    let [a, b] = comparison.runs;
    let mut notes = Vec::new();
    if (a, b) == (1, 1) {
        notes.push(
            "One run each: intervals are within the runs. Whether the next run differs as much is \
             unknown."
                .to_owned(),
        );
    } else if let Some(least) = comparison.too_few() {
        notes.push(format!(
            "Too few runs to find any difference with a confidence of 95 %: {least} on each side are \
             needed."
        ));
    }
    for (side, names) in ["A", "B"].iter().zip(&comparison.unmatched) {
        if !names.is_empty() {
            let shown: Vec<_> = names.iter().take(8).cloned().collect();
            let more = names.len() - shown.len();
            let more = if more == 0 {
                String::new()
            } else {
                format!(" and {more} more")
            };
            notes.push(format!(
                "Only in {side}, of regions and the processes with most CPU time: {}{more}",
                shown.join(", ")
            ));
        }
    }
    let mut machines = PageTable::new(&["A", "B", "different machines or settings"]);
    for difference in &comparison.machines {
        machines.rows.push(vec![
            difference.a.join(" | "),
            difference.b.join(" | "),
            difference.what.to_owned(),
        ]);
    }
    let primary: Vec<_> = comparison
        .figures
        .iter()
        .filter(|figure| figure.is_primary)
        .collect();
    let mut tables = vec![
        machines,
        table("figure", &primary),
        table("other figures", &by_change(&comparison.figures)),
        table("CPU time of processes", &by_change(&comparison.processes)),
        table("time of regions", &by_change(&comparison.regions)),
    ];
    tables.retain(|table| !table.rows.is_empty());
    Page {
        title: format!("A {} – B {}", comparison.labels[0], comparison.labels[1]),
        subtitle: vec![format!(
            "{a} and {b} runs; medians; ▲ more, ▼ less, ~ not significant or below 2 %"
        )],
        facts: Vec::new(),
        tables,
        notes,
    }
}
