//! The queries of docs/coming-from/ on the datasets of its commands.

use std::collections::BTreeSet;

use e2e::{
    page::{Datasets, Page, job_commands, output, queries},
    runs::ProcessGroup,
};
use serde_json::Value;

/// A job that does not exist.
const JOB: &str = "SLURM_JOB_ID=4294967000";

/// The pages as one, with a section for each tool.
fn page() -> String {
    let pages = Page::all();
    let index = pages.iter().find(|page| page.path == "docs/coming-from.md");
    let mut text = index.expect("the index").text.clone();
    let tools = pages
        .iter()
        .filter(|page| page.path.starts_with("docs/coming-from/"));
    for tool in tools {
        text.push_str(&tool.text.replacen("# Coming from ", "\n## ", 1));
    }
    text
}

#[test]
fn every_query_has_rows_and_values() {
    // Processes that end, for the runs of the whole node.
    let _load = ProcessGroup::spawn(&["sh", "-c", "while :; do /bin/true; sleep 0.1; done"]);
    let page = page();
    let queries = queries(&page);
    assert!(queries.len() >= 33, "{} queries", queries.len());
    let mut datasets = Datasets::default();
    for query in &queries {
        let data = datasets.of(&query.command);
        let (rows, values) = query.counts(&data);
        let introduction = query.introduction();
        if introduction.contains("No rows without") {
            continue;
        }
        assert!(rows > 0, "no rows:\n{}", query.sql);
        for (column, values) in query.columns(&data).iter().zip(values) {
            let optional = introduction.contains(&format!("`{column}` may be null"));
            assert!(optional || values > 0, "{column} is null:\n{}", query.sql);
        }
    }
}

#[test]
fn demo_has_its_processes_and_marks() {
    let page = page();
    let queries = queries(&page);
    let mut datasets = Datasets::default();
    let mut rows = |beginning: &str| {
        let query = queries
            .iter()
            .find(|query| query.introduction().starts_with(beginning));
        let query = query.unwrap_or_else(|| panic!("no query: {beginning}"));
        let rows: Vec<Value> = datasets.of(&query.command).rows(&format!(
            "SELECT to_json(q) FROM (SELECT * FROM ({}) LIMIT 1000) q",
            query.sql
        ));
        rows.iter()
            .map(|row| serde_json::from_str(row[0].as_str().expect("JSON")).expect("JSON"))
            .collect::<Vec<Value>>()
    };
    let tasks = rows("Tasks with");
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    assert_eq!(tasks[0]["activity_id"], "train");
    // 200 MB through head, a pipe and sha256sum; both together read less than 4 bytes in a nanosecond.
    let number = |column: &str| tasks[0][column].as_i64().expect("a number");
    let uncounted = 4 * number("start_offset_ns");
    assert!(number("read_chars") >= 400_000_000 - uncounted, "{tasks:?}");
    assert!(tasks[0]["elapsed_s"].as_f64() >= Some(0.3));
    let log = rows("`run_log`");
    let ops: BTreeSet<_> = log.iter().map(|row| row["type"].as_str()).collect();
    assert_eq!(ops, BTreeSet::from([Some("event"), Some("phase")]));
    let gauges = rows("Reported values");
    assert_eq!(gauges[0]["mib"], 1024.0);
    let nodes = rows("The 18 metrics");
    assert_eq!(nodes[0].as_object().map(serde_json::Map::len), Some(2 + 18));
    let stat = std::fs::read_to_string("/proc/stat").expect("procfs");
    let cpus = stat.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    let cpus = f64::from(u32::try_from(cpus).expect("small"));
    let hours = nodes[0]["node_cpu_hours"].as_f64().expect("a number");
    assert!((2.9..6.0).contains(&(hours * 3600.0 / cpus)), "{hours} h");
    let programs = rows("CPU time and faults by program");
    let short = programs.iter().find(|row| row["comm"] == "true");
    assert_eq!(short.map(|row| &row["processes"]), Some(&500.into()));
}

#[test]
fn batch_scripts_have_valid_commands() {
    let commands = job_commands(&page());
    assert!(!commands.is_empty());
    for command in commands {
        let waiting = format!("{command} --wait 100ms");
        let output = output(&format!("{JOB} {waiting}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command}\n{stderr}");
    }
}
