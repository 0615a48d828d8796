//! The comparison of two groups of runs.

use std::{collections::HashMap, fmt::Write as _};

use super::{
    html::{Document, content, figure, paragraph, table},
    over_time::{self, OverTime},
    plots::{self, PlotOf, TOPICS, scale},
    section::Section,
    sections::{combined, series_of},
};
use crate::{
    analysis::{
        compare::{Compared, Comparison, Verdict, tables},
        stored_run::StoredRun,
        summary::Summary,
    },
    charts::{
        Frame, Layout, escaped,
        intervals::{self, Ratio},
        pair::{Column, Pair, Values},
    },
};

/// Rows of a table, and names in a list.
const ROWS: usize = 100;
/// Processes and regions in a drawing.
const DRAWN: usize = 12;

/// The run of a side that is shown over time.
pub struct Shown {
    id: String,
    over_time: OverTime,
}

impl Shown {
    /// Reads its figures over time.
    pub fn read(run: &StoredRun, summary: &Summary) -> Self {
        Self {
            id: run.id(),
            over_time: over_time::read(run, summary, false),
        }
    }

    /// Length, s.
    fn seconds(&self) -> f64 {
        (self.over_time.span.end - self.over_time.span.start) as f64 / 1e6
    }

    /// Starts and lengths of the regions of a node by name and number, s since the start of the run.
    fn regions(&self) -> HashMap<(&str, usize), (f64, f64)> {
        let span = self.over_time.span;
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut hosts = self.over_time.hosts.iter();
        let regions = hosts.find(|host| !host.regions.is_empty());
        let regions = regions.map_or(&[][..], |host| &host.regions);
        let placed = regions.iter().map(|region| {
            let number = numbers.entry(&region.name).or_default();
            *number += 1;
            let start = (region.start - span.start) as f64 / 1e6;
            let end = (region.end.unwrap_or(span.end) - span.start) as f64 / 1e6;
            ((region.name.as_str(), *number), (start, end - start))
        });
        placed.collect()
    }
}

/// Columns with a region at their begin.
const MOST_COLUMNS: usize = 8;
/// Least distance of the begins of columns, as a part of the run.
const LEAST_DISTANCE: f64 = 0.08;

/// Columns that begin at regions of the same name in both runs, the longest ones; without regions the
/// whole runs.
fn columns(shown: &[Shown; 2]) -> Vec<Column> {
    let lengths = [0, 1].map(|run: usize| shown[run].seconds());
    let (of_a, of_b) = (shown[0].regions(), shown[1].regions());
    let common = of_a.iter().filter_map(|(key, (a, in_a))| {
        let (b, in_b) = of_b.get(key)?;
        let is_inside = *a >= 0.0 && *b >= 0.0 && *a < lengths[0] && *b < lengths[1];
        is_inside.then_some((in_a + in_b, *key, [*a, *b]))
    });
    let mut common: Vec<_> = common.collect();
    common.sort_by(|x, y| y.0.total_cmp(&x.0).then(x.1.cmp(&y.1)));
    let mut begins: Vec<(&str, [f64; 2])> = Vec::new();
    for (_, (name, _), at) in common {
        // In the same order in both runs, and with room for its plot.
        let fits = begins.iter().all(|(_, other)| {
            let apart = [0, 1].map(|run: usize| (at[run] - other[run]) / lengths[run]);
            apart.iter().all(|part| *part >= LEAST_DISTANCE)
                || apart.iter().all(|part| *part <= -LEAST_DISTANCE)
        });
        if fits && begins.len() < MOST_COLUMNS {
            begins.push((name, at));
        }
    }
    begins.sort_by(|x, y| x.1[0].total_cmp(&y.1[0]));
    let is_late = |at: &[f64; 2]| (0..2).any(|run| at[run] > 0.01 * lengths[run]);
    if begins.first().is_none_or(|(_, at)| is_late(at)) {
        begins.insert(0, ("start", [0.0; 2]));
    }
    let ends = begins.iter().skip(1).map(|(_, at)| *at);
    let ends: Vec<_> = ends.chain([lengths]).collect();
    let columns = begins.into_iter().zip(ends);
    columns
        .map(|((label, starts), ends)| Column {
            label: label.to_owned(),
            starts,
            ends,
        })
        .collect()
}

