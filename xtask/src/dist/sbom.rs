//! The list of the libraries inside the program, as CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Source, VERSION};
use crate::{arch::Arch, shell, workspace::Workspace};

const PACKAGE: &str = "node-profiler";

/// The document, which depends on the source and the architecture only.
pub fn make(workspace: &Workspace, arch: &Arch, source: &Source) -> Result<Vec<u8>> {
    let metadata = shell::stdout(workspace.cargo().args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        arch.target,
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("reading cargo metadata")?;
    let graph = linked(&metadata)?;
    let packages = list(&metadata["packages"]);
    let packages = packages.filter(|package| graph.contains_key(text(&package["id"])));
    let mut components = Vec::new();
    for package in packages {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        if name != PACKAGE {
            let mut component = json!({
                "type": "library",
                "bom-ref": reference(package),
                "name": name,
                "version": version,
                "scope": "required",
                "purl": reference(package),
            });
            // The field is absent if a crate names a file instead.
            if let Some(licence) = package["license"].as_str() {
                let licence = licence.replace('/', " OR ");
                component["licenses"] = json!([{ "expression": licence }]);
            }
            components.push(component);
        }
    }
    components.sort_by_key(|component| component["bom-ref"].to_string());
    let references: BTreeMap<&str, String> = list(&metadata["packages"])
        .map(|package| (text(&package["id"]), reference(package)))
        .collect();
    let name = |id: &&str| references.get(id).cloned().unwrap_or_default();
    let mut dependencies: Vec<Value> = graph
        .iter()
        .map(|(id, on)| json!({ "ref": name(id), "dependsOn": on.iter().map(name).collect::<Vec<_>>() }))
        .collect();
    dependencies.sort_by_key(|dependency| dependency["ref"].to_string());
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": format!("pkg:cargo/{PACKAGE}@{VERSION}"),
                "name": "profiler",
                "version": VERSION,
                "purl": format!("pkg:cargo/{PACKAGE}@{VERSION}"),
                "properties": [{ "name": "commit", "value": source.commit }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    let mut bytes = serde_json::to_vec_pretty(&document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Packages that are linked into the program, by id, with those that they use; without build
/// scripts, macros' own dependencies and tests.
fn linked(metadata: &Value) -> Result<BTreeMap<&str, BTreeSet<&str>>> {
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), node))
        .collect();
    let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
        .map(|package| (text(&package["id"]), package))
        .collect();
    let is_macro = |id: &str| {
        let targets = packages.get(id).map(|package| &package["targets"]);
        targets.is_some_and(|targets| {
            list(targets).any(|target| list(&target["kind"]).any(|kind| kind == "proc-macro"))
        })
    };
    let root = packages
        .iter()
        .find(|(_, package)| package["name"] == PACKAGE);
    let (root, _) = root.context("the workspace has the program")?;
    let mut graph = BTreeMap::new();
    let mut open = vec![*root];
    while let Some(id) = open.pop() {
        if graph.contains_key(id) {
            continue;
        }
        let node = nodes.get(id).context("every dependency is resolved")?;
        let on: BTreeSet<&str> = list(&node["deps"])
            .filter(|dependency| {
                let mut kinds = list(&dependency["dep_kinds"]);
                kinds.any(|kind| kind["kind"].is_null()) && !is_macro(text(&dependency["pkg"]))
            })
            .map(|dependency| text(&dependency["pkg"]))
            .collect();
        open.extend(&on);
        graph.insert(id, on);
    }
    Ok(graph)
}

/// Package URL of a crate.
fn reference(package: &Value) -> String {
    format!(
        "pkg:cargo/{}@{}",
        text(&package["name"]),
        text(&package["version"])
    )
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
