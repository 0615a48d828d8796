//! The plots and pages of SKA SDP's perfmon, under the same names, for people who know these.
//!
//! Different from the original: nodes are combined by time and an ended one is absent; rates are
//! increases divided by the time that they cover; a value that is missing is a gap; a page without
//! plots is left out; all times are UTC.

use super::{
    Report,
    html::Document,
    over_time,
    section::{Part, Picture, Section},
};
use crate::{
    analysis::{
        figure::{Figure, Unit},
        perfmon::{OF_NODES, OF_SOCKETS},
        scan::{Groups, OverTimes, Request, for_each_host, scan},
        series::{Series, Span, summed},
        stored_run::StoredRun,
        summary::Summary,
    },
    charts::{
        Axis, Frame, Scale, escaped,
        file::{self, Appearance},
        lines::{Line, Plot},
    },
    support::units::wall_clock,
};

/// How nodes are combined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Combination {
    Average,
    Total,
}

use Combination::{Average, Total};

/// A metric of perfmon.
struct Metric {
    name: &'static str,
    unit: &'static str,
    combination: Combination,
    /// Figures that are added; the first list with data is used.
    figures: &'static [&'static [&'static str]],
    /// Values in this unit.
    factor: f64,
    is_logarithmic: bool,
}

const MIB: f64 = 1.0 / 1_048_576.0;

const fn metric(
    name: &'static str,
    unit: &'static str,
    combination: Combination,
    figures: &'static [&'static [&'static str]],
) -> Metric {
    Metric {
        name,
        unit,
        combination,
        figures,
        factor: 1.0,
        is_logarithmic: false,
    }
}

/// With a logarithmic axis.
const fn traffic(name: &'static str, figures: &'static [&'static [&'static str]]) -> Metric {
    Metric {
        factor: MIB,
        is_logarithmic: true,
        ..metric(name, "MiB/s", Total, figures)
    }
}

const fn packets(name: &'static str, figures: &'static [&'static [&'static str]]) -> Metric {
    Metric {
        is_logarithmic: true,
        ..metric(name, "1/s", Total, figures)
    }
}

/// The metrics of each page.
const PAGES: [&[Metric]; 4] = [
    &[
        metric("CPU Load", "%", Average, &[&["cpu_load"]]),
        Metric {
            factor: MIB / 1024.0,
            ..metric("Memory", "GiB", Average, &[&["memory"]])
        },
        Metric {
            factor: MIB,
            is_logarithmic: true,
            ..metric(
                "Memory Bandwidth (Read)",
                "MiB/s",
                Average,
                &[
                    &["llc_bandwidth", "llc_remote_bandwidth"],
                    &["read_bandwidth"],
                    &["node_read_bandwidth"],
                ],
            )
        },
    ],
    &[
        traffic("Output Traffic", &[&["tx_bytes"]]),
        traffic("Input Traffic", &[&["rx_bytes"]]),
        packets("Packets Output", &[&["tx_packets"]]),
        packets("Packets Input", &[&["rx_packets"]]),
    ],
    &[
        traffic("Interconnect Output Traffic", &[&["fabric_tx_bytes"]]),
        traffic("Interconnect Input Traffic", &[&["fabric_rx_bytes"]]),
        packets("Interconnect Packets Output", &[&["fabric_tx_packets"]]),
        packets("Interconnect Packets Input", &[&["fabric_rx_packets"]]),
    ],
    &[
        metric("RAPL Package Power", "W", Total, &[&["package"]]),
        metric("RAPL DRAM Power", "W", Total, &[&["dram"]]),
        metric("RAPL Core Power", "W", Total, &[&["core"]]),
        metric("RAPL Uncore Power", "W", Total, &[&["uncore"]]),
    ],
];

/// Series of one node by figure and socket, which is empty for the whole node.
struct NodeFigures {
    host: String,
    series: Vec<(&'static str, String, Series)>,
}

fn read(run: &StoredRun, span: Span) -> Vec<NodeFigures> {
    for_each_host(&run.hosts, |host| {
        let request = |figures: &'static [Figure], groups| {
            Request::new(figures, groups, OverTimes::new(span, figures))
        };
        let mut requests = [
            request(OF_NODES, Groups::All),
            request(OF_SOCKETS, Groups::Columns(vec!["socket"])),
        ];
        // What cannot be read is among the problems of the summary.
        scan(run, host, &mut requests);
        let mut series = Vec::new();
        for request in requests {
            for (figure, named) in request.figures.iter().zip(request.values.series) {
                let known = named.into_iter().filter(|(_, series)| !series.is_empty());
                series.extend(known.map(|(group, series)| (figure.name, group, series)));
            }
        }
        NodeFigures {
            host: host.name.clone(),
            series,
        }
    })
}

impl Metric {
    fn scale(&self) -> Scale {
        Scale {
            unit: Unit::Named(self.unit),
            per_second: false,
        }
    }

    /// Name of a file: prefix and suffix around the name.
    fn stem(&self, prefix: &str, suffix: &str) -> String {
        format!("{prefix}{}_{suffix}", self.name.replace(' ', "_"))
    }

