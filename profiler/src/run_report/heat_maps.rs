//! Heat maps: CPUs, latencies, nodes and ranks over time.

use std::collections::BTreeMap;

use super::{
    over_time::{OfHost, OverTime},
    plots::{self, scale},
    section::{Part, Picture},
    subjects::{rank_number, ranks},
};
use crate::{
    analysis::{
        figure::{Figure, Unit},
        series::Series,
        summary::{node_subject, rank_subject},
    },
    charts::{
        Scale,
        heat_map::{HeatMap, Row, Shading},
    },
};

/// Utilization of each CPU.
pub fn cpus(over_time: &OverTime) -> Option<Part> {
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
        plots::figure("cpu_busy").map(|figure| figure.sql_over_time(&["cpu"])),
    )
}

/// How long operations took: their number by octave of the duration.
pub fn latencies(kind: &str, title: &str, over_time: &OverTime) -> Option<Part> {
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

pub fn row(label: String, subject: Option<String>, values: Vec<Option<f64>>) -> Row {
    Row {
        label,
        subject,
        values,
    }
}

/// A heat map, if it has several rows.
pub fn heat_map(
    name: &str,
    title: &str,
    scale: Scale,
    rows: Vec<Row>,
    max: Option<f64>,
    sql: Option<String>,
) -> Option<Part> {
    let chart = HeatMap {
        scale,
        rows,
        max,
        shading: Shading::Linear,
    };
    (chart.rows.len() > 1).then(|| {
        Part::Picture(Picture {
            sql: sql.into_iter().collect(),
            ..Picture::new(name, title, chart)
        })
    })
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

/// The target by node and rank.
pub fn nodes(over_time: &OverTime) -> Vec<Part> {
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
            let sql = plots::figure(name).map(|figure| figure.sql_over_time(&[]));
            parts.extend(heat_map(&plot, &title, scale(name), rows, None, sql));
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
            let sql = plots::figure(name).map(Figure::sql_of_ranks);
            parts.extend(heat_map(&plot, &title, scale(name), rows, None, sql));
        }
    }
    parts
}
