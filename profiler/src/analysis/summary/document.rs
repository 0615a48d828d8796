//! The summary as JSON.

use serde_json::{Map, Value, json};

use super::{
    DerivedFigure, Figures, Gpu, Node, OF_LATENCIES, OF_RANKS, OF_REGIONS, OF_TARGETS, Session,
    Summary, findings,
};
use crate::{
    analysis::{
        catalog::{
            DISKS, GPUS, LATENCIES, MOUNTS, NEIGHBOURS, NODE, PERFPY, PROCESSES, PYTYCHE,
            REGION_TIMES, REGIONS, SYSCALLS, TARGET, THREADS,
        },
        figure::Figure,
    },
    support::units::rfc3339,
};

/// Figures by name: null if the data do not have one. `partial` has the rows behind sums that are too
/// small because some rows have no value.
pub(super) fn figures(lists: &[&[Figure]], values: &Figures) -> Map<String, Value> {
    let mut map = Map::new();
    for figure in lists.iter().copied().flatten() {
        add(&mut map, figure.name, values);
    }
    map
}

fn add(map: &mut Map<String, Value>, name: &str, values: &Figures) {
    map.insert(name.to_owned(), json!(values.get(name)));
    if let Some(rows) = values.coverage(name) {
        let partial = map.entry("partial").or_insert_with(|| json!({}));
        partial[name] = json!({"rows": rows.known, "of": rows.of});
    }
}

fn add_derived(map: &mut Map<String, Value>, derived: &[DerivedFigure], values: &Figures) {
    for figure in derived {
        add(map, figure.name, values);
    }
}

/// Figures of a target with the derived ones.
fn target(values: &Figures) -> Map<String, Value> {
    let mut map = figures(&[PROCESSES, TARGET], values);
    add_derived(&mut map, &OF_TARGETS, values);
    let hours = values.get("cpu_s").map(|seconds| seconds / 3600.0);
    map.insert("cpu_hours".to_owned(), json!(hours));
    map
}

/// Figures as pytyche's `ResourceSummary` has them: rounded, and absent without a value.
fn resource_summary(values: &Figures) -> Map<String, Value> {
    const ALWAYS: [&str; 7] = [
        "peak_vram_mb",
        "gpu_util_mean_pct",
        "gpu_util_max_pct",
        "power_watts_mean",
        "power_watts_max",
        "cpu_usr_mean_pct",
        "cpu_idle_mean_pct",
    ];
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    let mut map = Map::new();
    for figure in PYTYCHE {
        let value = values.get(figure.name).map(rounded);
        if value.is_some() || ALWAYS.contains(&figure.name) {
            map.insert(figure.name.to_owned(), json!(value));
        }
    }
    map
}

/// Figures of a group with its name.
fn named(list: &[Figure], key: &str, name: &str, values: &Figures) -> Value {
    let mut map = figures(&[list], values);
    map.insert(key.to_owned(), json!(name));
    Value::Object(map)
}

fn gpu(gpu: &Gpu) -> Value {
    let mut map = figures(&[GPUS], &gpu.figures);
    map.insert("index".to_owned(), json!(gpu.index));
    map.insert("uuid".to_owned(), json!(gpu.uuid));
    map.insert("name".to_owned(), json!(gpu.name));
    map.insert("bdf".to_owned(), json!(gpu.bdf));
    Value::Object(map)
}

fn node(number: usize, node: &Node) -> Value {
    let mut values = node.node.clone();
    values.append(node.all_gpus.clone());
    let mut map = figures(&[NODE, GPUS], &values);
    map.insert("node".to_owned(), json!(number));
    map.insert("host".to_owned(), json!(node.host));
    // Figures of other tools, by their names and in their units.
    map.insert(
        "compat".to_owned(),
        json!({
            "perfpy": figures(&[PERFPY], &node.perfpy),
            "pytyche": resource_summary(&node.pytyche),
        }),
    );
    map.insert("gpus".to_owned(), node.gpus.iter().map(gpu).collect());
    map.insert("target".to_owned(), target(&node.target).into());
    map.insert("tags".to_owned(), json!(node.tags));
    Value::Object(map)
}

fn session(session: &Session) -> Value {
    json!({
        "start": rfc3339(session.start),
        "end": session.has_ended.then(|| rfc3339(session.end)),
        "seconds": session.seconds(),
        "state": session.state,
        "exit_code": session.exit_code,
        "target": session.target,
        "cpu_s": session.figures.get("cpu_s"),
    })
}

