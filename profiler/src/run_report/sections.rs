//! The sections of a report, in the order in which a reader needs them.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    bands::colours,
    html::{self, paragraph, table},
    over_time::{Life, OfHost, OverTime},
    plots::{self, PlotOf, TOPICS, Topic},
    section::{Part, Picture, Section},
    subjects::{gpu_subject, rank_number, ranks},
};
use crate::{
    analysis::{
        figure::{self, Unit},
        page::PageTable,
        series::{Series, averaged, summed},
        summary::{self, Finding, Summary, findings, node_subject, rank_subject, region_subject},
    },
    charts::{
        Axis, Scale, escaped,
        heat_map::{HeatMap, Row, Shading},
        lanes::{Bar, Lanes},
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
        Section::of_text("verdict", "What bounds the run", verdict(&found)),
        Section::of_text("facts", "Totals", facts),
    ];
    for topic in TOPICS {
        let plots = topic.plots.iter().filter_map(|plot| drawn(plot, over_time));
        let plots = plots.chain(added(topic, over_time));
        sections.push(Section::new(topic.id, topic.title, plots.collect()));
    }
    sections.push(Section::new("gpu", "GPUs", gpus(over_time)));
    sections.push(Section::new("nodes", "Nodes and ranks", nodes(over_time)));
    sections.push(Section::new("processes", "Processes", lives(over_time)));
    sections.push(Section::new("regions", "Regions", regions(over_time)));
    let tables: String = page.tables.iter().map(table).collect();
    sections.push(Section::of_text("tables", "Tables", tables));
    sections.push(Section::of_text("hints", "Hints", hints(&found)));
    sections.push(Section::of_text(
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

fn drawn(plot: &PlotOf, over_time: &OverTime) -> Option<Part> {
    let mut lines = Vec::new();
    let mut of = None;
    let mut sql = Vec::new();
    for (label, name) in plot.lines {
        let series = series_of(over_time, name);
        if series.is_empty() {
            continue;
        }
        sql.extend(plots::figure(name).map(figure::Figure::sql_over_time));
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
            figure: name,
            means: combined(scale, &series),
            range,
            max: match series.as_slice() {
                [only] => only.max(),
                _ => None,
            },
        });
    }
    let is_nothing = |line: &Line| line.means.iter().flatten().all(|value| *value == 0.0);
    if lines.iter().all(is_nothing) {
        return None;
    }
    let limit = plot.limit.and_then(|(name, text)| {
        let means = summed(&series_of(over_time, name));
        Some((means.into_iter().flatten().reduce(f64::max)?, text))
    });
    let chart = Plot {
        scale: of?,
        lines,
        stacked: plot.stacked,
        limit,
        axis: Axis::Linear,
    };
    Some(Part::Picture(Picture {
        sql,
        ..Picture::new(plot.name, plot.title, chart)
    }))
}

/// Drawings of a topic that are no lines.
fn added(topic: &Topic, over_time: &OverTime) -> Vec<Part> {
    let mut parts: Vec<_> = (topic.id == "cpu")
        .then(|| cpus(over_time))
        .flatten()
        .into_iter()
        .collect();
    for (kind, title) in topic.latencies {
        parts.extend(latencies(kind, title, over_time));
    }
    parts
}

fn cpus(over_time: &OverTime) -> Option<Part> {
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
            (
                (host.name.clone(), number),
                row(label, None, series.means()),
            )
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    heat_map(
        "cpu-heat",
        "Utilization of each CPU",
        scale("cpu_busy"),
        rows,
        Some(100.0),
    )
}

/// How long operations took: their number by octave of the duration.
fn latencies(kind: &str, title: &str, over_time: &OverTime) -> Option<Part> {
    let mut octaves: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let of_hosts = over_time.hosts.iter();
    for (octave, counts) in of_hosts
        .filter_map(|host| host.latencies.get(kind))
        .flatten()
    {
        let sums = octaves
            .entry(*octave)
            .or_insert_with(|| vec![0.0; counts.len()]);
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    let (first, last) = (*octaves.keys().next()?, *octaves.keys().next_back()?);
    let rows = (first..=last).rev().map(|octave| {
        let least = if octave == 0 {
            0.0
        } else {
            f64::exp2(octave.into()) / 1e9
        };
        let label = format!("≥ {}", Unit::Seconds.format(least));
        let counts = octaves.get(&octave);
        let counts = counts.cloned().unwrap_or_default();
        let mut values: Vec<_> = counts.into_iter().map(Some).collect();
        values.resize(over_time.span.intervals, Some(0.0));
        row(label, None, values)
    });
    let scale = Scale {
        unit: Unit::Count,
        per_second: true,
    };
    let chart = HeatMap {
        scale,
        rows: rows.collect(),
        max: None,
        shading: Shading::Logarithmic,
    };
    let name = format!("latency-{}", kind.replace('_', "-"));
    let sql = format!(
        "SELECT ts, bucket, sum(count) AS count FROM (SELECT ts, unnest(buckets) AS count, \
         generate_subscripts(buckets, 1) - 1 AS bucket FROM latency WHERE kind = '{kind}' AND tid IS \
         NULL) GROUP BY ALL ORDER BY ALL"
    );
    Some(Part::Picture(Picture {
        sql: vec![sql],
        ..Picture::new(&name, title, chart)
    }))
}

fn row(label: String, subject: Option<String>, values: Vec<Option<f64>>) -> Row {
    Row {
        label,
        subject,
        values,
    }
}

/// A heat map, if it has several rows.
fn heat_map(
    name: &str,
    title: &str,
    scale: Scale,
    rows: Vec<Row>,
    max: Option<f64>,
) -> Option<Part> {
    let chart = HeatMap {
        scale,
        rows,
        max,
        shading: Shading::Linear,
    };
    (chart.rows.len() > 1).then(|| Part::Picture(Picture::new(name, title, chart)))
}

fn gpus(over_time: &OverTime) -> Vec<Part> {
    let several = over_time.hosts.len() > 1;
    let mut parts = Vec::new();
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
                let subject = gpu_subject(&host.name, bdf);
                rows.push(row(label, Some(subject), series.means()));
            }
        }
        if rows.len() > 8 {
            parts.extend(heat_map(name, title, scale(name), rows, None));
            continue;
        }
        let lines = rows.into_iter().map(|row| Line {
            label: row.label,
            figure: name,
            means: row.values,
            range: Vec::new(),
            max: None,
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            let chart = Plot {
                scale: scale(name),
                lines,
                stacked: false,
                limit: None,
                axis: Axis::Linear,
            };
            parts.push(Part::Picture(Picture::new(name, title, chart)));
        }
    }
    parts
}

