//! Pages of the documentation: their scripts, commands and code spans, and the queries on the datasets
//! of these commands.

use std::{
    collections::BTreeMap,
    fs,
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

/// Root directory of the project.
pub fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace")
}

/// A page of the documentation.
pub struct Page {
    /// Path below the root directory.
    pub path: String,
    pub text: String,
}

impl Page {
    /// The page with this path below the root directory.
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(root().join(path));
        Self {
            path: path.to_owned(),
            text: text.unwrap_or_else(|error| panic!("{path}: {error}")),
        }
    }

    /// All pages.
    pub fn all() -> Vec<Self> {
        let beside = ["README.md", "CONTRIBUTING.md", "python/README.md"];
        let mut paths = pages_in("docs");
        paths.extend(pages_in("docs/coming-from"));
        paths.extend(beside.map(str::to_owned));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// The code spans, without those in fenced blocks.
    pub fn spans(&self) -> Vec<&str> {
        let texts = self.text.split("```").step_by(2);
        texts
            .flat_map(|text| text.split('`').skip(1).step_by(2))
            .collect()
    }

    /// The scripts for a shell: fenced blocks, and what an example types after `$ `.
    pub fn scripts(&self) -> Vec<String> {
        let script = |block: Block<'_>| match block.language {
            "sh" | "bash" => Some(block.text.to_owned()),
            "console" => {
                let typed = block.text.lines();
                let typed: Vec<_> = typed.filter_map(|line| line.strip_prefix("$ ")).collect();
                Some(typed.join("\n"))
            }
            _ => None,
        };
        blocks(&self.text).into_iter().filter_map(script).collect()
    }

    /// Text of the fenced blocks in a language.
    pub fn programs(&self, language: &str) -> Vec<&str> {
        let blocks = blocks(&self.text).into_iter();
        let blocks = blocks.filter(|block| block.language == language);
        blocks.map(|block| block.text).collect()
    }

    /// The words behind a program, for example `profiler`, in each of its commands in scripts and in
    /// code spans.
    pub fn commands(&self, program: &str) -> Vec<Vec<String>> {
        let scripts = self.scripts().join("\n").replace("\\\n", " ");
        let scripts = scripts
            .lines()
            .flat_map(|line| commands_of_line(line, program));
        // Other spans, such as messages, only contain the name.
        let spans = self.spans().into_iter().filter_map(|span| {
            let mut words = span.split_ascii_whitespace();
            let first = words.find(|word| *word != "sudo" && !word.contains('='));
            let begins = first == program.split(' ').next();
            begins.then(|| commands_of_line(&span.replace('\n', " "), program))
        });
        scripts.chain(spans.flatten()).collect()
    }
}

/// Paths of the pages in a directory.
fn pages_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(directory)).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let paths = names.map(|name| format!("{directory}/{}", name.expect("UTF-8")));
    paths
        .filter(|path| Path::new(path).extension().is_some_and(|end| end == "md"))
        .collect()
}

/// The words behind a program in the commands of a line.
fn commands_of_line(line: &str, program: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap_or_default();
    let program: Vec<_> = program.split(' ').collect();
    let commands = line.split([';', '|', '&', '(', ')']).filter_map(|command| {
        let words = command.split_ascii_whitespace();
        let words: Vec<_> = words.map(|word| word.trim_matches(['\'', '"'])).collect();
        let start = words
            .windows(program.len())
            .position(|found| found == program)?;
        let words = words[start + program.len()..].iter();
        Some(words.map(|&word| word.to_owned()).collect())
    });
    commands.collect()
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

/// The commands `profiler run …` in the batch scripts of a page, which profile the job.
pub fn job_commands(page: &str) -> Vec<String> {
    let scripts = blocks(page)
        .into_iter()
        .filter(|block| block.language == "bash");
    scripts
        .flat_map(|script| script.text.lines())
        .filter_map(|line| Some(&line[line.find("profiler run ")?..]))
        .map(|command| command.trim_end_matches('&').trim().to_owned())
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
        .current_dir(root())
        .env("PATH", format!("{}:{path}", directory.display()));
    shell
}
