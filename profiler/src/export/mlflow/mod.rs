//! MLflow: metrics of nodes and of the system, parameters, tags and artifacts of a run on a tracking
//! server.

mod client;

use std::{collections::BTreeMap, fs::File, time::Duration};

pub use self::client::Client;
use self::client::{Metrics, Run};
use super::series::{Column, Running, Series, groups};
use crate::{
    analysis::{
        catalog::{BUSY_PERCENT, INTERFACES, NODE, PERFPY},
        figure::{
            Condition::{self, Is, IsNull},
            Figure, OverRows, OverTime,
            Value::{self, Column as Of, Ratio, Scaled},
        },
        perfmon::OF_PROCESSES,
        rows::{Texts, numbers},
        stored_run::{StoredHost, StoredRun},
        summary::Summary,
    },
    failure::{Failure, Reason},
};

/// Samples of a node, unless the time between them is given: more than its plots can show.
const MAX_SAMPLES: f64 = 1000.0;

/// Metrics of a table that MLflow knows: name, over time, value.
type Known = &'static [(&'static str, OverTime, Value)];

const SYSTEM: Known = &[
    ("cpu_utilization_percentage", OverTime::Mean, BUSY_PERCENT),
    (
        "system_memory_usage_megabytes",
        OverTime::Mean,
        Scaled(1e-6, &Of("memory_used")),
    ),
    (
        "system_memory_usage_percentage",
        OverTime::Mean,
        Scaled(100.0, &Ratio(&["memory_used"], &["memory_total"])),
    ),
];
const DISK: Known = &[
    (
        "disk_usage_percentage",
        OverTime::Mean,
        Scaled(100.0, &Ratio(&["used"], &["used", "available"])),
    ),
    (
        "disk_usage_megabytes",
        OverTime::Mean,
        Scaled(1e-6, &Of("used")),
    ),
    (
        "disk_available_megabytes",
        OverTime::Mean,
        Scaled(1e-6, &Of("available")),
    ),
];
const NETWORK: Known = &[
    (
        "network_receive_megabytes",
        OverTime::Sum,
        Scaled(1e-6, &Of("rx_bytes")),
    ),
    (
        "network_transmit_megabytes",
        OverTime::Sum,
        Scaled(1e-6, &Of("tx_bytes")),
    ),
];
const GPU: Known = &[
    ("utilization_percentage", OverTime::Mean, Of("utilization")),
    (
        "memory_usage_megabytes",
        OverTime::Mean,
        Scaled(1e-6, &Of("memory_used")),
    ),
    (
        "memory_usage_percentage",
        OverTime::Mean,
        Scaled(100.0, &Ratio(&["memory_used"], &["memory_total"])),
    ),
    ("power_usage_watts", OverTime::Mean, Of("power_w")),
    (
        "power_usage_percentage",
        OverTime::Mean,
        Scaled(100.0, &Ratio(&["power_w"], &["power_limit_w"])),
    ),
];

/// Where a run goes.
pub struct Target<'a> {
    pub client: &'a Client,
    /// Identifier of a run that exists; otherwise one is created.
    pub run: Option<&'a str>,
    /// Name of the experiment of a new run.
    pub experiment: &'a str,
    /// Text before the names of metrics and parameters.
    pub prefix: &'a str,
    /// Whether a complete run of an earlier export is replaced.
    pub replaces: bool,
}

/// A run that was logged.
pub struct Logged {
    /// Identifier of the run on the server.
    pub id: String,
    /// Files that cannot be read, with the reason.
    pub failures: Vec<String>,
}

