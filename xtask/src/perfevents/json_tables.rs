//! Comparison with event tables in a directory: `ARCH.json` with `events` by name, each with
//! `config` and `config1` as hexadecimal text.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use perfevents::{Catalog, Device};
use serde_json::Value;

/// Prints the result; fails when an encoding differs, and when none could be compared.
pub fn check(catalog: &Catalog, directory: &Path) -> Result<()> {
    let (mut same, mut missing, mut wrong) = (0, Vec::new(), Vec::new());
    for entry in
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?
    {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let table: Value =
            serde_json::from_str(&text).with_context(|| format!("{}: not JSON", path.display()))?;
        // Tables of the kernel's events have none.
        let Some(events) = table["events"].as_object() else {
            continue;
        };
        let id = id(table["arch"].as_str().unwrap_or_default());
        let Some(uarch) = catalog.get(&id) else {
            missing.push(id);
            continue;
        };
        for (name, theirs) in events {
            let Some(ours) = uarch.events.get(name) else {
                missing.push(format!("{id} {name}"));
                continue;
            };
            if !ours.has_encoding() {
                continue;
            }
            let word = |key| {
                word(&theirs[key])
                    .with_context(|| format!("{id} {name}: {key} is not a hexadecimal number"))
            };
            let theirs = [word("config")?, word("config1")?];
            let device = Device::known(uarch, &ours.pmu);
            let ours = device.and_then(|device| device.encode(ours).ok());
            match ours.map(|ours| ours.config) {
                Some([config, config1, 0, 0]) if [config, config1] == theirs => same += 1,
                ours => wrong.push(format!("{id} {name}: {ours:x?}, there {theirs:x?}")),
            }
        }
    }
    missing.sort();
    println!(
        "{}: {same} encodings agree, {} are not in our tables: {}",
        directory.display(),
        missing.len(),
        missing.join(", ")
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    if same == 0 {
        bail!("{}: no known encoding to compare", directory.display());
    }
    Ok(())
}

/// `0x1c7`; 0 for null.
fn word(value: &Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        value => u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok(),
    }
}

/// Our name of the microarchitecture.
fn id(arch: &str) -> String {
    match arch {
        "a72" | "a76" => format!("cortex-{arch}"),
        "n1" | "n2" | "n3" | "v1" | "v2" | "v3" => format!("neoverse-{arch}"),
        "hip08" => "tsv110".to_owned(),
        "tx2" => "thunderx2".to_owned(),
        other => other.replace('_', "-"),
    }
}
