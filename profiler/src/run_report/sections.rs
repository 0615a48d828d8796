//! The sections of a report, in the order in which a reader needs them.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    html::{self, Section, paragraph, table},
    over_time::{Life, OfHost, OverTime},
    plots::{self, PlotOf, TOPICS, Topic},
};
use crate::{
    analysis::{
        figure::{self, Unit},
        page::PageTable,
        series::{Series, averaged, summed},
        summary::{self, Finding, Summary, findings},
    },
    charts::{
        Scale, escaped,
        heat_map::HeatMap,
        lanes::{self, Bar},
        lines::{Line, Plot},
    },
};

/// All sections with content.
pub fn sections(summary: &Summary, over_time: &OverTime) -> Vec<Section> {
    let found = findings(summary);
    let page = summary::page(summary);
    let facts: Vec<_> = page
        .facts
        .iter()
        .filter(|(name, _)| *name != "bound by")
        .cloned()
        .collect();
    let facts = html::facts(&facts);
    let mut sections = vec![
        Section::new("verdict", "What bounds the run", verdict(&found)),
        Section::new("facts", "Totals", facts),
    ];
    for topic in TOPICS {
        let mut html = String::new();
        for plot in topic.plots {
            html += &drawn(plot, over_time);
        }
        html += &added(topic, over_time);
        sections.push(Section::new(topic.id, topic.title, html));
    }
    sections.push(Section::new("gpu", "GPUs", gpus(over_time)));
    sections.push(Section::new("nodes", "Nodes and ranks", nodes(over_time)));
    sections.push(Section::new("processes", "Processes", lives(over_time)));
    sections.push(Section::new("regions", "Regions", regions(over_time)));
    let tables: String = page.tables.iter().map(table).collect();
    sections.push(Section::new("tables", "Tables", tables));
    sections.push(Section::new("hints", "Hints", hints(&found)));
    sections.push(Section::new(
        "quality",
        "Quality of the data",
        quality(summary, &page.notes),
    ));
    sections.into_iter().flatten().collect()
}

fn verdict(found: &[Finding]) -> String {
    let Some((first, others)) = found.split_first() else {
        return paragraph(
            "Not known: no resource was used so much that the data name it as the bound.",
        );
    };
    let mut html = format!(
        "<p class=\"verdict\"><strong>{}</strong> {}</p>",
        escaped(&format!("Bound by: {}.", first.name)),
        escaped(&first.text)
    );
    let _ = write!(html, "<p class=\"rule\">Rule: {}.</p>", escaped(first.rule));
    for other in others {
        let text = escaped(&format!("Also {}: {}", other.name, other.text));
        let _ = write!(
            html,
            "<p>{text} <span class=\"rule\">Rule: {}.</span></p>",
            escaped(other.rule)
        );
    }
    html
}

fn hints(found: &[Finding]) -> String {
    let items = found.iter().map(|finding| {
        format!(
            "<li><strong>{}</strong> {} <span class=\"rule\">({})</span></li>",
            escaped(finding.name),
            escaped(finding.hint),
            escaped(finding.rule)
        )
    });
    let items: String = items.collect();
    if items.is_empty() {
        items
    } else {
        format!("<ul class=\"hints\">{items}</ul>")
    }
}

/// The scale of a figure over time.
pub(super) fn scale(name: &str) -> Scale {
    let figure = plots::figure(name);
    let unit = figure.map_or(Unit::Count, |figure| figure.unit);
    // FLOP and bytes of gauges that are rates already.
    let is_rate = matches!(name, "flops" | "dp_flops" | "sp_flops" | "mem_bw");
    let adds_up = figure.is_some_and(|figure| figure.over_time == figure::OverTime::Sum);
    Scale {
        unit,
        per_second: is_rate || adds_up,
    }
}

/// Combines the series of all hosts: percentages are averaged, everything else is added up.
pub(super) fn combined(scale: Scale, series: &[&Series]) -> Vec<Option<f64>> {
    match scale.unit {
        Unit::Percent => averaged(series),
        _ => summed(series),
    }
}

pub(super) fn series_of<'a>(over_time: &'a OverTime, name: &str) -> Vec<&'a Series> {
    let hosts = over_time.hosts.iter();
    hosts
        .filter_map(|host| host.figures.get(name)?.get(""))
        .filter(|series| !series.is_empty())
        .collect()
}

