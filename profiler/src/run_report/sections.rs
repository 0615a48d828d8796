//! The sections of a report, in the order in which a reader needs them.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    bands::colours,
    devices::devices,
    heat_maps::{cpus, latencies, nodes},
    html::{self, paragraph, table},
    over_time::OverTime,
    plots::{self, PlotOf, TOPICS, Topic, scale},
    processes::{lives, process_times, shortened},
    section::{Part, Picture, Section},
};
use crate::{
    analysis::{
        figure::Unit,
        page::PageTable,
        series::{Series, averaged, summed},
        summary::{self, Finding, Summary, findings, region_subject},
    },
    charts::{
        Axis, Scale, escaped,
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
        .filter(|(name, _)| ![summary::BOUND, summary::ALSO].contains(name))
        .cloned()
        .collect();
    let facts = html::facts(&facts);
    let mut sections = vec![
        Section::of_text("verdict", "Bottleneck", verdict(&found)),
        Section::of_text("facts", "Totals", facts),
    ];
    for topic in TOPICS {
        let plots = topic.plots.iter();
        let plots = plots.filter_map(|plot| drawn(plot, summary, over_time));
        let mut parts: Vec<_> = plots.chain(added(topic, over_time)).collect();
        if topic.id == "time" {
            parts.extend(process_times(summary));
        }
        sections.push(Section::new(topic.id, topic.title, parts));
    }
    sections.push(Section::new("nodes", "Nodes and ranks", nodes(over_time)));
    sections.push(Section::new("processes", "Processes", lives(over_time)));
    sections.push(Section::new("regions", "Regions", regions(over_time)));
    let tables: String = page.tables.iter().map(table).collect();
    sections.push(Section::of_text("tables", "Tables", tables));
    sections.push(Section::of_text("hints", "Recommendations", hints(&found)));
    sections.push(Section::of_text(
        "quality",
        "Data quality",
        quality(summary, &page.notes),
    ));
    sections.into_iter().flatten().collect()
}

fn verdict(found: &[Finding]) -> String {
    let Some((first, others)) = found.split_first() else {
        return paragraph("No bottleneck found: no rule matched.");
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
            "<li><strong>{}</strong> {}</li>",
            escaped(finding.name),
            escaped(finding.hint)
        )
    });
    let items: String = items.collect();
    if items.is_empty() {
        items
    } else {
        format!("<ul class=\"hints\">{items}</ul>")
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

fn drawn(plot: &PlotOf, summary: &Summary, over_time: &OverTime) -> Option<Part> {
    let mut lines = Vec::new();
    let mut of = None;
    let mut sql = Vec::new();
    for (label, name) in plot.lines {
        let series = series_of(over_time, name);
        if series.is_empty() {
            continue;
        }
        sql.extend(plots::figure(name).map(|figure| figure.sql_over_time(&[])));
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
            subject: None,
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
    let mut limits = plot.limits.iter().filter_map(|(name, text)| {
        let means = || summed(&series_of(over_time, name)).into_iter().flatten();
        let value = summary
            .target
            .get(name)
            .or_else(|| means().reduce(f64::max));
        Some((value?, *text))
    });
    let chart = Plot {
        scale: of?,
        lines,
        stacked: plot.stacked,
        limit: limits.next(),
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
    for kind in topic.devices {
        parts.extend(devices(kind, over_time));
    }
    parts
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_of_a_finding_is_shown_once() {
        let found = [Finding {
            name: "memory",
            text: "20 page faults per second".to_owned(),
            hint: "use less",
            rule: "at least 20 page faults",
            weight: 1.0,
        }];
        let html = verdict(&found) + &hints(&found);
        assert_eq!(html.matches(found[0].rule).count(), 1, "{html}");
        assert!(html.contains(found[0].hint), "{html}");
    }
}
