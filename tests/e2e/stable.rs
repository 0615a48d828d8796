//! Names that others build on: tables, columns, options, settings, variables, exit codes, keys of JSON
//! documents and marks, and the files of a run. `tests/golden/stable-VERSION.txt` lists those of a
//! version of the schema; `PROFILER_WRITE_GOLDEN=1` adds new ones.

use std::{collections::BTreeSet, path::Path, process::Command};

use e2e::{
    runs::{Finished, Profiler, wait_until},
    setting,
};
use serde_json::{Value, json};

use crate::golden::{commands, profiler};

/// Hidden aliases of options, each with a value that is invalid: the program reports the value, not
/// the option.
const ALIASES: [(&str, &str); 2] = [("run", "--linger"), ("run", "--ipc-file")];

/// Keys of marks; others are attributes of the region.
const MARK_KEYS: [&str; 16] = [
    "op",
    "name",
    "id",
    "parent",
    "group",
    "kind",
    "status",
    "attrs",
    "used",
    "generated",
    "tags",
    "seconds",
    "value",
    "unit",
    "pid",
    "dropped",
];

/// Maps whose keys are names of data, not of the interface.
const MAPS: [&str; 5] = [
    "run.json tables",
    "run.json config.labels",
    "verify [].hosts",
    "verify [].tables",
    "verify [].hosts.*.tables",
];

/// Members that depend on the machine or on the load.
const VOLATILE: [&str; 14] = [
    "run.json losses",
    "run.json sources[].why",
    "check programs",
    "check service",
    "status [].losses",
    "status [].disk",
    "verify [].problems",
    "verify [].notes",
    "compare doubts",
    "compare machines",
    "summary runs[].labels",
    "summary runs[].losses",
    "summary runs[].findings",
    "summary runs[].nodes[].compat.pytyche",
];

/// Adds the keys of a JSON document; elements of a list are those of its first one.
fn add_keys(document: &str, path: &str, value: &Value, found: &mut BTreeSet<String>) {
    let place = format!("{document} {path}");
    if !path.trim_end_matches("[]").is_empty() {
        found.insert(format!("json {}", place.trim_end_matches("[]")));
    }
    if VOLATILE.contains(&&*place) {
        return;
    }
    match value {
        Value::Object(members) if MAPS.contains(&&*place) => {
            if let Some(member) = members.values().next() {
                add_keys(document, &format!("{path}.*"), member, found);
            }
        }
        Value::Object(members) => {
            for (name, member) in members.iter().filter(|(name, _)| *name != "partial") {
                let dot = if path.is_empty() { "" } else { "." };
                add_keys(document, &format!("{path}{dot}{name}"), member, found);
            }
        }
        Value::Array(elements) => {
            if let Some(element) = elements.first() {
                add_keys(document, &format!("{path}[]"), element, found);
            }
        }
        _ => {}
    }
}

/// Adds a subcommand with its options and variables, and the subcommands below it.
fn add_command(path: &[&str], found: &mut BTreeSet<String>) {
    let (help, code) = profiler(&[path, &["--help"]].concat());
    assert_eq!(code, 0, "{path:?}");
    let name = path.join(" ");
    found.insert(format!("command {name}"));
    for line in help.lines() {
        let words = line.trim_start();
        if words.starts_with('-') && line.len() - words.len() <= 6 {
            let option = words.split("  ").next().expect("words");
            for option in option.split(", ") {
                let option = option.split([' ', '[']).next().expect("a word");
                found.insert(format!("option {name} {option}"));
            }
        }
    }
    let is_end = |c: char| !(c.is_ascii_uppercase() || c == '_');
    for at in help.match_indices("PROFILER_").map(|(at, _)| at) {
        let variable = help[at..].split(is_end).next().expect("a name");
        if !variable.ends_with('_') {
            found.insert(format!("variable {variable}"));
        }
    }
    let mut commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in commands.by_ref().take_while(|line| !line.is_empty()) {
        let below = line
            .strip_prefix("  ")
            .filter(|line| !line.starts_with(' '));
        let below = below.map(|line| line.split(' ').next().expect("a word"));
        if let Some(below) = below.filter(|below| *below != "help") {
            add_command(&[path, &[below]].concat(), found);
        }
    }
}

