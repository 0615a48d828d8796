//! `cpu_metrics`: the processes of the target, and the node.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{
    Export,
    keys::{Declared, Kind, OF_FABRIC, OF_FILES, OF_NETWORK, OF_TARGET, figure, find},
    samples::Block,
};
use crate::{
    analysis::{
        figure::Figure,
        perfmon::{OF_DOMAINS, OF_NODES, OF_PROCESSES},
        rows::{ProcessKey, Texts, integers, numbers, processes, times},
        scan::SEPARATOR,
        stored_run::{StoredHost, StoredRun},
    },
    export::series::{Column, groups},
    support::units::rfc3339,
};

/// Read bandwidth of memory, of the first that the node has.
const BANDWIDTHS: [(&[Figure], &str); 3] = [
    (OF_PROCESSES, "llc_all_bandwidth"),
    (OF_NODES, "read_bandwidth"),
    (OF_NODES, "node_read_bandwidth"),
];

const DOMAINS: &[&str] = &["domain", "socket", "die"];

/// A block for each host.
pub fn blocks(export: &mut Export<'_>) -> Vec<Block> {
    let run = export.run;
    let hosts = run.hosts.iter().enumerate();
    let blocks = hosts.map(|(number, host)| block(run, number, host, &mut export.failures));
    blocks.collect()
}

fn block(run: &StoredRun, number: usize, host: &StoredHost, failures: &mut Vec<String>) -> Block {
    let of = |name: &str| Column::of(figure(name));
    let mut block = Block::new(number, host.name.clone(), of("samples"));
    let has = |table: &str| host.tables.contains(table);
    let fabric: &[Declared] = if has("fabric") { &OF_FABRIC } else { &[] };
    let declared = OF_TARGET
        .iter()
        .chain(&OF_NETWORK)
        .chain(fabric)
        .chain(&OF_FILES);
    for (path, header, name, kind) in declared {
        block.add(path, header, *kind, of(name));
    }
    let bandwidth = BANDWIDTHS.iter().find(|(list, name)| {
        let figure = find(list, name);
        !groups(run, host, &figure, &["metric"], failures).is_empty()
    });
    if let Some((_, name)) = bandwidth {
        let header = "Memory (read) bandwidth [MiB/s]";
        block
            .add("memory_bw", header, Kind::Gauge, of(name))
            .frame_factor = 1.0 / 1_048_576.0;
    }
    let energy = find(OF_DOMAINS, "energy_uj");
    for group in groups(run, host, &energy, DOMAINS, failures) {
        let parts: Vec<_> = group.split(SEPARATOR).collect();
        let (key, words) = match parts[..] {
            [domain, socket, die] => (
                format!("{domain}-{socket}-die-{die}"),
                format!("{domain} {socket} die {die}"),
            ),
            _ => (parts.join("-"), parts.join(" ")),
        };
        let path = vec!["rapl_powercap".to_owned(), key];
        let header = format!("RAPL {words} [uJ]");
        let column = Column::of_group(energy, DOMAINS, &group);
        block.add_at(path, Some(header), Kind::Total, column);
    }
    block
}

/// Private memory of all processes at each sample, bytes, by time (µs since 1970-01-01 UTC). It is read
/// less often than other values: each process keeps the last one. Unknown if that of one process is.
pub fn private_memory(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> HashMap<i64, f64> {
    let mut sums: HashMap<i64, f64> = HashMap::new();
    let mut last: HashMap<ProcessKey, f64> = HashMap::new();
    let columns = ["ts", "pid", "start_ts", "tid", "uss"];
    let read = run.read("usage", host, &columns, |batch| {
        let threads = integers(batch, "tid");
        let values = numbers(batch, "uss");
        let times = times(batch, "ts");
        for (row, key) in processes(batch).into_iter().enumerate() {
            if let (Some(key), Some(ts), None) = (key, times[row], threads[row]) {
                let kept = last.entry(key).or_insert(f64::NAN);
                if !values[row].is_nan() {
                    *kept = values[row];
                }
                *sums.entry(ts).or_default() += *kept;
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    sums
}

/// The first process of the target, and its descendants as texts of JSON.
pub fn processes_of(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> [(String, Value); 2] {
    const TEXTS: [&str; 4] = ["comm", "exe", "cmdline", "cgroup"];
    const NUMBERS: [&str; 5] = ["pid", "ppid", "uid", "exit_code", "exit_signal"];
    let columns = [&TEXTS[..], &NUMBERS, &["start_ts", "end_ts"]].concat();
    let mut all: Vec<(i64, Value)> = Vec::new();
    let read = run.read("process", host, &columns, |batch| {
        let texts = TEXTS.map(|name| Texts::of(batch, name));
        let numbers = NUMBERS.map(|name| integers(batch, name));
        let lives = ["start_ts", "end_ts"].map(|name| times(batch, name));
        for row in 0..batch.num_rows() {
            let mut object = Map::new();
            for (name, column) in TEXTS.iter().zip(&texts) {
                object.insert((*name).to_owned(), json!(column.get(row)));
            }
            for (name, column) in NUMBERS.iter().zip(&numbers) {
                object.insert((*name).to_owned(), json!(column[row]));
            }
            for (name, column) in ["start_ts", "end_ts"].into_iter().zip(&lives) {
                let time = column[row].map(|ts| rfc3339(ts.saturating_mul(1000)));
                object.insert(name.to_owned(), json!(time));
            }
            all.push((lives[0][row].unwrap_or(i64::MIN), Value::Object(object)));
        }
    });
    failures.extend(read.err().into_iter().flatten());
    all.sort_by_key(|(start, _)| *start);
    let mut all = all.into_iter().map(|(_, object)| object);
    let first = all.next().unwrap_or_else(|| json!({}));
    let others: Vec<_> = all.map(|object| object.to_string()).collect();
    [
        ("parent_proc_md".to_owned(), first),
        ("child_proc_md".to_owned(), json!(others)),
    ]
}
