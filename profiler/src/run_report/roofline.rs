//! The section with the roofline.

use super::{
    html::{paragraph, table},
    section::{Part, Picture, Section},
};
use crate::{
    analysis::{
        figure::scaled,
        page::PageTable,
        roofline::{Limit, Owner, Point, Roofline, Sources, roofline},
        series::Span,
        stored_run::StoredRun,
    },
    charts::{
        Entry,
        roofline::{Dot, Mark, Plot, Roof, Shape},
    },
    support::units::format_ns,
};

/// Regions with a mark in the plot, those with most operations.
const REGIONS: usize = 10;
/// Nodes whose marks have a label.
const NODES: usize = 8;

/// The section; `None` without both operations and bytes.
pub fn section(run: &StoredRun, sources: &Sources, span: &Span) -> Option<Section> {
    let roofline = roofline(run, sources)?;
    let mut html = paragraph(&about(&roofline));
    html += &table(&points(&roofline));
    if !roofline.ceilings.is_empty() {
        html += &table(&ceilings(&roofline));
    }
    for note in &roofline.notes {
        html += &paragraph(note);
    }
    let parts = vec![picture(&roofline, span), Part::Html(html)];
    Section::new("roofline", "Roofline", parts)
}

/// Places the section after the regions.
pub fn insert(section: Option<Section>, sections: &mut Vec<Section>) {
    let before = ["tables", "hints", "quality"];
    let at = sections
        .iter()
        .position(|section| before.contains(&section.id));
    if let Some(section) = section {
        sections.insert(at.unwrap_or(sections.len()), section);
    }
}

/// Whose operations and bytes these are.
fn about(roofline: &Roofline) -> String {
    let bytes = match roofline.owner {
        Owner::Target => "Bytes: between main memory and the CPUs, of the target.",
        Owner::Node => {
            "Bytes: between main memory and the CPUs, of the whole node, other processes included; the \
             intensity of the target is at least this."
        }
    };
    let regions = if roofline.regions.is_empty() {
        ""
    } else {
        " A region has the share of each sample that it covers in time: all that the target did then."
    };
    format!(
        "Operations of the target: {}. {bytes}{regions}",
        roofline.precisions
    )
}

fn positive(point: &Point) -> Option<(f64, f64)> {
    let (intensity, flops) = (point.intensity()?, point.flops()?);
    (intensity > 0.0 && flops > 0.0).then_some((intensity, flops))
}

fn picture(roofline: &Roofline, span: &Span) -> Part {
    let mut marks = Vec::new();
    let mut mark = |point: &Point, label: &str, shape| {
        if let Some((intensity, flops)) = positive(point) {
            marks.push(Mark {
                label: label.to_owned(),
                intensity,
                flops,
                shape,
            });
        }
    };
    let run = if roofline.nodes.is_empty() {
        "run"
    } else {
        "run, mean of a node"
    };
    mark(&roofline.run, run, Shape::Diamond);
    let mut regions: Vec<_> = roofline.regions.iter().collect();
    regions.sort_by(|a, b| b.flop.total_cmp(&a.flop));
    for (number, region) in regions.into_iter().take(REGIONS).enumerate() {
        mark(region, &region.name, Shape::Circle(number));
    }
    let labelled = roofline.nodes.len() <= NODES;
    for node in &roofline.nodes {
        mark(node, if labelled { &node.name } else { "" }, Shape::Square);
    }
    if marks.is_empty() {
        return Part::Html(paragraph(
            "No sample has both operations and bytes above 0: there is nothing to plot.",
        ));
    }
    let length = (span.end - span.start).max(1) as f64;
    let dots = roofline
        .ticks
        .iter()
        .filter(|tick| tick.flop > 0.0 && tick.bytes > 0.0);
    let dots: Vec<_> = dots
        .map(|tick| Dot {
            intensity: tick.flop / tick.bytes,
            flops: tick.flop / tick.seconds,
            time: (tick.ts - span.start) as f64 / length,
        })
        .collect();
    let roofs = |is_flops: bool| {
        let drawn = roofline.drawn();
        let wanted = drawn.filter(move |roof| matches!(roof.limit, Limit::Flops(..)) == is_flops);
        let roofs = wanted.map(|roof| Roof {
            per_second: roof.per_second,
            label: format!(
                "{} {} ({})",
                roof.limit.name().replace(" precision", ""),
                roof.limit.format(roof.per_second),
                roof.provenance.word()
            ),
        });
        roofs.collect::<Vec<_>>()
    };
    let mut plot = Plot {
        compute: roofs(true),
        memory: roofs(false),
        best: [roofline.best_flops(), roofline.best_bandwidth()],
        dots,
        marks,
        legend: Vec::new(),
    };
    let outside = match plot.outside() {
        0 => String::new(),
        count => format!(", {count} points below the axes are not drawn"),
    };
    plot.legend = legend(&plot.marks, plot.dots.len(), &outside);
    Part::Picture(Picture {
        sql: roofline.sql.clone(),
        ..Picture::new("roofline", "Performance against arithmetic intensity", plot)
    })
}