/// Logs a run. A run that was created is deleted if this fails. One that remains nevertheless, because
/// the server or this process has died, is completed by the next export.
///
/// # Errors
///
/// When the server refuses, cannot be reached, or has the run from an earlier export.
pub fn write(
    series: &Series<'_>,
    summary: &Summary,
    target: &Target<'_>,
    artifacts: Vec<(&str, File)>,
) -> Result<Logged, Failure> {
    let client = target.client;
    let (start, end) = series.run.start_and_end();
    let millis = |ns: i64| ns / 1_000_000;
    let name = series.run.id();
    let mut replaced = None;
    let run = if let Some(id) = target.run {
        client.run(id)?
    } else {
        let experiment = client.experiment(target.experiment)?;
        let create = || client.create_run(&experiment, &name, millis(start.unwrap_or(0)));
        match client.find_run(&experiment, &name)? {
            Some((interrupted, false)) => interrupted,
            Some((complete, true)) if target.replaces => {
                replaced = Some(complete);
                create()?
            }
            Some((complete, true)) => {
                let server = client.server();
                let message = format!("{server}: run {} exists; --force replaces it", complete.id);
                return Err(Failure::new(Reason::Output, message));
            }
            None => create()?,
        }
    };
    let is_new = target.run.is_none();
    let logged = log(series, summary, target, &run, artifacts).and_then(|failures| {
        if is_new {
            client.end_run(&run, status(series.run), end.map(millis))?;
        }
        if let Some(replaced) = &replaced {
            client.delete_run(replaced)?;
        }
        Ok(failures)
    });
    let failures = logged.map_err(|mut failure| {
        if is_new && let Err(why) = client.delete_run(&run) {
            let remains = format!("; run {} remains, incomplete: {}", run.id, why.message);
            failure.message.push_str(&remains);
        }
        failure
    })?;
    Ok(Logged {
        id: run.id,
        failures,
    })
}

fn log(
    series: &Series<'_>,
    summary: &Summary,
    target: &Target<'_>,
    run: &Run,
    artifacts: Vec<(&str, File)>,
) -> Result<Vec<String>, Failure> {
    let mut failures = Vec::new();
    for (name, file) in artifacts {
        target.client.put(run, name, file)?;
    }
    let (params, tags) = facts(series.run, target, &mut failures);
    target.client.describe(run, &params, &tags)?;
    let mut metrics = target.client.metrics(run);
    let (start, end) = series.run.start_and_end();
    let ts = end.or(start).unwrap_or(0) / 1000;
    for (step, node) in summary.nodes.iter().enumerate() {
        let own = NODE.iter().map(|figure| (figure, &node.node));
        let theirs = PERFPY.iter().map(|figure| (figure, &node.perfpy));
        for (figure, values) in own.chain(theirs) {
            if let Some(value) = values.get(figure.name) {
                let name = format!("{}{}", target.prefix, figure.name);
                metrics.add(&plain(&name), value, ts, step)?;
            }
        }
    }
    for host in series.run.hosts.iter() {
        system(series, host, &mut metrics, &mut failures)?;
    }
    metrics.send()?;
    failures.sort_unstable();
    failures.dedup();
    Ok(failures)
}

/// Metrics of the system at each sample, with MLflow's names.
fn system(
    series: &Series<'_>,
    host: &StoredHost,
    metrics: &mut Metrics<'_>,
    failures: &mut Vec<String>,
) -> Result<(), Failure> {
    // With several nodes, each has a name, as in MLflow.
    let node = match &*series.run.hosts {
        [_] => String::new(),
        _ => format!("{}/", host.name),
    };
    let mut names = vec![String::new()];
    let samples = OF_PROCESSES.iter().find(|figure| figure.name == "samples");
    let mut columns: Vec<_> = samples.into_iter().copied().map(Column::of).collect();
    let mut add = |prefix: &str, known: Known, table, rows, column: &dyn Fn(Figure) -> Column| {
        for (name, over_time, value) in known {
            let figure = of_table(name, *over_time, *value, table, rows);
            names.push(plain(&format!("system/{node}{prefix}{name}")));
            columns.push(column(figure));
        }
    };
    add("", SYSTEM, "system", &[], &Column::of);
    add("", DISK, "filesystem", &[Is("mount", "/")], &|figure| {
        Column::of(figure.over_rows(OverRows::Max))
    });
    add("", NETWORK, "netdev", INTERFACES, &Column::of);
    let (gpus, by): (&[Condition], &[&str]) = (&[IsNull("parent_uuid")], &["index"]);
    let exists = of_table("exists", OverTime::Mean, Value::One, "gpu", gpus);
    for index in groups(series.run, host, &exists, by, failures) {
        add(&format!("gpu_{index}_"), GPU, "gpu", gpus, &|figure| {
            Column::of_group(figure, by, &index)
        });
    }
    let mut running = Running::new(&columns);
    let mut step = 0;
    let series = Series {
        every: series.every.or_else(|| every(series.run, host)),
        ..*series
    };
    series.of_host(host, &columns, failures, |ts, sample| {
        running.add(sample);
        let values = names.iter().zip(&running.values).skip(1);
        for (name, value) in values {
            metrics.add(name, *value, ts, step)?;
        }
        step += 1;
        Ok(())
    })
}