fn over_time(shown: &[Shown; 2], columns: &[Column], plot: &PlotOf) -> String {
    let mut labels = Vec::new();
    let mut values: [Vec<Values>; 2] = [Vec::new(), Vec::new()];
    let mut sql = Vec::new();
    let mut of = None;
    for (label, name) in plot.lines {
        let series = [0, 1].map(|run: usize| series_of(&shown[run].over_time, name));
        if series.iter().all(Vec::is_empty) {
            continue;
        }
        let scale = *of.get_or_insert_with(|| scale(name));
        labels.push(*label);
        for (run, series) in series.iter().enumerate() {
            values[run].push(if series.is_empty() {
                vec![None; shown[run].over_time.span.intervals]
            } else {
                combined(scale, series)
            });
        }
        sql.extend(plots::figure(name).map(|figure| figure.sql_over_time(&[])));
    }
    let Some(scale) = of else {
        return String::new();
    };
    let mut all = values.iter().flatten().flatten().flatten();
    if all.all(|value| *value == 0.0) {
        return String::new();
    }
    let drawing = Pair {
        title: plot.title,
        scale,
        labels: &labels,
        values,
        steps: [0, 1].map(|run: usize| shown[run].over_time.span.step()),
        stacked: plot.stacked,
        columns,
    }
    .draw();
    figure("", plot.name, plot.title, &drawing, &sql)
}

/// The plots over time, and what they show.
fn all_over_time(comparison: &Comparison, shown: &[Shown; 2]) -> String {
    let columns = columns(shown);
    let plots = TOPICS.iter().flat_map(|topic| topic.plots);
    let plots: String = plots.map(|plot| over_time(shown, &columns, plot)).collect();
    if plots.is_empty() {
        return plots;
    }
    let mut text = format!("A is run {}, B is run {}", shown[0].id, shown[1].id);
    if comparison.runs != [1, 1] {
        text += ", those with the median wall time of their side";
    }
    text += ". Both have one scale. ";
    text += if columns.len() > 1 {
        "Each column begins in both runs at the start of the region that it names, and its times are \
         those since this start."
    } else {
        "Times are those since the start of each run: they have no regions of the same name, or one at \
         the start."
    };
    paragraph(&text) + &plots
}

/// A name without its middle: commands differ at the begin and at the end.
fn abbreviated(name: &str) -> String {
    const LONGEST: usize = 42;
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= LONGEST {
        return name.to_owned();
    }
    let (begin, end) = (
        &letters[..LONGEST / 2],
        &letters[letters.len() - LONGEST / 2 + 1..],
    );
    begin.iter().chain(&['…']).chain(end).collect()
}

fn ratio(of: &Compared) -> Option<Ratio> {
    let ratio = of.ratio?;
    Some(Ratio {
        label: abbreviated(&of.name),
        note: of.change_with_interval(),
        value: ratio.value,
        interval: ratio.interval,
        colour: match of.verdict() {
            Verdict::Same | Verdict::Unknown => None,
            Verdict::More => Some(5),
            Verdict::Less => Some(0),
        },
    })
}

/// A drawing of ratios above their table.
fn compared<'a>(
    title: &str,
    all: impl IntoIterator<Item = &'a Compared>,
    of_table: &crate::analysis::page::PageTable,
) -> String {
    if of_table.rows.is_empty() {
        return String::new();
    }
    let ratios: Vec<_> = all.into_iter().filter_map(ratio).take(DRAWN).collect();
    let drawing = if ratios.is_empty() {
        String::new()
    } else {
        intervals::draw(title, &ratios)
    };
    drawing + &table(of_table)
}

fn unmatched(comparison: &Comparison) -> String {
    let mut html = String::new();
    for (side, names) in ["A", "B"].iter().zip(&comparison.unmatched) {
        if names.is_empty() {
            continue;
        }
        let _ = write!(
            html,
            "<h3>Only in {side}: {}</h3><ul class=\"only\">",
            names.len()
        );
        for name in names.iter().take(ROWS) {
            let _ = write!(html, "<li>{}</li>", escaped(name));
        }
        html += "</ul>";
        if names.len() > ROWS {
            let more = names.len() - ROWS;
            let _ = write!(html, "<p class=\"more\">… and {more} more</p>");
        }
    }
    html
}