fn legend(marks: &[Mark], dots: usize, outside: &str) -> Vec<Entry> {
    let entry = |key: &str, label: String, values: String| Entry {
        key: key.to_owned(),
        label,
        values,
        subject: None,
    };
    let mut entries = Vec::new();
    let mut nodes = 0;
    for mark in marks {
        let key = match mark.shape {
            Shape::Diamond => "<path class=\"c5\" d=\"M6 0l6 6l-6 6l-6 -6Z\"/>".to_owned(),
            Shape::Circle(colour) => {
                let colour = colour % crate::charts::COLOURS;
                format!("<circle class=\"c{colour}\" cx=\"6\" cy=\"6\" r=\"5\"/>")
            }
            Shape::Square => {
                nodes += 1;
                continue;
            }
        };
        let values = format!(
            "{}, {} FLOP/byte",
            scaled(mark.flops, "FLOP/s"),
            digits(mark.intensity)
        );
        entries.push(entry(&key, mark.label.clone(), values));
    }
    if nodes != 0 {
        let key = "<rect class=\"c7\" x=\"2\" y=\"2\" width=\"8\" height=\"8\"/>";
        entries.push(entry(key, format!("{nodes} nodes"), String::new()));
    }
    let key = "<circle class=\"h2\" cx=\"3\" cy=\"6\" r=\"2.5\"/><circle class=\"h8\" cx=\"9\" cy=\"6\" r=\"2.5\"/>";
    let order = format!("from light (first) to dark (last){outside}");
    entries.push(entry(key, format!("{dots} samples"), order));
    let key = "<path stroke=\"currentColor\" stroke-width=\"1.5\" stroke-dasharray=\"1.5 2\" d=\"M0 6H12\"/>";
    let what = "the ceilings are not below them".to_owned();
    entries.push(entry(key, "largest values of a sample".to_owned(), what));
    entries
}

/// Four significant digits.
fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 9"
    )]
    let decimals = decimals as usize;
    format!("{value:.decimals$}")
}

fn points(roofline: &Roofline) -> PageTable {
    let mut table = PageTable::new(&[
        "time",
        "FLOP",
        "bytes",
        "FLOP/byte",
        "FLOP/s",
        "B/s",
        "of the ceiling",
        "limited by",
        "",
    ]);
    let none = || "–".to_owned();
    let mut row = |point: &Point, name: String| {
        let rate = |value: f64, unit| match point.flops() {
            Some(_) => scaled(value / point.seconds, unit),
            None => none(),
        };
        let under = positive(point).and_then(|(_, flops)| {
            let (ceiling, by_memory) = roofline.attainable(point)?;
            let share = format!("{:.1} %", 100.0 * flops / ceiling);
            Some((share, if by_memory { "memory" } else { "compute" }))
        });
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a run"
        )]
        let time = format_ns((point.seconds * 1e9) as u64);
        table.rows.push(vec![
            time,
            scaled(point.flop, "FLOP"),
            scaled(point.bytes, "B"),
            point.intensity().map_or_else(none, digits),
            rate(point.flop, "FLOP/s"),
            rate(point.bytes, "B/s"),
            under.as_ref().map_or_else(none, |(share, _)| share.clone()),
            under.map_or_else(none, |(_, by)| by.to_owned()),
            name,
        ]);
    };
    row(&roofline.run, "run".to_owned());
    for node in &roofline.nodes {
        row(node, format!("node {}", node.name));
    }
    for region in &roofline.regions {
        row(region, format!("region {}", region.name));
    }
    table
}

fn ceilings(roofline: &Roofline) -> PageTable {
    let mut table = PageTable::new(&[
        "per second",
        "spread",
        "CPUs",
        "in the plot",
        "ceiling",
        "origin",
    ]);
    let rows = roofline.ceilings.iter().map(|ceiling| {
        let spread = ceiling
            .spread
            .map(|spread| format!("{:.1} %", 100.0 * spread));
        vec![
            ceiling.limit.format(ceiling.per_second),
            spread.unwrap_or_else(|| "–".to_owned()),
            ceiling
                .cpus
                .map_or_else(|| "all".to_owned(), |cpus| cpus.to_string()),
            if ceiling.drawn { "yes" } else { "no" }.to_owned(),
            ceiling.limit.name(),
            ceiling.provenance.text(),
        ]
    });
    table.rows.extend(rows);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!(digits(0.083_333), "0.08333");
        assert_eq!(digits(12.0), "12.00");
        assert_eq!(digits(123_456.0), "123456");
    }

    #[test]
    fn the_section_follows_the_regions() {
        let new = |id| Section::of_text(id, "title", "x".to_owned());
        let mut sections: Vec<_> = ["regions", "tables", "quality"]
            .map(new)
            .into_iter()
            .flatten()
            .collect();
        insert(new("roofline"), &mut sections);
        insert(None, &mut sections);
        let ids: Vec<_> = sections.iter().map(|section| section.id).collect();
        assert_eq!(ids, ["regions", "roofline", "tables", "quality"]);
    }
}
