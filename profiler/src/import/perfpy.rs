//! perf.py: the reports of each node, of perf.py itself or of `profiler export`.

use std::path::Path;

use serde_json::{Map, Value as Json};

use super::{
    Host, Hosts, Row, invalid, micros,
    quantity::{set, set_real, set_text},
    read,
};
use crate::{failure::Failure, sources::netdev};

/// What perf.py does not know of the nodes. Without it, its percentages cannot be converted to times
/// and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nodes {
    /// CPUs of each node.
    pub cpus: Option<u32>,
    /// Memory of each node, bytes.
    pub memory: Option<u64>,
}

/// Device of sums over all physical devices.
const ALL: &str = "all";
const PHYSICAL: &str = "physical";

/// A device with its totals: key of a report, column of the increase, and that of the timeline.
struct Device {
    table: &'static str,
    name: &'static str,
    kind: &'static str,
    totals: [(&'static str, &'static str, Option<&'static str>); 2],
}

const DEVICES: [Device; 3] = [
    Device {
        table: "disk",
        name: ALL,
        kind: PHYSICAL,
        totals: [
            (
                "disk_io_read_mb",
                "read_bytes",
                Some("node_block_read_bytes"),
            ),
            (
                "disk_io_write_mb",
                "write_bytes",
                Some("node_block_write_bytes"),
            ),
        ],
    },
    Device {
        table: "netdev",
        name: "lo",
        kind: netdev::LOOPBACK,
        totals: [
            ("net_io_lo_sent_mb", "tx_bytes", None),
            ("net_io_lo_recv_mb", "rx_bytes", None),
        ],
    },
    Device {
        table: "netdev",
        name: ALL,
        kind: PHYSICAL,
        totals: [
            ("net_io_ext_sent_mb", "tx_bytes", Some("node_net_tx_bytes")),
            ("net_io_ext_recv_mb", "rx_bytes", Some("node_net_rx_bytes")),
        ],
    },
];
/// Columns of CPU time that reports do not distinguish.
const OTHER_MODES: [&str; 8] = [
    "nice_ns",
    "system_ns",
    "iowait_ns",
    "irq_ns",
    "softirq_ns",
    "steal_ns",
    "guest_ns",
    "guest_nice_ns",
];
const MIB: f64 = 1_048_576.0;

/// Reads the reports. The names of the nodes are in `nodes.json` beside them, which only exports have.
///
/// # Errors
///
/// When the file cannot be read or is not one of perf.py.
pub fn hosts(path: &Path, nodes: Nodes) -> Result<Hosts, Failure> {
    let document = json(path)?;
    let of_nodes = document
        .as_object()
        .filter(|nodes| !nodes.is_empty() && nodes.values().all(Json::is_array))
        .ok_or_else(|| invalid(path, "no lists of reports: not a file of perf.py"))?;
    let names_file = path.with_file_name("nodes.json");
    let names = if names_file.exists() {
        json(&names_file)?
    } else {
        Json::Null
    };
    let mut hosts = Hosts::new();
    for (number, reports) in of_nodes {
        let name = names[number].as_str();
        let mut node = Node {
            nodes,
            // As in exports.
            begins_at_zero: names.is_object(),
            before: None,
            host: Host::default(),
        };
        let reports = reports.as_array().into_iter().flatten();
        let reports: Option<Vec<_>> = reports.map(Report::of).collect();
        let mut reports = reports
            .ok_or_else(|| invalid(path, format!("node {number}: a report without a timestamp")))?;
        reports.sort_by_key(|report| report.ts);
        reports.dedup_by_key(|report| report.ts);
        node.add(&reports);
        hosts.insert(
            name.map_or_else(|| format!("node{number}"), str::to_owned),
            node.host,
        );
    }
    Ok(hosts)
}

fn json(path: &Path) -> Result<Json, Failure> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| invalid(path, format!("not a file of perf.py: {error}")))
}

#[derive(Clone)]
struct Report {
    /// µs since 1970-01-01 UTC.
    ts: i64,
    values: Map<String, Json>,
}

impl Report {
    fn of(report: &Json) -> Option<Self> {
        Some(Self {
            ts: micros(report["timestamp"].as_f64()?)?,
            values: report.as_object()?.clone(),
        })
    }

    fn value(&self, key: &str) -> Option<f64> {
        self.values.get(key)?.as_f64().filter(|value| *value >= 0.0)
    }
}

struct Node {
    nodes: Nodes,
    /// Whether the totals before the first report are 0; otherwise they are unknown.
    begins_at_zero: bool,
    /// The report before the next one.
    before: Option<Report>,
    host: Host,
}

impl Node {
    fn add(&mut self, reports: &[Report]) {
        let nominal = match reports {
            [first, second, ..] => second.ts - first.ts,
            _ => 0,
        };
        let mut last = None;
        for report in reports {
            let interval = last.map_or(nominal, |last| report.ts - last);
            last = Some(report.ts);
            let mut timeline = Row::new();
            self.add_totals(report, interval, &mut timeline);
            self.add_shares(report, interval, &mut timeline);
            if !timeline.is_empty() {
                self.host
                    .add("timeline", report.ts, Some(interval), timeline);
            }
            self.host.includes(report.ts - interval, report.ts);
            self.before = Some(report.clone());
        }
    }

    /// Increases of totals; unknown if a total has decreased.
    fn add_totals(&mut self, report: &Report, interval: i64, timeline: &mut Row) {
        let increase = |key: &str| {
            let before = match &self.before {
                Some(before) => before.value(key)?,
                None if self.begins_at_zero => 0.0,
                None => return None,
            };
            let now = report.value(key)?;
            (now >= before).then_some((now - before) * MIB)
        };
        for Device {
            table,
            name,
            kind,
            totals,
        } in DEVICES
        {
            let mut row = Row::new();
            for (key, column, of_timeline) in totals {
                set(&mut row, column, increase(key));
                if let Some(column) = of_timeline {
                    set(timeline, column, increase(key));
                }
            }
            if row.is_empty() {
                continue;
            }
            set_text(&mut row, "device", Some(name));
            set_text(&mut row, "kind", Some(kind));
            if table == "disk" {
                row.insert("partition".into(), false.into());
            }
            self.host.add(table, report.ts, Some(interval), row);
        }
    }

    /// Times and bytes of which reports have percentages.
    fn add_shares(&mut self, report: &Report, interval: i64, timeline: &mut Row) {
        let mut row = Row::new();
        let share = |key: &str| report.value(key).filter(|percent| *percent <= 100.0);
        if let (Some(cpus), Some(percent)) = (self.nodes.cpus, share("cpu_pct_per_cpu_avg")) {
            let all = f64::from(cpus) * interval as f64 * 1e3;
            // Of all modes, which reports do not distinguish.
            set(&mut row, "user_ns", Some(all * percent / 100.0));
            set(&mut row, "idle_ns", Some(all * (1.0 - percent / 100.0)));
            for column in OTHER_MODES {
                row.insert(column.into(), 0.into());
            }
            row.insert("cpus".into(), cpus.into());
            set_real(
                timeline,
                "node_cpu_percent",
                Some(percent * f64::from(cpus)),
            );
        }
        if let (Some(total), Some(percent)) = (self.nodes.memory, share("mem_percent")) {
            let used = total as f64 * percent / 100.0;
            row.insert("memory_total".into(), total.into());
            set(&mut row, "memory_used", Some(used));
            set(timeline, "node_memory_bytes", Some(used));
        }
        if !row.is_empty() {
            self.host.add("system", report.ts, Some(interval), row);
        }
    }
}