/// Metrics by which nodes and ranks are compared.
const COMPARED: [(&str, &str); 6] = [
    ("cpu_s", "CPUs used"),
    ("runqueue_s", "Threads in the run queue"),
    ("blocked_s", "Threads blocked"),
    ("peak_rss_bytes", "Memory"),
    ("file_write_bytes", "Bytes written to files"),
    ("net_rx_bytes", "Bytes received over TCP and UDP"),
];

/// Name of a figure without its unit.
fn plot_name(figure: &str) -> String {
    let name = figure.trim_end_matches("_s").trim_end_matches("_bytes");
    name.replace('_', "-")
}

fn nodes(over_time: &OverTime) -> Vec<Part> {
    let mut parts = Vec::new();
    let ranks = ranks(over_time);
    for (name, metric) in COMPARED {
        let is_used = |rows: &[Row]| {
            let mut values = rows.iter().flat_map(|row| row.values.iter().flatten());
            values.any(|value| *value > 0.0)
        };
        let of_node = |host: &OfHost| host.figures.get(name)?.get("").map(Series::means);
        let rows = over_time.hosts.iter().filter_map(|host| {
            let subject = Some(node_subject(&host.name));
            Some(row(host.name.clone(), subject, of_node(host)?))
        });
        let title = format!("{metric} by the target on each node");
        let rows: Vec<_> = rows.collect();
        if is_used(&rows) {
            let plot = format!("nodes-{}", plot_name(name));
            parts.extend(heat_map(&plot, &title, scale(name), rows, None));
        }
        let rows = ranks.iter().filter_map(|(rank, figures)| {
            let rank = rank_number(rank);
            let values = figures.get(name)?.clone();
            Some(row(
                format!("rank {rank}"),
                Some(rank_subject(rank)),
                values,
            ))
        });
        let rows: Vec<_> = rows.collect();
        if is_used(&rows) {
            let title = format!("{metric} by each rank");
            let plot = format!("ranks-{}", plot_name(name));
            parts.extend(heat_map(&plot, &title, scale(name), rows, None));
        }
    }
    parts
}