fn drawn(plot: &PlotOf, over_time: &OverTime) -> String {
    let mut lines = Vec::new();
    let mut of = None;
    for (label, name) in plot.lines {
        let series = series_of(over_time, name);
        if series.is_empty() {
            continue;
        }
        let scale = *of.get_or_insert_with(|| scale(name));
        let range = match series.as_slice() {
            [only] if over_time.is_reduced => {
                let intervals = only.intervals().iter();
                intervals
                    .map(|interval| interval.mean().map(|_| (interval.min, interval.max)))
                    .collect()
            }
            _ => Vec::new(),
        };
        lines.push(Line {
            label: (*label).to_owned(),
            means: combined(scale, &series),
            range,
            max: match series.as_slice() {
                [only] => only.max(),
                _ => None,
            },
        });
    }
    let Some(scale) = of else {
        return String::new();
    };
    let is_nothing = |line: &Line| line.means.iter().flatten().all(|value| *value == 0.0);
    if lines.iter().all(is_nothing) {
        return String::new();
    }
    let limit = plot.limit.and_then(|(name, text)| {
        let means = summed(&series_of(over_time, name));
        Some((means.into_iter().flatten().reduce(f64::max)?, text))
    });
    let drawing = Plot {
        title: plot.title,
        span: over_time.span,
        scale,
        lines: &lines,
        stacked: plot.stacked,
        limit,
    }
    .draw();
    let sql = plot.lines.iter().filter_map(|(_, name)| {
        let series = series_of(over_time, name);
        let figure = plots::figure(name)?;
        (!series.is_empty()).then(|| figure.sql_over_time())
    });
    figure_element(plot.name, plot.title, &drawing, &sql.collect::<Vec<_>>())
}

pub(super) fn figure_element(name: &str, title: &str, drawing: &str, sql: &[String]) -> String {
    let source = if sql.is_empty() {
        String::new()
    } else {
        format!(
            "<details><summary>SQL</summary><pre>{}</pre></details>",
            sql.iter()
                .map(|sql| escaped(sql))
                .collect::<Vec<_>>()
                .join(";\n")
        )
    };
    format!(
        "<figure id=\"plot-{}\"><figcaption>{}</figcaption>{drawing}{source}</figure>",
        escaped(name),
        escaped(title)
    )
}