fn of_table(
    name: &'static str,
    over_time: OverTime,
    value: Value,
    table: &'static str,
    rows: &'static [Condition],
) -> Figure {
    Figure {
        name,
        table,
        value,
        rows,
        ..Figure::SUM
    }
    .over_time(over_time)
}

/// Time between samples such that a node has not more than [`MAX_SAMPLES`].
fn every(run: &StoredRun, host: &StoredHost) -> Option<Duration> {
    let (first, last) = run.span("timeline", host)?;
    let seconds = (last - first) as f64 / 1e6;
    Some(Duration::from_secs_f64((seconds / MAX_SAMPLES).max(0.0)))
}

/// The word of MLflow for the end of a run.
fn status(run: &StoredRun) -> &'static str {
    if run.is_unfinished() {
        "KILLED"
    } else if run.has_failed() {
        "FAILED"
    } else {
        "FINISHED"
    }
}

/// Names have letters, digits and `_-. /` only.
fn plain(name: &str) -> String {
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || "_-. /".contains(*c);
    name.chars().filter(is_allowed).collect()
}

type Pairs = Vec<(String, String)>;

/// Parameters and tags: settings, labels, and the facts of the first node.
fn facts(run: &StoredRun, target: &Target<'_>, failures: &mut Vec<String>) -> (Pairs, Pairs) {
    const TEXTS: [(&str, &str); 4] = [
        ("processor", "cpu_model_name"),
        ("architecture", "architecture"),
        ("platform", "kernel_release"),
        ("system_version", "kernel_version"),
    ];
    let mut tags = BTreeMap::new();
    let mut cpus = 0.0;
    for (number, host) in run.hosts.iter().enumerate() {
        tags.insert(format!("node_{number}"), host.name.clone());
        let mut columns = vec!["threads", "max_frequency_hz", "memory_total"];
        columns.extend(TEXTS.map(|(_, column)| column));
        let read = run.read("host", host, &columns, |batch| {
            let Some(row) = batch.num_rows().checked_sub(1) else {
                return;
            };
            let [threads, frequency, memory] = ["threads", "max_frequency_hz", "memory_total"]
                .map(|name| numbers(batch, name)[row]);
            if !threads.is_nan() {
                cpus += threads;
            }
            if number > 0 {
                return;
            }
            for (key, column) in TEXTS {
                if let Some(text) = Texts::of(batch, column).get(row) {
                    tags.insert(key.to_owned(), text.to_owned());
                }
            }
            for (key, value) in [
                ("cpu_count", threads),
                // MHz, GiB.
                ("cpu_frequency", (frequency / 1e6).round()),
                (
                    "system_memory",
                    (memory / 1_073_741_824.0 * 10.0).round() / 10.0,
                ),
            ] {
                if !value.is_nan() {
                    tags.insert(key.to_owned(), value.to_string());
                }
            }
        });
        failures.extend(read.err().into_iter().flatten());
    }
    let mut params = vec![
        ("hosts".to_owned(), run.hosts.len().to_string()),
        ("cpus".to_owned(), cpus.to_string()),
    ];
    if let Some(host) = run.hosts.first() {
        tags.insert("machine".to_owned(), host.name.clone());
    }
    tags.insert("system".to_owned(), "Linux".to_owned());
    if let Some(manifest) = run.manifests().next() {
        if let Some(interval) = manifest.config["interval_ns"].as_f64() {
            params.push(("interval".to_owned(), format!("{} s", interval / 1e9)));
        }
        params.push(("profiler_version".to_owned(), manifest.version.clone()));
        tags.insert("profiler.run_id".to_owned(), run.id());
        if target.run.is_none() {
            tags.insert("mlflow.user".to_owned(), manifest.user.clone());
            let program = manifest.command.first();
            tags.extend(program.map(|name| ("mlflow.source.name".to_owned(), name.clone())));
        }
        let labels = manifest.labels.0.iter();
        tags.extend(labels.map(|(key, value)| (plain(key), value.clone())));
    }
    tags.retain(|_, value| !value.is_empty());
    for (key, _) in &mut params {
        *key = plain(&format!("{}{key}", target.prefix));
    }
    (params, tags.into_iter().collect())
}