/// Processes with a lane of their own.
const LANES: usize = 40;

fn lives(over_time: &OverTime) -> Vec<Part> {
    let all: Vec<&Life> = over_time
        .hosts
        .iter()
        .flat_map(|host| &host.processes)
        .collect();
    if all.is_empty() {
        return Vec::new();
    }
    let span = over_time.span;
    let cpu = |life: &Life| life.cpu.unwrap_or(0);
    let length = |life: &Life| life.end.unwrap_or(span.end) - life.key.1.max(span.start);
    let mut shown = all.clone();
    shown.sort_by_key(|life| std::cmp::Reverse((cpu(life), length(life))));
    shown.truncate(LANES);
    shown.sort_by_key(|life| (life.key.1, life.key.0));
    let bars = shown.iter().enumerate().map(|(lane, life)| Bar {
        start: life.key.1,
        end: life.end.unwrap_or(span.end),
        label: shortened(&life.name),
        subject: Some(life.subject.clone()),
        // The colour of failures.
        colour: if life.failed { 5 } else { 0 },
        lane,
    });
    let title = "Processes from start to end, those with most CPU time; orange: failed";
    let chart = Lanes(bars.collect());
    let mut parts = vec![Part::Picture(Picture::new("process-lives", title, chart))];
    if all.len() > shown.len() {
        parts.push(folded(&all, over_time));
    }
    parts
}

/// All processes as a rate of starts.
fn folded(all: &[&Life], over_time: &OverTime) -> Part {
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
    let chart = Plot {
        scale: Scale {
            unit: Unit::Count,
            per_second: true,
        },
        lines: vec![Line {
            label: "starts".to_owned(),
            figure: "",
            means: starts,
            range: Vec::new(),
            max: None,
        }],
        stacked: false,
        limit: None,
        axis: Axis::Linear,
    };
    Part::Picture(Picture::new("process-starts", &title, chart))
}

/// Regions that are drawn.
const REGIONS: usize = 2000;
const REGION_LANES: usize = 40;

fn regions(over_time: &OverTime) -> Vec<Part> {
    let span = over_time.span;
    let colours = colours(over_time);
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
        bars.push(Bar {
            start: region.start,
            end,
            label: shortened(&region.name),
            subject: Some(region_subject(&region.name)),
            colour: colours[region.name.as_str()],
            lane,
        });
    }
    if bars.is_empty() {
        return Vec::new();
    }
    let title = if bars.len() < count {
        format!(
            "Regions that the application marked, the first {} of {count}",
            bars.len()
        )
    } else {
        "Regions that the application marked".to_owned()
    };
    vec![Part::Picture(Picture::new(
        "region-lanes",
        &title,
        Lanes(bars),
    ))]
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
    // Nodes of a job mostly lack the same.
    let mut nodes: BTreeMap<(&str, String, &str), Vec<&str>> = BTreeMap::new();
    for (host, source) in &summary.identity.sources {
        let state = format!("{:?}", source.status).to_lowercase();
        let why = source.why.as_deref().unwrap_or_default();
        let of = nodes.entry((&source.name, state, why)).or_default();
        of.push(host);
    }
    let several = summary.nodes.len() > 1;
    let mut sources = PageTable::new(if several {
        &["nodes", "source", "state", "why"]
    } else {
        &["source", "state", "why"]
    });
    for ((name, state, why), hosts) in nodes {
        let mut row = vec![name.to_owned(), state, why.to_owned()];
        if several {
            row.insert(
                0,
                match hosts.as_slice() {
                    [only] => (*only).to_owned(),
                    hosts => hosts.len().to_string(),
                },
            );
        }
        sources.rows.push(row);
    }
    if !sources.rows.is_empty() {
        html += "<p>Sources that did not have all data:</p>";
        html += &table(&sources);
    }
    html
}