/// The document.
pub fn comparison(comparison: &Comparison, shown: &[Shown; 2]) -> String {
    let tables = tables(comparison, ROWS);
    let machines = if tables.machines.rows.is_empty() {
        paragraph("None of the facts that both sides know differs.")
    } else {
        table(&tables.machines)
    };
    let notes: String = comparison
        .notes()
        .iter()
        .map(|note| paragraph(note))
        .collect();
    let primary = compared(
        "Ratios of the primary figures",
        comparison.primary(),
        &tables.primary,
    );
    // By CPU time, so that the drawing has the processes that matter.
    let mut processes: Vec<_> = comparison.processes.iter().collect();
    let mut regions: Vec<_> = comparison.regions.iter().collect();
    for list in [&mut processes, &mut regions] {
        let time = |of: &Compared| of.a.value.max(of.b.value);
        list.sort_by(|a, b| time(b).total_cmp(&time(a)));
    }
    let sections = [
        Section::of_text("machines", "Differences of machines and settings", machines),
        Section::of_text("figures", "Primary figures", notes + &primary),
        Section::of_text(
            "processes",
            "CPU time of processes",
            compared("CPU time of processes", processes, &tables.processes),
        ),
        Section::of_text(
            "regions",
            "Time of regions",
            compared("Time of regions", regions, &tables.regions),
        ),
        Section::of_text("time", "Over time", all_over_time(comparison, shown)),
        Section::of_text("others", "Other figures", compared("", [], &tables.figures)),
        Section::of_text(
            "unmatched",
            "Processes and regions of one side only",
            unmatched(comparison),
        ),
    ];
    let sections: Vec<_> = sections.into_iter().flatten().collect();
    let title = format!("A {} – B {}", comparison.labels[0], comparison.labels[1]);
    let frame = Frame {
        span: shown[0].over_time.span,
        layout: Layout::SCREEN,
        bands: Vec::new(),
    };
    Document {
        body: content(&title, &[comparison.subtitle()], &sections, "", &frame),
        title,
        style: include_str!("comparison.css"),
        is_interactive: false,
        footer: "ratios: median of all ratios of a run of B and a run of A (Hodges–Lehmann), intervals with a confidence of 95 %",
    }
    .html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::series::Span,
        run_report::over_time::{OfHost, Region},
    };

    fn shown(seconds: i64, regions: &[(&str, i64, i64)]) -> Shown {
        let regions = regions.iter().map(|(name, start, end)| Region {
            name: (*name).to_owned(),
            start: start * 1_000_000,
            end: Some(end * 1_000_000),
        });
        let host = OfHost {
            name: "node".to_owned(),
            regions: regions.collect(),
            ..OfHost::default()
        };
        Shown {
            id: "run".to_owned(),
            over_time: OverTime {
                span: Span {
                    start: 0,
                    end: seconds * 1_000_000,
                    intervals: 10,
                },
                is_reduced: false,
                hosts: vec![host],
            },
        }
    }

    fn found(a: Shown, b: Shown) -> Vec<(String, [f64; 2])> {
        let columns = columns(&[a, b]).into_iter();
        columns
            .map(|column| (column.label, column.starts))
            .collect()
    }

    #[test]
    fn columns_begin_at_regions_of_both_runs() {
        let a = shown(20, &[("read", 1, 5), ("solve", 5, 19), ("only", 12, 13)]);
        let b = shown(40, &[("read", 2, 20), ("solve", 20, 39)]);
        let expected = [
            ("start", [0.0, 0.0]),
            ("read", [1.0, 2.0]),
            ("solve", [5.0, 20.0]),
        ];
        let expected = expected.map(|(name, at)| (name.to_owned(), at));
        assert_eq!(found(a, b), expected);
    }

    #[test]
    fn regions_in_another_order_do_not_cross() {
        let a = shown(20, &[("x", 0, 12), ("y", 12, 20)]);
        let b = shown(20, &[("y", 0, 8), ("x", 8, 20)]);
        // The longer one is kept; the time before it is a column of its own.
        let expected = [
            ("start".to_owned(), [0.0, 0.0]),
            ("x".to_owned(), [0.0, 8.0]),
        ];
        assert_eq!(found(a, b), expected);
        let whole = [("start".to_owned(), [0.0, 0.0])];
        assert_eq!(found(shown(5, &[]), shown(7, &[("y", 1, 2)])), whole);
    }
}