/// Name, unit, meaning and SQL of the figures.
pub fn declarations() -> Value {
    let list = |lists: &[&[Figure]], by: &[&str], derived: &[DerivedFigure]| {
        let all = lists.concat();
        let declared = all.iter().map(|figure| {
            let declaration = json!({
                "unit": figure.unit.symbol(),
                "help": figure.help,
                "sql": figure.sql(by, &all),
            });
            (figure.name.to_owned(), declaration)
        });
        let derived = derived.iter().map(|figure| {
            let declaration = json!({
                "unit": figure.unit.symbol(),
                "help": figure.help,
                "sql": figure.sql,
            });
            (figure.name.to_owned(), declaration)
        });
        declared.chain(derived).collect::<Map<_, _>>()
    };
    json!({
        "target": list(&[PROCESSES, TARGET], &[], &OF_TARGETS),
        "node": list(&[NODE, GPUS], &["host"], &[]),
        "perfpy": list(&[PERFPY], &["host"], &[]),
        "pytyche": list(&[PYTYCHE], &["host"], &[]),
        "gpu": list(&[GPUS], &["host", "bdf"], &[]),
        "mount": list(&[MOUNTS], &["mount"], &[]),
        "rank": list(&[], &["task_rank"], &OF_RANKS),
        "disk": list(&[DISKS], &["device"], &[]),
        "latency": list(&[LATENCIES], &["kind"], &OF_LATENCIES),
        "syscall": list(&[SYSCALLS], &["syscall"], &[]),
        "thread": list(&[THREADS], &["host", "pid", "tid"], &[]),
        "neighbour": list(&[NEIGHBOURS], &["comm"], &[]),
        "region": list(&[REGIONS, REGION_TIMES], &["name"], &OF_REGIONS),
    })
}

/// The JSON document of a run.
pub fn document(summary: &Summary) -> Value {
    let identity = &summary.identity;
    let groups = |name: &str, key: Value, values: &Figures| {
        let mut map = figures(&[PROCESSES], values);
        map.insert(name.to_owned(), key);
        Value::Object(map)
    };
    let processes = summary.processes.iter().map(|top| {
        let mut map = figures(&[PROCESSES], &top.figures);
        let process = &top.process;
        map.insert("host".to_owned(), json!(top.host));
        map.insert("pid".to_owned(), json!(process.key.0));
        map.insert("comm".to_owned(), json!(process.comm));
        map.insert("cmdline".to_owned(), json!(process.cmdline));
        map.insert("exit_code".to_owned(), json!(process.exit_code));
        map.insert("exit_signal".to_owned(), json!(process.exit_signal));
        Value::Object(map)
    });
    let regions = summary.regions.iter().map(|(name, values)| {
        let mut map = figures(&[REGIONS, REGION_TIMES], values);
        add_derived(&mut map, &OF_REGIONS, values);
        map.insert("name".to_owned(), json!(name));
        Value::Object(map)
    });
    let neighbours = summary.neighbours.iter();
    let neighbours = neighbours.map(|(comm, values)| named(NEIGHBOURS, "comm", comm, values));
    let disks = summary.disks.iter();
    let disks = disks.map(|(device, values)| named(DISKS, "device", device, values));
    let syscalls = summary.syscalls.iter();
    let syscalls = syscalls.map(|(name, values)| named(SYSCALLS, "syscall", name, values));
    let latencies = summary.latencies.iter().map(|(kind, values)| {
        let mut map = figures(&[LATENCIES], values);
        add_derived(&mut map, &OF_LATENCIES, values);
        map.insert("kind".to_owned(), json!(kind));
        Value::Object(map)
    });
    let threads = summary.threads.iter().map(|thread| {
        let mut map = figures(&[THREADS], &thread.figures);
        map.insert("host".to_owned(), json!(thread.host));
        map.insert("pid".to_owned(), json!(thread.pid));
        map.insert("tid".to_owned(), json!(thread.tid));
        Value::Object(map)
    });
    let losses = identity.losses.iter().map(|(host, loss)| {
        json!({"host": host, "what": loss.what, "count": loss.count, "why": loss.why})
    });
    let jobs = summary.jobs.iter();
    let ranks = summary.ranks.iter().map(|(rank, values)| {
        let mut map = figures(&[PROCESSES], values);
        add_derived(&mut map, &OF_RANKS, values);
        map.insert("rank".to_owned(), json!(rank));
        Value::Object(map)
    });
    json!({
        "run_id": identity.run_id,
        "path": identity.path,
        "state": identity.state,
        "user": identity.user,
        "scheduler": identity.scheduler,
        "job_id": identity.job_id,
        "labels": identity.labels,
        "target": identity.target,
        "command": identity.command,
        "exit_code": identity.exit_code,
        "start": identity.start.map(rfc3339),
        "end": identity.end.map(rfc3339),
        "seconds": summary.seconds(),
        "sessions": summary.sessions.iter().map(session).collect::<Vec<_>>(),
        "hosts": summary.nodes.len(),
        "findings": findings(summary),
        "total": target(&summary.target),
        "nodes": summary.nodes.iter().enumerate().map(|(number, of)| node(number, of)).collect::<Vec<_>>(),
        "jobs": jobs.map(|(job, values)| groups("job_id", json!(job), values)).collect::<Vec<_>>(),
        "ranks": ranks.collect::<Vec<_>>(),
        "top_mount": summary.top_mount.as_ref().map(|(mount, bytes)| {
            json!({"mount": mount, "mount_write_bytes": bytes})
        }),
        "disks": disks.collect::<Vec<_>>(),
        "latencies": latencies.collect::<Vec<_>>(),
        "syscalls": syscalls.collect::<Vec<_>>(),
        "threads": threads.collect::<Vec<_>>(),
        "neighbours": neighbours.collect::<Vec<_>>(),
        "regions": regions.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "losses": losses.collect::<Vec<_>>(),
        "problems": summary.problems,
    })
}
