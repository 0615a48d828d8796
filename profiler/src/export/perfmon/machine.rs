//! `meta_data.json`: facts of each node, with the names of lscpu.

use serde_json::{Map, Value, json};

use super::document::Node;
use crate::analysis::{
    rows::{Texts, numbers},
    stored_run::{StoredHost, StoredRun},
};

/// Names of lscpu with columns of `host`; numbers and texts.
const NUMBERS: [(&str, &str, f64); 11] = [
    ("CPU(s)", "threads", 1.0),
    ("Thread(s) per core", "threads_per_core", 1.0),
    ("Core(s) per socket", "cores_per_socket", 1.0),
    ("Socket(s)", "sockets", 1.0),
    ("NUMA node(s)", "numa_nodes", 1.0),
    ("CPU family", "cpu_family", 1.0),
    ("Model", "cpu_model", 1.0),
    ("Stepping", "cpu_stepping", 1.0),
    ("CPU max MHz", "max_frequency_hz", 1e-6),
    ("CPU min MHz", "min_frequency_hz", 1e-6),
    ("system_memory", "memory_total", 1.0),
];
const TEXTS: [(&str, &str); 8] = [
    ("Architecture", "architecture"),
    ("CPU op-mode(s)", "cpu_op_modes"),
    ("Byte Order", "byte_order"),
    ("On-line CPU(s) list", "online_cpus"),
    ("Vendor ID", "cpu_vendor"),
    ("Model name", "cpu_model_name"),
    ("Hypervisor vendor", "hypervisor"),
    ("Flags", "cpu_flags"),
];
const OF_GPUS: [(&str, &str); 6] = [
    ("name", "name"),
    ("uuid", "uuid"),
    ("pci", "bdf"),
    ("driver_version", "driver_version"),
    ("cuda_version", "cuda_version"),
    ("vbios_version", "vbios_version"),
];

/// Facts of all nodes.
pub fn document(run: &StoredRun, failures: &mut Vec<String>) -> Node {
    let mut document = Node::default();
    let names: Vec<_> = run.hosts.iter().map(|host| host.name.as_str()).collect();
    document.set(&["host_names".to_owned()], Node::Value(json!(names)));
    for host in run.hosts.iter() {
        let mut facts = facts(run, host, failures);
        facts.insert("gpus".to_owned(), json!(gpus(run, host, failures)));
        let facts = Node::Value(Value::Object(facts));
        document.set(std::slice::from_ref(&host.name), facts);
    }
    document
}

fn facts(run: &StoredRun, host: &StoredHost, failures: &mut Vec<String>) -> Map<String, Value> {
    let mut columns = vec!["caches", "numa"];
    columns.extend(NUMBERS.iter().map(|(_, column, _)| column));
    columns.extend(TEXTS.iter().map(|(_, column)| column));
    let mut facts = Map::new();
    let read = run.read("host", host, &columns, |batch| {
        let Some(row) = batch.num_rows().checked_sub(1) else {
            return;
        };
        for (name, column, factor) in NUMBERS {
            facts.insert(
                name.to_owned(),
                number(numbers(batch, column)[row] * factor),
            );
        }
        for (name, column) in TEXTS {
            facts.insert(name.to_owned(), json!(Texts::of(batch, column).get(row)));
        }
        let list = |column: &str| -> Vec<Value> {
            let texts = Texts::of(batch, column);
            serde_json::from_str(texts.get(row).unwrap_or("[]")).unwrap_or_default()
        };
        // From the first of equal caches.
        for cache in list("caches").iter().rev() {
            let kind = match cache["type"].as_str() {
                Some("Data") => "d",
                Some("Instruction") => "i",
                _ => "",
            };
            let name = format!("L{}{kind} cache", cache["level"]);
            let kibibytes = cache["size"]
                .as_u64()
                .map(|bytes| format!("{}K", bytes / 1024));
            facts.insert(name, json!(kibibytes));
        }
        for node in list("numa") {
            let name = format!("NUMA node{} CPU(s)", node["node"]);
            facts.insert(name, node["cpus"].clone());
        }
    });
    failures.extend(read.err().into_iter().flatten());
    facts
}

fn gpus(run: &StoredRun, host: &StoredHost, failures: &mut Vec<String>) -> Vec<Value> {
    let mut columns = vec!["index", "memory_total"];
    columns.extend(OF_GPUS.iter().map(|(_, column)| column));
    let mut gpus = Vec::new();
    let read = run.read("gpu_device", host, &columns, |batch| {
        let texts = OF_GPUS.map(|(name, column)| (name, Texts::of(batch, column)));
        let indices = numbers(batch, "index");
        let sizes = numbers(batch, "memory_total");
        for row in 0..batch.num_rows() {
            let mut gpu = Map::new();
            gpu.insert("index".to_owned(), number(indices[row]));
            gpu.insert("memory_total".to_owned(), number(sizes[row]));
            for (name, texts) in &texts {
                gpu.insert((*name).to_owned(), json!(texts.get(row)));
            }
            gpus.push(Value::Object(gpu));
        }
    });
    failures.extend(read.err().into_iter().flatten());
    gpus
}

/// An integer if it has no fraction; NaN is null.
fn number(value: f64) -> Value {
    serde_json::from_str(&super::samples::number_text(value)).unwrap_or(Value::Null)
}
