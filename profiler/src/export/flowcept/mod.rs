//! Flowcept: JSON lines, the workflow and a task for each region, phase and event, with telemetry at
//! its start and its end.

pub mod keys;
mod machine;
mod node;
mod process;
mod tasks;

use std::{io::Write, path::Path};

use serde_json::{Map, Value, json};

use super::{
    output::failed,
    series::Series,
    spool::{Place, Spool},
};
use crate::{analysis::stored_run::StoredRun, failure::Failure};

/// Writes the records. `directory` is for temporary files. Returns the files that cannot be read, with
/// the reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(
    series: &Series<'_>,
    directory: &Path,
    output: &mut dyn Write,
) -> Result<Vec<String>, Failure> {
    let run = series.run;
    let mut failures = Vec::new();
    let mut machines = Map::new();
    let mut spool = Spool::new(directory).map_err(failed)?;
    // Start, and the text.
    let mut tasks: Vec<(i64, Place)> = Vec::new();
    for host in run.hosts.iter() {
        let of_host = tasks::OfHost {
            run,
            host,
            selected: series.selection.on(run, host, &mut failures),
        };
        let machine = of_host.write(&mut spool, &mut tasks, &mut failures)?;
        machines.insert(host.name.clone(), machine);
    }
    tasks.sort_by_key(|(start, _)| *start);
    let mut workflow = workflow(run, &machines);
    let status = std::mem::replace(&mut workflow["status"], json!("RUNNING"));
    writeln!(output, "{workflow}").map_err(failed)?;
    for (_, place) in tasks {
        let task = spool.get(place).map_err(failed)?;
        writeln!(output, "{task}").map_err(failed)?;
    }
    workflow["status"] = status;
    writeln!(output, "{workflow}").map_err(failed)?;
    failures.sort_unstable();
    failures.dedup();
    Ok(failures)
}

/// The record of the run, with its final status.
fn workflow(run: &StoredRun, machines: &Map<String, Value>) -> Value {
    let (start, end) = run.start_and_end();
    let labels = run.manifests().next().map(|manifest| &manifest.labels.0);
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let name = label("workflow_name").or_else(|| label("name"));
    let mut workflow = json!({
        "type": "workflow",
        "workflow_id": run.id(),
        "name": name.cloned().unwrap_or_else(|| run.id()),
        "status": status(run),
        "machine_info": machines,
        "custom_metadata": {
            "labels": labels,
            "profiler_version": run.manifests().next().map(|manifest| &manifest.version),
            "losses": run.manifests().flat_map(|manifest| &manifest.losses).collect::<Vec<_>>(),
            "counter_base": "run start",
            "telemetry": "process: reading at the mark; tree: process and descendants since the start \
                          of the region; node: interpolated between samples",
        },
    });
    for (key, label) in [
        ("campaign_id", label("campaign")),
        ("parent_workflow_id", label("parent_workflow_id")),
        ("subtype", label("subtype")),
        ("environment_id", label("env")),
    ] {
        if let Some(text) = label {
            workflow[key] = json!(text);
        }
    }
    if let Some(start) = start {
        workflow["started_at"] = seconds(start / 1000);
        workflow["utc_timestamp"] = seconds(start / 1000);
    }
    if let Some(end) = end {
        workflow["ended_at"] = seconds(end / 1000);
    }
    if let Some(manifest) = run.manifests().next() {
        workflow["user"] = json!(manifest.user);
        workflow["sys_name"] = json!("Linux");
        workflow["used"] = json!({"command": manifest.command, "target": manifest.target});
        workflow["conf"] = manifest.config.clone();
    }
    workflow
}

fn status(run: &StoredRun) -> &'static str {
    if run.is_unfinished() {
        "RUNNING"
    } else if run.has_failed() {
        "ERROR"
    } else {
        "FINISHED"
    }
}

/// s since 1970-01-01 UTC; `ts` in µs.
fn seconds(ts: i64) -> Value {
    json!(ts as f64 / 1e6)
}
