//! Pages of the documentation: their commands, and the queries on the datasets of these commands.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::{
    dataset::Dataset,
    runs::{Finished, Profiler},
    setting,
};

/// A query of a page.
pub struct Query<'a> {
    /// Commands that record its dataset, as a shell script.
    pub command: String,
    /// The query, without a semicolon.
    pub sql: &'a str,
    /// The text of the section before it.
    before: &'a str,
    /// Whether the page shows rows of this dataset.
    pub shows_rows: bool,
}

impl Query<'_> {
    /// The paragraph above it.
    pub fn introduction(&self) -> &str {
        let text = self.before.trim_end();
        text.rsplit("\n\n").next().unwrap_or(text)
    }

    /// Number of rows, and of the values in each column that are not null.
    pub fn counts(&self, data: &Dataset) -> (u64, Vec<u64>) {
        let rows = data.value(&format!("SELECT count(*) FROM ({})", self.sql));
        let values = data.row(&format!("SELECT count(COLUMNS(*)) FROM ({})", self.sql));
        (rows, values)
    }

    /// Names of the columns.
    pub fn columns(&self, data: &Dataset) -> Vec<String> {
        let described: Vec<Vec<serde_json::Value>> =
            data.rows(&format!("DESCRIBE SELECT * FROM ({})", self.sql));
        let names = described
            .iter()
            .map(|column| column[0].as_str().expect("a name").to_owned());
        names.collect()
    }
}

/// A fenced block of a page.
struct Block<'a> {
    language: &'a str,
    text: &'a str,
    /// The text of the section before and after it.
    before: &'a str,
    after: &'a str,
}

fn blocks(section: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut end = 0;
    while let Some(fence) = section[end..].find("```") {
        let start = end + fence;
        let (language, rest) = section[start + 3..].split_once('\n').expect("a line");
        let (text, after) = rest.split_once("```").expect("its end");
        let before = &section[end..start];
        end = section.len() - after.len();
        blocks.push(Block {
            language,
            text,
            before,
            after,
        });
    }
    blocks
}

/// All queries of a page. The dataset is that of the command above the query in its section, or of
/// the command at the top of the page. A section with the words "With `--source …`" adds the option.
pub fn queries(page: &str) -> Vec<Query<'_>> {
    let is_run = |block: &Block<'_>| block.language == "sh" && block.text.contains("profiler run");
    let (top, _) = page.split_once("\n## ").expect("sections");
    let top = blocks(top).into_iter().find(is_run).expect("a command");
    let mut queries = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let mut command = top.text.to_owned();
        if let Some((_, rest)) = section.split_once("With `--source ") {
            let option = rest.split_once('`').expect("its end").0;
            let replaced = format!("profiler run --source {option}");
            command = command.replace("profiler run", &replaced);
        }
        for block in blocks(section) {
            if is_run(&block) {
                block.text.clone_into(&mut command);
            }
            if block.language == "sql" {
                queries.push(Query {
                    command: command.clone(),
                    sql: block.text.trim().trim_end_matches(';'),
                    before: block.before,
                    shows_rows: block.after.trim_start().starts_with("```text")
                        && !section.contains("The figures are from another run"),
                });
            }
        }
    }
    queries
}

/// The commands `profiler run --job …` in the batch scripts of a page.
pub fn job_commands(page: &str) -> Vec<String> {
    let scripts = blocks(page)
        .into_iter()
        .filter(|block| block.language == "bash");
    scripts
        .flat_map(|script| script.text.lines())
        .filter_map(|line| Some(&line[line.find("profiler run --job")?..]))
        .map(|command| command.trim_end_matches('&').trim().to_owned())
        .collect()
}

/// Code spans in the tables of a page, without those of the first column.
pub fn codes_in_tables(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.flat_map(|row| row.split(" | ").skip(1));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// Datasets of commands; each command runs once.
#[derive(Default)]
pub struct Datasets(BTreeMap<String, (Finished, TempDir)>);

impl Datasets {
    /// The dataset of a command.
    pub fn of(&mut self, command: &str) -> Dataset {
        let (run, _) = self.0.entry(command.to_owned()).or_insert_with(|| {
            let directory = TempDir::new().expect("a temporary directory");
            let out = directory.path().join("out");
            let mut shell = shell(command);
            shell.env("PROFILER_OUT", &out);
            (Profiler::from_command(shell, &out).finish(), directory)
        });
        assert_eq!(run.code(), 0, "{command}\n{}", run.stderr);
        run.any_dataset()
    }
}

/// The output of a command.
pub fn output(command: &str) -> Output {
    shell(command).output().expect("sh starts")
}

/// A shell in the root directory of the project that finds the profiler.
fn shell(command: &str) -> Command {
    let binary = setting("PROFILER_BIN");
    let directory = Path::new(&binary).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("PATH", format!("{}:{path}", directory.display()));
    shell
}