    /// Values of each node and socket, with their mean.
    fn lines(&self, nodes: &[NodeFigures]) -> Vec<(Line, f64)> {
        let found = self.figures.iter().find(|figures| {
            let mut all = nodes.iter().flat_map(|node| &node.series);
            all.any(|(name, ..)| figures.contains(name))
        });
        let Some(figures) = found else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        for node in nodes {
            let of_figures = node
                .series
                .iter()
                .filter(|(name, ..)| figures.contains(name));
            let mut groups: Vec<&str> = of_figures.map(|(_, group, _)| group.as_str()).collect();
            groups.sort_unstable();
            groups.dedup();
            for group in groups {
                let series: Vec<_> = node
                    .series
                    .iter()
                    .filter(|(name, of, _)| figures.contains(name) && of == group)
                    .map(|(.., series)| series)
                    .collect();
                let label = match group {
                    "" => node.host.clone(),
                    socket => format!("{} socket {socket}", node.host),
                };
                // Several figures have no common samples.
                let known = match series.as_slice() {
                    [only] => only.mean().zip(only.max()),
                    _ => None,
                };
                let mut line = line(label, self.scaled(summed(&series)));
                let values: Vec<f64> = line.means.iter().flatten().copied().collect();
                let (mean, max) = known.map_or_else(
                    || {
                        let sum = values.iter().sum::<f64>();
                        let max = values.iter().copied().fold(0.0, f64::max);
                        (sum / values.len().max(1) as f64, max)
                    },
                    |(mean, max)| (mean * self.factor, max * self.factor),
                );
                line.max = Some(max);
                lines.push((line, mean));
            }
        }
        lines
    }

    fn scaled(&self, values: Vec<Option<f64>>) -> Vec<Option<f64>> {
        let scaled = values
            .into_iter()
            .map(|value| value.map(|value| value * self.factor));
        scaled.collect()
    }

    /// The plot of each node and that of all together.
    fn figures(&self, nodes: &[NodeFigures]) -> Option<[Picture; 2]> {
        let lines = self.lines(nodes);
        if lines.is_empty() {
            return None;
        }
        let mean = lines.iter().map(|(_, mean)| mean).sum::<f64>() / lines.len() as f64;
        let lines: Vec<_> = lines.into_iter().map(|(line, _)| line).collect();
        let largest = lines.iter().filter_map(|line| line.max).fold(0.0, f64::max);
        let title = format!(
            "Average {0}/Node: {mean:.3} {1}, Max {0}/Node: {largest:.3} {1}",
            self.name, self.unit
        );
        let all = combined(&lines, self.combination);
        let (prefix, label) = match self.combination {
            Average => ("Average_", "Average of all nodes"),
            Total => ("Total_", "Total of all nodes"),
        };
        let plot = |lines| Plot {
            scale: self.scale(),
            lines,
            stacked: false,
            limit: None,
            axis: if self.is_logarithmic {
                Axis::Logarithmic
            } else {
                Axis::Linear
            },
        };
        Some([
            Picture::new(
                &self.stem(prefix, "all_nodes"),
                &title,
                plot(vec![line(label.to_owned(), all)]),
            ),
            Picture::new(&self.stem("", "per_node"), &title, plot(lines)),
        ])
    }
}

fn line(label: String, means: Vec<Option<f64>>) -> Line {
    Line {
        label,
        means,
        ..Line::default()
    }
}

/// All lines by time: those that have a value.
fn combined(lines: &[Line], combination: Combination) -> Vec<Option<f64>> {
    let length = lines.first().map_or(0, |line| line.means.len());
    let at = |index: usize| {
        let values: Vec<f64> = lines.iter().filter_map(|line| line.means[index]).collect();
        let sum = values.iter().sum::<f64>();
        (!values.is_empty()).then(|| match combination {
            Average => sum / values.len() as f64,
            Total => sum,
        })
    };
    (0..length).map(at).collect()
}

const TITLES: [&str; 8] = [
    "CPU and memory, all nodes",
    "Network, all nodes",
    "Interconnect, all nodes",
    "Power, all nodes",
    "CPU and memory per node",
    "Network per node",
    "Interconnect per node",
    "Power per node",
];
const IDS: [&str; 8] = [
    "page1", "page2", "page3", "page4", "page5", "page6", "page7", "page8",
];

/// The pages: first the plots of all nodes together, then those of each node.
pub fn sections(run: &StoredRun, summary: &Summary) -> (Vec<Section>, Span) {
    let span = over_time::span_of(run, summary);
    let nodes = read(run, span);
    let mut pages: [Vec<Part>; 8] = Default::default();
    for (page, metrics) in PAGES.iter().enumerate() {
        for [all, each] in metrics.iter().filter_map(|metric| metric.figures(&nodes)) {
            pages[page].push(Part::Picture(all));
            pages[page + PAGES.len()].push(Part::Picture(each));
        }
    }
    let named = IDS.into_iter().zip(TITLES).zip(pages);
    let sections = named.filter_map(|((id, title), parts)| Section::new(id, title, parts));
    (sections.collect(), span)
}

/// The job report: a page of A4 for each section.
pub fn html(reports: &[Report], appearance: &Appearance) -> String {
    let mut body = String::new();
    for report in reports {
        let identity = &report.summary.identity;
        let header = format!(
            "Job ID: {} User: {} # Nodes: {} Date: {}",
            identity.job_id.as_deref().unwrap_or(&identity.run_id),
            identity.user.as_deref().unwrap_or("–"),
            report.summary.nodes.len(),
            identity.start.map(wall_clock).unwrap_or_default(),
        );
        for section in &report.sections {
            body += &page(&header, section, &report.frame, appearance);
        }
    }
    let style = include_str!("perfmon.css").to_owned() + &file::title_style(appearance);
    Document {
        title: "Job report".to_owned(),
        body,
        style: &style,
        is_interactive: false,
        footer: "times since the start of the run",
    }
    .html()
}

fn page(header: &str, section: &Section, frame: &Frame, appearance: &Appearance) -> String {
    let figures = section.pictures().map(|figure| {
        let svg = file::element(&*figure.chart, &figure.title, frame, appearance);
        format!("<figure>{svg}</figure>")
    });
    format!(
        "<section class=\"page\"><p class=\"job\">{}</p>{}</section>",
        escaped(header),
        figures.collect::<String>()
    )
}
