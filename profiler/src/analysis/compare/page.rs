//! The comparison for people.

use super::{Compared, Comparison, Verdict, statistics::Estimate};
use crate::analysis::page::{NULL, Page, PageTable};

/// Rows of a table of others than primary figures.
const ROWS: usize = 20;
/// Doubts about the runs of a side that are shown.
const DOUBTS: usize = 8;

impl Compared {
    /// The change: `+5.0 %`.
    fn change(&self) -> String {
        let ratio = self.ratio.map(|ratio| percent(ratio.value));
        ratio.unwrap_or_else(|| NULL.to_owned())
    }

    fn interval(&self) -> Option<String> {
        let (low, high) = self.ratio?.interval?;
        Some(format!("{} to {}", percent(low), percent(high)))
    }

    /// The change: `+5.0 % (+4.0 % to +6.0 %)`.
    pub fn change_with_interval(&self) -> String {
        let change = self.change();
        match self.interval() {
            Some(interval) => format!("{change} ({interval})").replace(" % to", " to"),
            None => change,
        }
    }

    fn row(&self) -> Vec<String> {
        let mark = match self.verdict() {
            Verdict::Same => "~",
            Verdict::More => "▲",
            Verdict::Less => "▼",
            Verdict::Unknown => "?",
        };
        let p = |p: f64| match self.runs {
            [1, 1] => NULL.to_owned(),
            _ => format!("{p:.3}"),
        };
        let needed = self.needed();
        vec![
            self.value(self.a),
            self.value(self.b),
            self.change(),
            self.interval().unwrap_or_else(|| NULL.to_owned()),
            p(self.p),
            p(self.corrected_p),
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

fn table(name: &str, compared: &[&Compared], rows: usize) -> PageTable {
    let columns = [
        "A",
        "B",
        "change",
        "interval (95 %)",
        "p",
        "corrected",
        "runs needed",
        "",
        name,
    ];
    let mut table = PageTable::new(&columns);
    table.rows = compared.iter().map(|compared| compared.row()).collect();
    table.more = table.rows.len().saturating_sub(rows);
    table.rows.truncate(rows);
    table
}

/// The significant differences first, of these the largest.
fn sorted(compared: &[Compared], size: fn(&Compared) -> f64) -> Vec<&Compared> {
    let is_used = |of: &&Compared| of.a.value != 0.0 || of.b.value != 0.0;
    let others = compared.iter().filter(|of| !of.is_primary);
    let mut sorted: Vec<_> = others.filter(is_used).collect();
    sorted.sort_by(|a, b| {
        let is_same = |of: &Compared| matches!(of.verdict(), Verdict::Same | Verdict::Unknown);
        is_same(a)
            .cmp(&is_same(b))
            .then(size(b).total_cmp(&size(a)))
    });
    sorted
}

fn relative(of: &Compared) -> f64 {
    of.ratio.map_or(0.0, |ratio| ratio.value.ln().abs())
}

fn absolute(of: &Compared) -> f64 {
    (of.b.value - of.a.value).abs()
}

/// The tables of a comparison, some of them without rows.
pub struct Tables {
    pub machines: PageTable,
    pub primary: PageTable,
    pub figures: PageTable,
    pub processes: PageTable,
    pub regions: PageTable,
}

/// All tables, with at most `rows` rows.
pub fn tables(comparison: &Comparison, rows: usize) -> Tables {
    let mut machines = PageTable::new(&["A", "B", "different machines or settings"]);
    for difference in &comparison.machines {
        machines.rows.push(vec![
            difference.a.join(" | "),
            difference.b.join(" | "),
            difference.what.to_owned(),
        ]);
    }
    let primary: Vec<_> = comparison.primary().collect();
    let others = sorted(&comparison.figures, relative);
    let processes = sorted(&comparison.processes, absolute);
    let regions = sorted(&comparison.regions, absolute);
    Tables {
        machines,
        primary: table("figure", &primary, rows),
        figures: table("other figures", &others, rows),
        processes: table("CPU time of processes", &processes, rows),
        regions: table("time of regions", &regions, rows),
    }
}

impl Comparison {
    /// The figures that are tested by themselves.
    pub fn primary(&self) -> impl Iterator<Item = &Compared> {
        self.figures.iter().filter(|figure| figure.is_primary)
    }

    /// How the values are to be read.
    pub fn subtitle(&self) -> String {
        let [a, b] = self.runs.map(|runs| match runs {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        });
        format!(
            "A: {a}, B: {b}; medians; ▲ more, ▼ less, ~ no difference found or below 2 %, ? too few runs to tell"
        )
    }

    /// What a reader has to know about the statistics and what is not compared.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.runs == [1, 1] {
            notes.push(
                "One run each: significance cannot be tested. Record at least \
                 5 runs of each."
                    .to_owned(),
            );
        } else if let Some(least) = self.too_few() {
            notes.push(format!(
                "Too few runs to find any difference with a confidence of 95 %: {least} on each side are \
                 needed."
            ));
        }
        for ((side, runs), doubts) in ["A", "B"].iter().zip(self.runs).zip(&self.doubts) {
            for (text, count) in doubts.iter().take(DOUBTS) {
                let of = match (runs, *count) {
                    (1, _) => String::new(),
                    (runs, count) if count >= runs => format!(", all {runs} runs"),
                    (runs, count) => format!(", {count} of {runs} runs"),
                };
                notes.push(format!("{side}{of}: {text}"));
            }
            let more = doubts.len().saturating_sub(DOUBTS);
            if more > 0 {
                notes.push(format!(
                    "{side}: {more} more; `profiler summary` shows them."
                ));
            }
        }
        for (side, left_out) in ["A", "B"].iter().zip(self.left_out) {
            if left_out > 0 {
                notes.push(format!(
                    "The {left_out} commands with least CPU time of a run of {side} are not compared."
                ));
            }
        }
        notes
    }
}

/// One page about a comparison.
pub fn page(comparison: &Comparison) -> Page {
    let mut notes = comparison.notes();
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
                "Processes and regions only in {side}: {}{more}",
                shown.join(", ")
            ));
        }
    }
    let tables = tables(comparison, ROWS);
    let mut tables = vec![
        tables.machines,
        tables.primary,
        tables.figures,
        tables.processes,
        tables.regions,
    ];
    tables.retain(|table| !table.rows.is_empty());
    Page {
        title: format!("A {} – B {}", comparison.labels[0], comparison.labels[1]),
        subtitle: vec![comparison.subtitle()],
        facts: Vec::new(),
        tables,
        notes,
    }
}
