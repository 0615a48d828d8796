//! Interfaces for scripts: tables and columns, options, exit codes, the structure of `run.json`.
//! They are compared with the files of `tests/golden`; `PROFILER_WRITE_GOLDEN=1` rewrites these
//! files.

use std::{fmt::Write as _, path::Path, process::Command};

use e2e::{runs::Profiler, setting};
use serde_json::{Value, json};

/// Compares a text with a golden file, or writes the file.
#[track_caller]
fn check(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(file);
    if std::env::var_os("PROFILER_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, found).expect("written");
    }
    let known = std::fs::read_to_string(&path).expect("a golden file");
    for (number, (found, known)) in found.lines().zip(known.lines()).enumerate() {
        assert_eq!(found, known, "{file}:{}", number + 1);
    }
    assert_eq!(
        found.lines().count(),
        known.lines().count(),
        "lines of {file}"
    );
}

pub fn profiler(args: &[&str]) -> (String, i32) {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(args)
        // The maximum width of help texts.
        .env("COLUMNS", "100")
        .output()
        .expect("the profiler starts");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    (stdout, output.status.code().expect("a code"))
}

#[test]
fn tables_and_columns() {
    let (schema, code) = profiler(&["schema", "--json"]);
    assert_eq!(code, 0);
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let mut text = format!("schema_version {}\n", schema["schema_version"]);
    for table in schema["tables"].as_array().expect("tables") {
        let name = table["table"].as_str().expect("a name");
        writeln!(text, "\n{name}").expect("memory");
        for column in table["columns"].as_array().expect("columns") {
            let field = |name: &str| column[name].as_str().unwrap_or("-");
            let nullable = if column["nullable"] == true {
                " null"
            } else {
                ""
            };
            writeln!(
                text,
                "  {} {}{nullable} [{}] {} {}",
                field("name"),
                field("type"),
                field("unit"),
                field("kind"),
                field("model")
            )
            .expect("memory");
        }
    }
    check("schema.txt", &text);
}

/// The subcommands.
pub fn commands() -> Vec<String> {
    let (page, _) = profiler(&["man"]);
    let names = page
        .lines()
        .filter_map(|line| line.strip_prefix("profiler\\-")?.strip_suffix("(1)"));
    let commands: Vec<_> = names.map(str::to_owned).collect();
    assert!(commands.len() > 12, "{commands:?}");
    commands
}

#[test]
fn options() {
    let mut text = String::new();
    for command in commands() {
        let (help, code) = profiler(&[&command, "--help"]);
        assert_eq!(code, 0, "{command}");
        let usage = help.lines().find(|line| line.starts_with("Usage: "));
        writeln!(text, "{}", usage.expect("a usage")).expect("memory");
        for line in help.lines() {
            let words = line.trim_start();
            let indent = line.len() - words.len();
            if words.starts_with('-') && (2..=6).contains(&indent) {
                let option = words.split("  ").next().expect("words");
                writeln!(text, "  {option}").expect("memory");
            }
        }
    }
    check("options.txt", &text);
}

#[test]
fn exit_codes() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let out = directory.path().join("out");
    let out = out.to_str().expect("UTF-8");
    let nothing = tempfile::TempDir::new().expect("a directory");
    let nothing = nothing.path().to_str().expect("UTF-8");
    let run = |args: &[&str]| profiler(&[&["run", "--out", out], args].concat()).1;
    let found = [
        (
            "done",
            run(&["--node", "-d", "100ms", "--source", "system"]),
        ),
        (
            "of the command",
            run(&["--source", "system", "--", "sh", "-c", "exit 9"]),
        ),
        ("usage", run(&["--no-such-option"])),
        ("target", run(&["--pid", "4194304"])),
        (
            "output",
            profiler(&["run", "--out", "/proc/none", "--node", "-d", "100ms"]).1,
        ),
        (
            "--strict",
            run(&[
                "--strict", "--node", "--source", "fabric", "--sysfs", nothing,
            ]),
        ),
        ("verify", {
            run(&[
                "--run-id", "cut", "--node", "-d", "100ms", "--source", "system",
            ]);
            let run = format!("{out}/cut");
            std::fs::remove_dir_all(format!("{run}/system")).expect("a table");
            profiler(&["verify", &run]).1
        }),
    ];
    let mut text = String::new();
    for (what, code) in found {
        writeln!(text, "{code} {what}").expect("memory");
    }
    let (help, _) = profiler(&["--help"]);
    let documented = help.split("Exit codes: ").nth(1).expect("exit codes");
    let documented: Vec<&str> = documented.split_whitespace().collect();
    writeln!(text, "\n{}", documented.join(" ")).expect("memory");
    check("exit-codes.txt", &text);
}

/// Replaces each value by its type; a list has one element for each distinct type.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("boolean"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("text"),
        Value::Array(values) => {
            let mut shapes: Vec<Value> = Vec::new();
            for shape in values.iter().map(shape) {
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
            Value::Array(shapes)
        }
        Value::Object(fields) => {
            let masked = |(name, value): (&String, &Value)| (name.clone(), shape(value));
            Value::Object(fields.iter().map(masked).collect())
        }
    }
}

#[test]
fn shape_of_run_json() {
    let finished = Profiler::new()
        .args(["-i", "100ms", "--source", "process,usage,sched,system"])
        .command(&["sleep", "0.5"])
        .finish();
    let data = finished.dataset();
    data.assert_lossless();
    let mut manifest = data.manifest();
    // A busy machine misses samples.
    manifest["losses"] = json!([]);
    for moment in ["start", "end"] {
        // Present only if a daemon synchronises the clock.
        manifest["clock"][moment]["max_error_ns"] = Value::Null;
    }
    let names = manifest["sources"].as_array().expect("sources").clone();
    let names = names.iter().map(|source| &source["name"]);
    let names: Vec<&str> = names.map(|name| name.as_str().expect("a name")).collect();
    let shape = serde_json::to_string_pretty(&shape(&manifest)).expect("JSON");
    check("run.json", &format!("{shape}\n"));
    check("sources.txt", &format!("{}\n", names.join("\n")));
}