/// The names that a message about an unknown one lists.
fn listed(message: &str) -> Vec<String> {
    if let Some((_, names)) = message.split_once("; settings are ") {
        return names.trim().split(", ").map(str::to_owned).collect();
    }
    let expected = message.split("expected ").nth(1).expect("names");
    let names = expected.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// Adds the settings of configuration files.
fn add_settings(directory: &Path, found: &mut BTreeSet<String>) {
    for table in ["", "report", "serve"] {
        let file = directory.join("settings.toml");
        let header = if table.is_empty() {
            String::new()
        } else {
            format!("[{table}]\n")
        };
        std::fs::write(&file, format!("{header}no_such_setting = 1\n")).expect("written");
        let output = Command::new(setting("PROFILER_BIN"))
            .args(["config", "--check", "--config"])
            .arg(&file)
            .output()
            .expect("the profiler starts");
        let message = String::from_utf8(output.stderr).expect("UTF-8");
        for name in listed(&message) {
            let dot = if table.is_empty() { "" } else { "." };
            found.insert(format!("setting {table}{dot}{name}"));
        }
    }
}

/// Adds the members of `profiler schema --json`: tables, views, columns, types and units.
fn add_schema(schema: &Value, found: &mut BTreeSet<String>) {
    for (list, kind) in [("tables", "table"), ("views", "view")] {
        for table in schema[list].as_array().expect("a list") {
            let name = table[kind].as_str().expect("a name");
            found.insert(format!("{kind} {name}"));
            for column in table["columns"].as_array().expect("columns") {
                let field = |key: &str| column[key].as_str().expect("a text");
                found.insert(format!(
                    "column {name}.{} {} [{}]",
                    field("name"),
                    field("type"),
                    field("unit")
                ));
            }
        }
    }
}

/// Adds the views of `views.sql` that are not those of `profiler schema --json`.
fn add_views(run: &Path, found: &mut BTreeSet<String>) {
    let sql = std::fs::read_to_string(run.join("views.sql")).expect("views");
    for line in sql.lines() {
        let Some(view) = line.strip_prefix("CREATE OR REPLACE VIEW ") else {
            continue;
        };
        let name = view.trim_end_matches(" AS").trim_matches('"');
        if !found.contains(&format!("table {name}")) {
            found.insert(format!("view {name}"));
        }
    }
}

/// Adds the files of a run, without the names of the node and of tables.
fn add_layout(run: &Path, found: &mut BTreeSet<String>) {
    let entries = std::fs::read_dir(run).expect("a run").flatten();
    for entry in entries.filter(|entry| entry.path().is_file()) {
        let name = entry.file_name();
        found.insert(format!("file RUN/{}", name.to_string_lossy()));
    }
    let hosts = std::fs::read_dir(run.join("system")).expect("a table");
    let host = hosts.flatten().next().expect("a host");
    let directory = host.file_name();
    let (key, _) = directory
        .to_str()
        .and_then(|name| name.split_once('='))
        .expect("a host");
    let files = std::fs::read_dir(host.path()).expect("files").flatten();
    let file = files.map(|file| file.file_name()).next().expect("a file");
    let file = file.to_string_lossy().replace("00000", "NNNNN");
    found.insert(format!("file RUN/TABLE/{key}=HOST/{file}"));
}

/// Adds the keys of marks that are no attributes, from a region that has all of them.
fn add_mark_keys(found: &mut BTreeSet<String>) {
    let script = r#"
import json, os, socket
marks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mark = {"op": "event", "name": "n", "id": "i", "parent": "p", "group": "g", "kind": "k", "status": "s",
        "attrs": {"known": 1}, "used": ["u"], "generated": ["g"], "tags": ["t"], "seconds": 1, "value": 1,
        "unit": "u", "pid": os.getpid(), "dropped": 0, "other": 2}
marks.sendto(json.dumps(mark).encode(), os.environ["PROFILER_SOCKET"])
"#;
    let finished = Profiler::new()
        .args(["-i", "100ms", "--source", "process,region"])
        .command(&[&setting("PROFILER_TEST_PYTHON"), "-c", script])
        .finish();
    let regions = finished.dataset().table("region");
    let attributes = regions.first().and_then(|row| row.text("attributes"));
    let attributes: Value = serde_json::from_str(attributes.expect("attributes")).expect("JSON");
    assert_eq!(
        (&attributes["known"], &attributes["other"]),
        (&json!(1), &json!(2))
    );
    let keys = MARK_KEYS.iter().filter(|key| attributes[**key].is_null());
    found.extend(keys.map(|key| format!("mark {key}")));
}

/// Every name that others build on, one a line.
fn stable_names(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    add_schema(schema, &mut found);
    for command in commands() {
        add_command(&[&command], &mut found);
    }
    for (command, alias) in ALIASES {
        let output = Command::new(setting("PROFILER_BIN"))
            .args([command, "--node", alias])
            .output()
            .expect("the profiler starts");
        let message = String::from_utf8(output.stderr).expect("UTF-8");
        if message.contains("a value is required for") {
            found.insert(format!("alias {command} {alias}"));
        }
    }
    let (help, _) = profiler(&["--help"]);
    let exit_codes = help.split("Exit codes: ").nth(1).expect("exit codes");
    let exit_codes = exit_codes.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in exit_codes.trim_end_matches('.').split(", ") {
        found.insert(format!("exit code {code}"));
    }
    let directory = tempfile::TempDir::new().expect("a directory");
    add_settings(directory.path(), &mut found);
    add_mark_keys(&mut found);
    let record = || {
        let profiler =
            Profiler::new().args(["-i", "100ms", "--source", "process,usage,sched,system"]);
        profiler.command(&["sleep", "0.5"]).finish()
    };
    let runs = [record(), record()];
    let [first, second] = [&runs[0], &runs[1]].map(Finished::dataset);
    let [a, b] = [&first, &second].map(|data| data.path().to_str().expect("UTF-8"));
    let document = |args: &[&str]| -> Value {
        serde_json::from_str(&profiler(args).0).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    };
    add_keys("run.json", "", &first.manifest(), &mut found);
    add_keys("schema", "", schema, &mut found);
    add_keys("check", "", &document(&["check", "--json"]), &mut found);
    add_keys(
        "verify",
        "",
        &document(&["verify", "--json", a]),
        &mut found,
    );
    let compared = document(&["compare", "--json", a, "--", b]);
    add_keys("compare", "", &compared, &mut found);
    let summary = document(&["summary", "--json", a]);
    for (group, figures) in summary["figures"].as_object().expect("groups") {
        for (name, figure) in figures.as_object().expect("figures") {
            let unit = figure["unit"].as_str().expect("a unit");
            found.insert(format!("figure {group}.{name} [{unit}]"));
        }
    }
    let runs = json!({ "runs": summary["runs"] });
    add_keys("summary", "", &runs, &mut found);
    let running = Profiler::new()
        .args(["--node", "-i", "100ms", "--source", "system"])
        .start();
    let mut entry = None;
    wait_until("its status", || {
        let all = document(&["status", "--json"]);
        let mut all = all.as_array().expect("a list").iter();
        entry = all
            .find(|entry| entry["process"]["pid"] == running.pid())
            .cloned();
        entry.is_some()
    });
    add_keys("status", "", &json!([entry]), &mut found);
    add_layout(first.path(), &mut found);
    add_views(first.path(), &mut found);
    running.interrupt();
    found
}

/// The stable names of a schema version are only added to. docs/compatibility.md describes what they
/// are.
#[test]
fn stable_names_change_only_with_the_version() {
    let (schema, _) = profiler(&["schema", "--json"]);
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let version = &schema["schema_version"];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/stable-{version}.txt"));
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    let found = stable_names(&schema);
    let list = |names: &BTreeSet<String>, others: &BTreeSet<String>| {
        let names: Vec<&str> = names.difference(others).map(String::as_str).collect();
        names.join("\n")
    };
    let removed = list(&known, &found);
    assert!(
        removed.is_empty(),
        "breaking: raise SCHEMA_VERSION, or restore\n{removed}"
    );
    if std::env::var_os("PROFILER_WRITE_GOLDEN").is_some() {
        let names: Vec<&str> = found.iter().map(String::as_str).collect();
        std::fs::write(&path, names.join("\n") + "\n").expect("written");
        return;
    }
    let added = list(&found, &known);
    assert!(
        added.is_empty(),
        "new in version {version}: regenerate {} with PROFILER_WRITE_GOLDEN=1\n{added}",
        path.display()
    );
}
