//! `machine_info`: facts of the nodes.

use serde_json::{Map, Value, json};

use super::node::number_of;
use crate::analysis::{
    rows::{Texts, numbers},
    stored_run::{StoredHost, StoredRun},
};

/// Keys of py-cpuinfo with columns of `host`.
const NUMBERS: [(&str, &str); 5] = [
    ("count", "threads"),
    ("family", "cpu_family"),
    ("model", "cpu_model"),
    ("stepping", "cpu_stepping"),
    ("hz_advertised", "base_frequency_hz"),
];
const TEXTS: [(&str, &str); 3] = [
    ("brand_raw", "cpu_model_name"),
    ("vendor_id_raw", "cpu_vendor"),
    ("arch", "architecture"),
];
const OF_PLATFORM: [(&str, &str); 5] = [
    ("release", "kernel_release"),
    ("version", "kernel_version"),
    ("machine", "architecture"),
    ("processor", "cpu_model_name"),
    ("distribution", "distribution"),
];

/// Facts of a node; `blocks` are its telemetry at the start.
pub fn facts(
    run: &StoredRun,
    host: &StoredHost,
    blocks: &Map<String, Value>,
    failures: &mut Vec<String>,
) -> Value {
    let mut columns = vec!["caches", "nics", "environment", "cpu_flags"];
    columns.extend(NUMBERS.iter().map(|(_, column)| column));
    columns.extend(TEXTS.iter().map(|(_, column)| column));
    columns.extend(OF_PLATFORM.iter().map(|(_, column)| column));
    let mut facts = json!({
        "hostname": host.name,
        "platform": {"system": "Linux", "node": host.name},
        "cpu": {},
    });
    if let Some(manifest) = &host.manifest {
        facts["login_name"] = json!(manifest.user);
    }
    let read = run.read("host", host, &columns, |batch| {
        let Some(row) = batch.num_rows().checked_sub(1) else {
            return;
        };
        for (key, column) in NUMBERS {
            let value = numbers(batch, column)[row];
            if !value.is_nan() {
                facts["cpu"][key] = number_of(value);
            }
        }
        for (part, keys) in [("cpu", &TEXTS[..]), ("platform", &OF_PLATFORM[..])] {
            for (key, column) in keys {
                if let Some(text) = Texts::of(batch, column).get(row) {
                    facts[part][*key] = json!(text);
                }
            }
        }
        if let Some(flags) = Texts::of(batch, "cpu_flags").get(row) {
            facts["cpu"]["flags"] = flags.split_whitespace().collect();
        }
        let parsed = |column: &str| {
            let texts = Texts::of(batch, column);
            let text = texts.get(row).unwrap_or("null");
            serde_json::from_str::<Value>(text).unwrap_or(Value::Null)
        };
        for cache in parsed("caches").as_array().into_iter().flatten() {
            if let Some(level @ (2 | 3)) = cache["level"].as_u64() {
                facts["cpu"][format!("l{level}_cache_size")] = cache["size"].clone();
            }
        }
        for interface in parsed("nics").as_array().into_iter().flatten() {
            let addresses = interface["addresses"].as_array().into_iter().flatten();
            if let Some(name) = interface["name"].as_str() {
                facts["network"][name] = addresses.map(address).collect();
            }
        }
        let environment = parsed("environment");
        if environment.is_object() {
            facts["environment"] = environment;
        }
    });
    failures.extend(read.err().into_iter().flatten());
    for (key, block) in [("memory", "memory"), ("gpu", "gpu")] {
        if let Some(block) = blocks.get(block) {
            facts[key] = block.clone();
        }
    }
    if let Some(usage) = blocks.get("disk").and_then(|disk| disk.get("disk_usage")) {
        facts["disk"] = usage.clone();
    }
    facts
}

/// An address as psutil gives it, with the number of the family.
fn address(address: &Value) -> Value {
    let family = match address["family"].as_str() {
        Some("inet") => libc::AF_INET,
        Some("inet6") => libc::AF_INET6,
        _ => libc::AF_PACKET,
    };
    json!({
        "family": family,
        "address": address["address"],
        "netmask": address["netmask"],
        "broadcast": address["broadcast"],
        "ptp": address["peer"],
    })
}

/// What is known of the GPUs, by index.
pub fn gpus(run: &StoredRun, host: &StoredHost, failures: &mut Vec<String>) -> Map<String, Value> {
    let mut gpus = Map::new();
    let columns = ["index", "uuid", "name", "vendor"];
    let read = run.read("gpu_device", host, &columns, |batch| {
        let [uuids, names, vendors] = ["uuid", "name", "vendor"].map(|name| Texts::of(batch, name));
        for (row, index) in numbers(batch, "index").into_iter().enumerate() {
            let facts = json!({
                "id": uuids.get(row), "name": names.get(row), "vendor": vendors.get(row),
            });
            gpus.insert(index.to_string(), facts);
        }
    });
    failures.extend(read.err().into_iter().flatten());
    gpus
}

/// The GPUs of a block in the shape that Flowcept gives those of their vendor.
pub fn shape_gpus(blocks: &mut Map<String, Value>, gpus: &Map<String, Value>) {
    let Some(Value::Object(of_index)) = blocks.remove("gpu") else {
        return;
    };
    let mut shaped = Map::new();
    for (index, values) in of_index {
        let facts = gpus.get(&index).cloned().unwrap_or_default();
        let mut gpu = if facts["vendor"] == "amd" {
            let mut gpu = values;
            gpu["gpu_ix"] = index.parse().map_or(Value::Null, |index: u64| json!(index));
            gpu
        } else {
            let watts = values["power"]["average_socket_power"].as_f64();
            let mut gpu = json!({});
            for (key, value) in [
                ("used", values["used"].clone()),
                ("temperature", values["temperature"]["edge"].clone()),
                (
                    "power",
                    json!(watts.map(|watts| number_of((1e3 * watts).round()))),
                ),
            ] {
                if !value.is_null() {
                    gpu[key] = value;
                }
            }
            gpu
        };
        for key in ["id", "name"] {
            if !facts[key].is_null() {
                gpu[key] = facts[key].clone();
            }
        }
        shaped.insert(format!("gpu_{index}"), gpu);
    }
    blocks.insert("gpu".to_owned(), Value::Object(shaped));
}