/// Drawings of a topic that are no lines.
fn added(topic: &Topic, over_time: &OverTime) -> String {
    if topic.id != "cpu" {
        return String::new();
    }
    let several = over_time.hosts.len() > 1;
    let mut rows: Vec<_> = over_time
        .hosts
        .iter()
        .flat_map(|host| {
            host.cpus
                .iter()
                .map(move |(cpu, series)| (host, cpu, series))
        })
        .map(|(host, cpu, series)| {
            let number: u32 = cpu.parse().unwrap_or(u32::MAX);
            let label = if several {
                format!("{} {cpu}", host.name)
            } else {
                format!("CPU {cpu}")
            };
            ((host.name.clone(), number), (label, series.means()))
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    heat_map(
        "cpu-heat",
        "Utilization of each CPU",
        scale("cpu_busy"),
        &rows,
        Some(100.0),
        over_time,
    )
}

fn heat_map(
    name: &str,
    title: &str,
    scale: Scale,
    rows: &[(String, Vec<Option<f64>>)],
    max: Option<f64>,
    over_time: &OverTime,
) -> String {
    if rows.len() < 2 {
        return String::new();
    }
    let drawing = HeatMap {
        title,
        span: over_time.span,
        scale,
        rows,
        max,
    }
    .draw();
    figure_element(name, title, &drawing, &[])
}

fn gpus(over_time: &OverTime) -> String {
    let several = over_time.hosts.len() > 1;
    let mut html = String::new();
    for (name, title) in [
        ("gpu_utilization", "Utilization of the GPUs"),
        ("gpu_memory", "Memory in use on the GPUs"),
        ("gpu_watts", "Power of the GPUs"),
    ] {
        let mut rows = Vec::new();
        for host in &over_time.hosts {
            for (bdf, series) in host.gpus.get(name).into_iter().flatten() {
                let label = if several {
                    format!("{} {bdf}", host.name)
                } else {
                    bdf.clone()
                };
                rows.push((label, series.means()));
            }
        }
        if rows.len() > 8 {
            html += &heat_map(name, title, scale(name), &rows, None, over_time);
            continue;
        }
        let lines = rows.into_iter().map(|(label, means)| Line {
            label,
            means,
            range: Vec::new(),
            max: None,
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            let drawing = Plot {
                title,
                span: over_time.span,
                scale: scale(name),
                lines: &lines,
                stacked: false,
                limit: None,
            }
            .draw();
            html += &figure_element(name, title, &drawing, &[]);
        }
    }
    html
}

fn nodes(over_time: &OverTime) -> String {
    let hosts = over_time.hosts.iter();
    let cpu = |host: &OfHost| host.figures.get("cpu_s")?.get("").map(Series::means);
    let rows: Vec<_> = hosts
        .filter_map(|host| Some((host.name.clone(), cpu(host)?)))
        .collect();
    let mut html = heat_map(
        "nodes-cpu",
        "CPUs used by the target on each node",
        scale("cpu_s"),
        &rows,
        None,
        over_time,
    );
    let mut ranks: BTreeMap<&str, Vec<&Series>> = BTreeMap::new();
    for host in &over_time.hosts {
        for (rank, series) in &host.ranks {
            ranks.entry(rank).or_default().push(series);
        }
    }
    let rows = ranks.into_iter().map(|(rank, series)| {
        let rank = rank.trim_start_matches('0');
        (
            format!("rank {}", if rank.is_empty() { "0" } else { rank }),
            summed(&series),
        )
    });
    html += &heat_map(
        "ranks-cpu",
        "CPUs used by each rank",
        scale("cpu_s"),
        &rows.collect::<Vec<_>>(),
        None,
        over_time,
    );
    html
}

/// Processes with a lane of their own.
const LANES: usize = 40;

fn lives(over_time: &OverTime) -> String {
    let all: Vec<&Life> = over_time
        .hosts
        .iter()
        .flat_map(|host| &host.processes)
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let span = over_time.span;
    let cpu = |life: &Life| life.cpu.unwrap_or(0);
    let length = |life: &Life| life.end.unwrap_or(span.end) - life.key.1.max(span.start);
    let mut shown = all.clone();
    shown.sort_by_key(|life| std::cmp::Reverse((cpu(life), length(life))));
    shown.truncate(LANES);
    shown.sort_by_key(|life| (life.key.1, life.key.0));
    let bars: Vec<_> = shown
        .iter()
        .enumerate()
        .map(|(lane, life)| Bar {
            start: life.key.1,
            end: life.end.unwrap_or(span.end),
            label: shortened(&life.name),
            // The colour of failures.
            colour: if life.failed { 5 } else { 0 },
            lane,
        })
        .collect();
    let title = "Processes from start to end, those with most CPU time; orange: failed";
    let mut html = figure_element(
        "process-lives",
        title,
        &lanes::draw(title, span, &bars),
        &[],
    );
    if all.len() > shown.len() {
        html += &folded(&all, over_time);
    }
    html
}

/// All processes as a rate of starts.
fn folded(all: &[&Life], over_time: &OverTime) -> String {
    let span = over_time.span;
    let mut starts = vec![Some(0.0); span.intervals];
    for life in all.iter().filter(|life| life.key.1 >= span.start) {
        let position = span.position(life.key.1).floor();
        let index = (0..span.intervals).find(|index| *index as f64 >= position);
        if let Some(Some(count)) = index.and_then(|index| starts.get_mut(index)) {
            *count += 1.0 / span.step();
        }
    }
    let title = format!("Processes started per second, all {}", all.len());
    let line = Line {
        label: "starts".to_owned(),
        means: starts,
        range: Vec::new(),
        max: None,
    };
    let scale = Scale {
        unit: Unit::Count,
        per_second: true,
    };
    let drawing = Plot {
        title: &title,
        span,
        scale,
        lines: &[line],
        stacked: false,
        limit: None,
    }
    .draw();
    figure_element("process-starts", &title, &drawing, &[])
}

/// Regions that are drawn.
const REGIONS: usize = 2000;
const REGION_LANES: usize = 40;

fn regions(over_time: &OverTime) -> String {
    let span = over_time.span;
    let mut colours: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ends: Vec<i64> = Vec::new();
    let mut bars = Vec::new();
    let all = over_time.hosts.iter().flat_map(|host| &host.regions);
    let count = over_time
        .hosts
        .iter()
        .map(|host| host.regions.len())
        .sum::<usize>();
    for region in all.take(REGIONS) {
        let end = region.end.unwrap_or(span.end);
        let free = ends.iter().position(|busy| *busy <= region.start);
        let lane = free.unwrap_or(ends.len());
        if lane >= REGION_LANES {
            continue;
        }
        if lane == ends.len() {
            ends.push(end);
        } else {
            ends[lane] = end;
        }
        let next = colours.len();
        let colour = *colours.entry(&region.name).or_insert(next);
        bars.push(Bar {
            start: region.start,
            end,
            label: shortened(&region.name),
            colour,
            lane,
        });
    }
    if bars.is_empty() {
        return String::new();
    }
    let title = if bars.len() < count {
        format!(
            "Regions that the application marked, the first {} of {count}",
            bars.len()
        )
    } else {
        "Regions that the application marked".to_owned()
    };
    figure_element(
        "region-lanes",
        &title,
        &lanes::draw(&title, span, &bars),
        &[],
    )
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 70;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

fn quality(summary: &Summary, notes: &[String]) -> String {
    let mut html = String::from("<ul>");
    for note in notes {
        let _ = write!(html, "<li>{}</li>", escaped(note));
    }
    html += "</ul>";
    let several = summary.nodes.len() > 1;
    let mut sources = PageTable::new(if several {
        &["node", "source", "state", "why"]
    } else {
        &["source", "state", "why"]
    });
    for (host, source) in &summary.identity.sources {
        let state = format!("{:?}", source.status).to_lowercase();
        let why = source.why.clone().unwrap_or_default();
        let mut row = vec![source.name.clone(), state, why];
        if several {
            row.insert(0, host.clone());
        }
        sources.rows.push(row);
    }
    if !sources.rows.is_empty() {
        html += "<p>Sources that did not have all data:</p>";
        html += &table(&sources);
    }
    html
}
