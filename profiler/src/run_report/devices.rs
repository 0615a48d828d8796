//! Plots of each GPU, disk and network interface.

use super::{
    heat_maps::{heat_map, row},
    over_time::OverTime,
    plots::{self, DeviceKind, scale},
    section::{Part, Picture},
    subjects::device_subject,
};
use crate::charts::{
    Axis,
    heat_map::Row,
    lines::{Line, Plot},
};

/// Lines of a plot. More devices are a heat map.
const LINES: usize = 8;

/// The plots of a kind of devices.
pub fn devices(kind: &DeviceKind, over_time: &OverTime) -> Vec<Part> {
    let plots = kind.plots.iter();
    let drawn = plots.filter_map(|(name, title)| {
        let rows = rows(kind, name, over_time);
        let sql = plots::figure(name).map(|figure| figure.sql_over_time(&[kind.column]));
        if rows.len() > LINES {
            heat_map(&plot_name(name), title, scale(name), rows, None, sql)
        } else {
            lines(name, title, rows, sql)
        }
    });
    drawn.collect()
}

fn plot_name(figure: &str) -> String {
    figure.replace('_', "-")
}

fn rows(kind: &DeviceKind, name: &str, over_time: &OverTime) -> Vec<Row> {
    let several = over_time.hosts.len() > 1;
    let mut rows = Vec::new();
    for host in &over_time.hosts {
        for (device, series) in host.devices.get(name).into_iter().flatten() {
            let is_idle = series.max().is_none_or(|max| max == 0.0);
            if series.is_empty() || is_idle && !kind.with_idle {
                continue;
            }
            let label = if several {
                format!("{} {device}", host.name)
            } else {
                device.clone()
            };
            let subject = device_subject(kind, &host.name, device);
            rows.push(row(label, Some(subject), series.means()));
        }
    }
    rows
}

fn lines(name: &'static str, title: &str, rows: Vec<Row>, sql: Option<String>) -> Option<Part> {
    let lines = rows.into_iter().map(|row| Line {
        label: row.label,
        subject: row.subject,
        figure: name,
        means: row.values,
        ..Line::default()
    });
    let chart = Plot {
        scale: scale(name),
        lines: lines.collect(),
        stacked: false,
        limit: None,
        axis: Axis::Linear,
    };
    (!chart.lines.is_empty()).then(|| {
        Part::Picture(Picture {
            sql: sql.into_iter().collect(),
            ..Picture::new(&plot_name(name), title, chart)
        })
    })
}
