//! perf.py: a list of reports for each node, by number, and the names of the nodes in `nodes.json`.

use std::{fmt::Write as _, io::Write};

use serde_json::{Value, json};

use super::{
    output::failed,
    series::{Column, Running, Series},
};
use crate::{
    analysis::{catalog::PERFPY, figure::Figure, stored_run::StoredRun},
    failure::Failure,
};

/// Keys of a report, each with its figure; totals are those since the start of the run.
const KEYS: [(&str, &str); 11] = [
    ("cpu_pct_per_cpu_avg", "max_t_cpu_pct_per_cpu_avg"),
    ("cpu_pct_per_cpu_min", "max_t_cpu_pct_per_cpu_min"),
    ("cpu_pct_per_cpu_max", "max_t_cpu_pct_per_cpu_max"),
    ("mem_percent", "max_t_mem_percent"),
    ("disk_usage_percent", "max_t_disk_usage_percent"),
    ("disk_io_read_mb", "total_disk_io_read_mb"),
    ("disk_io_write_mb", "total_disk_io_write_mb"),
    ("net_io_lo_sent_mb", "total_net_io_lo_sent_mb"),
    ("net_io_ext_sent_mb", "total_net_io_ext_sent_mb"),
    ("net_io_lo_recv_mb", "total_net_io_lo_recv_mb"),
    ("net_io_ext_recv_mb", "total_net_io_ext_recv_mb"),
];
/// Writes the reports of all nodes. Returns the files that cannot be read, with the reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(series: &Series<'_>, output: &mut dyn Write) -> Result<Vec<String>, Failure> {
    let figures = KEYS.iter().filter_map(|(_, name)| figure(name));
    let columns: Vec<Column> = figures.map(Column::of).collect();
    let mut failures = Vec::new();
    let mut put = |text: &str| output.write_all(text.as_bytes()).map_err(failed);
    put("{")?;
    for (number, host) in series.run.hosts.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        put(&format!("{comma}\n    \"{number}\": ["))?;
        let mut running = Running::new(&columns);
        let mut separator = "";
        series.of_host(host, &columns, &mut failures, |ts, sample| {
            running.add(sample);
            let report = report(ts, &running.values);
            put(&format!("{separator}\n        {report}"))?;
            separator = ",";
            Ok(())
        })?;
        put("\n    ]")?;
    }
    put("\n}\n")?;
    Ok(failures)
}

/// Names of the nodes by number.
pub fn nodes(run: &StoredRun) -> Value {
    let hosts = run.hosts.iter().enumerate();
    let named = hosts.map(|(number, host)| (number.to_string(), json!(host.name)));
    Value::Object(named.collect())
}

fn figure(name: &str) -> Option<Figure> {
    PERFPY.iter().find(|figure| figure.name == name).copied()
}

/// A report as JSON, with the keys in the order of perf.py.
fn report(ts: i64, values: &[f64]) -> String {
    let mut report = String::from("{");
    for ((key, _), value) in KEYS.into_iter().zip(values) {
        // NaN becomes null.
        let _ = write!(report, "\"{key}\":{},", json!(value));
    }
    let _ = write!(report, "\"timestamp\":{}}}", json!(ts as f64 / 1e6));
    report
}
