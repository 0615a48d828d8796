//! Programs that read what `profiler export` writes for them.

use std::{fs, path::Path};

use e2e::{
    dataset::{Dataset, script},
    setting,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{export::export, report::record};

/// What a script with these programs prints.
fn read(name: &str, arguments: &[&Path]) -> Value {
    let arguments: Vec<_> = arguments
        .iter()
        .map(|path| path.to_str().expect("UTF-8"))
        .collect();
    script("PROFILER_TEST_FORMATS", name, &arguments)
}

/// A run of a program in Python, and its file in another format.
struct Exported {
    directory: TempDir,
    data: Dataset,
    run: String,
}

impl Exported {
    fn of(program: &str, options: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let command = format!(
            "PYTHONPATH={} {} {} output",
            tests.join("../python/src").display(),
            setting("PROFILER_TEST_PYTHON"),
            tests.join("../docs/switching").join(program).display(),
        );
        let run = record(directory.path(), options, &command);
        Self {
            data: Dataset::new(run.clone().into()),
            directory,
            run,
        }
    }

    fn write(&self, format: &str) -> std::path::PathBuf {
        let path = self.directory.path().join(format);
        let output = path.to_str().expect("UTF-8");
        assert_eq!(
            export(&[format, &self.run, "-o", output]),
            (0, format!("{output}\n"))
        );
        path
    }
}

#[test]
fn flowcept_reads_tasks_and_writes_its_reports() {
    let exported = Exported::of("flowcept.py", &["--label", "workflow_name=products"]);
    let path = exported.write("flowcept");
    let facts = read("flowcept_facts.py", &[&path, exported.directory.path()]);
    let data = &exported.data;
    let regions: u64 = data.value("SELECT count(*) FROM region");
    assert_eq!(facts["records"], 2 + regions);
    assert_eq!(facts["workflow"], json!(["products", "products"]));
    assert_eq!(facts["status"]["multiply"], json!(["FINISHED"]));
    assert_eq!(facts["status"]["fail"], json!(["ERROR"]));
    // The counters of an activity are those of the regions, to the nanosecond.
    let usage: Vec<(String, f64, f64)> = data.rows(
        "SELECT name, sum(user_ns)::DOUBLE, sum(write_chars)::DOUBLE FROM region_usage \
         WHERE interval_ns IS NOT NULL GROUP BY name",
    );
    assert!(usage.len() >= 4, "{usage:?}");
    for (name, user, written) in &usage {
        let found = |key: &str| facts[key][name].as_f64().expect("a number");
        assert!((found("user") * 1e9 - user).abs() < 1e3, "{name}: {facts}");
        assert!((found("tree") - user).abs() < 0.5, "{name}: {facts}");
        assert!((found("written") - written).abs() < 0.5, "{name}: {facts}");
    }
    let written = facts["written"]["products"].as_f64().expect("a number");
    assert!(written >= 8_000_003.0, "{facts}");
    assert!(facts["user"]["multiply"].as_f64() > Some(0.05), "{facts}");
    let samples = &facts["card"]["Telemetry Samples (task start/end pairs)"];
    assert_eq!(samples, &json!(regions.to_string()));
    assert_eq!(
        (&facts["plots"], &facts["pdf"]),
        (&json!(7), &json!("%PDF-"))
    );
}

/// The same program with Flowcept itself has the same activities with the same data.
#[test]
fn program_has_the_activities_that_flowcept_records() {
    let exported = Exported::of("flowcept.py", &[]);
    let path = exported.write("flowcept");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/switching/flowcept.py");
    let directory = TempDir::new().expect("a directory");
    let theirs = read("flowcept_program.py", &[&program, directory.path()]);
    let theirs: Vec<Value> = serde_json::from_value(theirs).expect("tasks");
    let text = fs::read_to_string(&path).expect("written");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    // The workflow is an activity, too.
    let tasks = lines.filter(|line| line["type"] == "task" && line["activity_id"] != "products");
    let keys = ["activity_id", "status", "used", "generated", "tags"];
    let ours = tasks.map(|task| {
        let values = keys
            .iter()
            .map(|key| ((*key).to_owned(), task[*key].clone()));
        values.collect::<serde_json::Map<_, _>>().into()
    });
    let sorted = |tasks: Vec<Value>| {
        let mut texts: Vec<_> = tasks.iter().map(Value::to_string).collect();
        texts.sort();
        texts
    };
    let (ours, theirs) = (sorted(ours.collect()), sorted(theirs));
    assert_eq!(theirs.len(), 7);
    assert_eq!(ours, theirs);
}

#[test]
fn prov_reads_activities_and_their_data() {
    let exported = Exported::of("flowcept.py", &[]);
    let path = exported.write("prov");
    let facts = read("prov_document.py", &[&path]);
    assert_eq!(
        (&facts["is_same"], &facts["dangling"]),
        (&json!(true), &json!([])),
        "{facts}"
    );
    let data = &exported.data;
    let count = |sql: &str| -> u64 { data.value(sql) };
    let regions = count("SELECT count(*) FROM region");
    let keys = |column: &str| {
        count(&format!(
            "SELECT sum(len(json_keys({column}))) FROM region WHERE {column} IS NOT NULL"
        ))
    };
    let counts = &facts["counts"];
    assert_eq!(counts["ProvActivity"], regions + 1);
    assert_eq!(counts["ProvStart"], regions);
    assert_eq!(counts["ProvUsage"], keys("used"));
    assert_eq!(counts["ProvGeneration"], keys("generated"));
    assert_eq!(counts["ProvAgent"], 2);
    let text = fs::read_to_string(&path).expect("written");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let values = document["entity"].as_object().expect("an object").values();
    assert!(
        values
            .clone()
            .any(|entity| entity["prov:value"] == 4_000_003),
        "{text}"
    );
}

/// What Flowcept itself writes about a program, as a run.
#[test]
fn files_of_flowcept_itself_are_read() {
    let directory = TempDir::new().expect("a directory");
    let [file, run] = ["buffer.jsonl", "run"].map(|name| directory.path().join(name));
    let facts = read("flowcept_own.py", &[&file]);
    let (code, stderr) = crate::import::import("flowcept", &file, &run);
    assert_eq!(code, 0, "{stderr}");
    let data = Dataset::new(run);
    let tasks: Vec<(String, u64, f64)> = data.rows(
        "SELECT name, count(*), coalesce(sum(epoch_us(region_end_ts) - epoch_us(region_start_ts)), 0)::DOUBLE / 1e6 \
         FROM region GROUP BY name ORDER BY name",
    );
    let expected: Vec<(String, u64, f64)> =
        serde_json::from_value(facts["tasks"].clone()).expect("tasks");
    assert_eq!(tasks.len(), expected.len(), "{tasks:?}");
    for (found, expected) in tasks.iter().zip(&expected) {
        assert_eq!((&found.0, found.1), (&expected.0, expected.1));
        assert!(
            (found.2 - expected.2).abs() < 1e-4,
            "{found:?} {expected:?}"
        );
    }
    // CPU time of the process during the tasks, which burn 0.2 s each.
    let user: f64 =
        data.value("SELECT sum(user_ns) / 1e9 FROM region_usage WHERE name = 'multiply'");
    let recorded = facts["user"].as_f64().expect("a number");
    assert!(
        (user - recorded).abs() < 1e-6 && user > 0.3,
        "{user} {recorded}"
    );
    let memory: u64 = data.value("SELECT max(memory_total) FROM system");
    assert_eq!(facts["memory"], memory);
}
