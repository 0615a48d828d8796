//! Options, columns, names and files that the pages mention.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use e2e::{
    page::{Page, root},
    setting,
};
use serde_json::Value;

use crate::xtask::xtask;

/// Names, options and files of other software and of examples, one per line.
const FOREIGN: &str = include_str!("foreign_names.txt");

fn foreign() -> BTreeSet<&'static str> {
    FOREIGN.lines().collect()
}

const PROGRAMS: [&str; 2] = ["profiler", "cargo xtask"];

/// Help texts of the programs by the words of a subcommand.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, Option<String>>);

impl Helps {
    /// The help of a subcommand; none if it does not exist.
    fn of(&mut self, program: &str, subcommand: &[&str]) -> Option<&str> {
        // It passes its arguments on.
        let program = match subcommand {
            ["run", ..] => "profiler",
            _ => program,
        };
        let key = [&[program], subcommand].concat();
        let key = key.into_iter().map(str::to_owned).collect();
        let help = self.0.entry(key).or_insert_with(|| {
            let binary = match program {
                "profiler" => setting("PROFILER_BIN").into(),
                _ => xtask(),
            };
            let output = Command::new(binary).args(subcommand).arg("--help").output();
            let output = output.expect("the program starts");
            let is_known = output.status.success();
            is_known.then(|| String::from_utf8(output.stdout).expect("UTF-8"))
        });
        help.as_deref()
    }

    /// The help of a command and the number of its words that are subcommands.
    fn of_command(&mut self, program: &str, words: &[&str]) -> Option<(&str, usize)> {
        let (first, rest) = words.split_first()?;
        let nested = subcommands(self.of(program, &[first])?);
        let depth = match rest.first() {
            Some(second) if nested.contains(*second) => 2,
            _ => 1,
        };
        Some((self.of(program, &words[..depth])?, depth))
    }

    /// The options of all subcommands.
    fn options(&mut self) -> BTreeSet<String> {
        let mut known = BTreeSet::new();
        for program in PROGRAMS {
            let top = self.of(program, &[]).expect("a help").to_owned();
            known.extend(options(&top));
            for word in subcommands(&top) {
                let Some(help) = self.of(program, &[&word]) else {
                    continue;
                };
                known.extend(options(help));
                let nested = subcommands(help);
                for inner in nested {
                    let help = self.of(program, &[&word, &inner]);
                    known.extend(help.map(options).unwrap_or_default());
                }
            }
        }
        known
    }
}

/// The options that a help text lists.
fn options(help: &str) -> BTreeSet<String> {
    let lines = help
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',', '=', '[', '<']));
    let words = words.filter(|word| word.starts_with('-') && word.len() > 1);
    words.map(str::to_owned).collect()
}

/// First words of the lines of a help text that are subcommands; maybe others.
fn subcommands(help: &str) -> BTreeSet<String> {
    let lines = help.lines().take_while(|line| *line != "Options:");
    let lines = lines.filter_map(|line| line.strip_prefix("  "));
    let words = lines.filter_map(|line| line.split(' ').next());
    let is_word = |word: &&str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    words.filter(is_word).map(str::to_owned).collect()
}

#[test]
fn commands_have_the_subcommands_and_options_of_the_program() {
    let mut helps = Helps::default();
    let mut wrong = BTreeSet::new();
    let mut found = 0;
    for (program, page) in PROGRAMS
        .into_iter()
        .flat_map(|program| Page::all().into_iter().map(move |page| (program, page)))
    {
        for command in page.commands(program) {
            let words: Vec<_> = command.iter().map(String::as_str).collect();
            if words.first().is_none_or(|word| word.starts_with('-')) {
                continue;
            }
            let line = format!("{}: {program} {}", page.path, words.join(" "));
            let Some((help, depth)) = helps.of_command(program, &words) else {
                wrong.insert(format!("{line}: no such subcommand"));
                continue;
            };
            found += 1;
            let known = options(help);
            let own = words[depth..].iter().take_while(|word| **word != "--");
            for word in own.filter(|word| word.starts_with('-') && word.len() > 1) {
                let option = word.split('=').next().unwrap_or(word);
                if !known.contains(option) {
                    wrong.insert(format!("{line}: no option {option}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", join(&wrong));
    assert!(found >= 250, "{found} commands");
}

#[test]
fn options_exist() {
    let known = Helps::default().options();
    let sources = Sources::read();
    let foreign = foreign();
    let mut unknown = BTreeSet::new();
    for page in Page::all() {
        for span in page
            .spans()
            .into_iter()
            .filter(|span| span.starts_with("--"))
        {
            let option = span.split([' ', '=', '\n']).next().unwrap_or(span);
            // The Python modules have theirs in their sources.
            let is_of_python = sources.python.contains(&format!("\"{option}\""));
            if option.len() > 2
                && !known.contains(option)
                && !is_of_python
                && !foreign.contains(option)
            {
                unknown.insert(format!("{}: {option}", page.path));
            }
        }
    }
    assert!(unknown.is_empty(), "unknown options:\n{}", join(&unknown));
}

/// Tables and views with their columns.
fn schema() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["schema", "--json"])
        .output();
    let schema: Value = serde_json::from_slice(&output.expect("it starts").stdout).expect("JSON");
    let mut tables = BTreeMap::new();
    for (list, key) in [("tables", "table"), ("views", "view")] {
        for table in schema[list].as_array().expect("a list") {
            let name = |value: &Value| value.as_str().expect("a name").to_owned();
            let columns = table["columns"].as_array().expect("a list").iter();
            let columns = columns.map(|column| name(&column["name"]));
            let columns = columns.chain(["host", "run"].map(str::to_owned)).collect();
            tables.insert(name(&table[key]), columns);
        }
    }
    tables
}

#[test]
fn columns_exist() {
    let tables = schema();
    let foreign = foreign();
    let mut unknown = BTreeSet::new();
    let mut found = 0;
    for page in Page::all() {
        for span in page.spans() {
            let Some((table, column)) = span.split_once('.') else {
                continue;
            };
            let is_file = Path::new(span)
                .extension()
                .is_some_and(|end| end == "json" || end == "rs");
            let Some(columns) = tables.get(table) else {
                continue;
            };
            if is_file || foreign.contains(span) || !is_name(column) {
                continue;
            }
            found += 1;
            if !columns.contains(column) {
                unknown.insert(format!("{}: {span}", page.path));
            }
        }
    }
    assert!(unknown.is_empty(), "unknown columns:\n{}", join(&unknown));
    assert!(found >= 250, "{found} columns");
}

fn is_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn join(lines: &BTreeSet<String>) -> String {
    lines
        .iter()
        .map(|line| &**line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The sources of the project, without pages.
struct Sources {
    /// Paths of the files below the root directory.
    files: Vec<String>,
    /// Names in them: letters, digits and `_`.
    names: BTreeSet<String>,
    text: String,
    python: String,
}

impl Sources {
    fn read() -> Self {
        let mut sources = Self {
            files: Vec::new(),
            names: BTreeSet::new(),
            text: String::new(),
            python: String::new(),
        };
        for directory in [
            "profiler",
            "profiler-ebpf",
            "perfevents",
            "xtask",
            "python",
            "clients",
        ] {
            sources.add(&root().join(directory));
        }
        for path in ["docs", "tests", "docs/deploy", "docs/switching"] {
            for entry in fs::read_dir(root().join(path)).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_file() {
                    sources.add(&path);
                }
            }
        }
        sources.add_tests(&root().join("tests"));
        let stems: Vec<_> = sources
            .files
            .iter()
            .filter_map(|file| Path::new(file).file_stem())
            .collect();
        let stems = stems
            .into_iter()
            .map(|stem| stem.to_string_lossy().into_owned());
        sources.names.extend(stems.collect::<Vec<_>>());
        sources
    }

    fn add(&mut self, path: &Path) {
        if path.is_dir() {
            if path.ends_with("target") {
                return;
            }
            for entry in fs::read_dir(path).expect("a directory") {
                self.add(&entry.expect("an entry").path());
            }
        } else {
            let below = path.strip_prefix(root()).expect("below the root");
            self.files.push(below.to_str().expect("UTF-8").to_owned());
            let is_page = path.extension().is_some_and(|end| end == "md");
            if !is_page && let Ok(text) = fs::read_to_string(path) {
                let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                self.names.extend(names.map(str::to_owned));
                if path.extension().is_some_and(|end| end == "py") {
                    self.python.push_str(&text);
                }
                self.text.push_str(&text);
            }
        }
    }

    /// Adds the names of the tests and their variables, but no other word: what exists in a test only is
    /// not the program's.
    fn add_tests(&mut self, path: &Path) {
        if path.is_dir() {
            for entry in fs::read_dir(path).expect("a directory") {
                self.add_tests(&entry.expect("an entry").path());
            }
            return;
        }
        let below = path.strip_prefix(root()).expect("below the root");
        self.files.push(below.to_str().expect("UTF-8").to_owned());
        if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(path).expect("a source");
            let functions = text
                .split("fn ")
                .skip(1)
                .filter_map(|rest| rest.split_once('('));
            self.names
                .extend(functions.map(|(name, _)| name.to_owned()));
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let variables = words.filter(|word| word.starts_with("PROFILER_"));
            self.names.extend(variables.map(str::to_owned));
        }
    }
}

#[test]
fn names_with_underscores_exist() {
    let mut sources = Sources::read();
    for table in schema().into_keys() {
        sources.names.insert(format!("process_{table}"));
        sources.names.insert(table);
    }
    let foreign = foreign();
    let mut unknown = BTreeSet::new();
    for page in Page::all() {
        for span in page.spans() {
            for name in span.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                let inner = name.trim_matches('_');
                if inner.contains('_') && !sources.names.contains(name) && !foreign.contains(name) {
                    unknown.insert(format!("{}: {name}", page.path));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "unknown names:\n{}", join(&unknown));
}

/// Ends of names of files.
const ENDINGS: [&str; 20] = [
    "arrows", "bt", "h", "hpp", "html", "jl", "json", "jsonl", "lua", "md", "parquet", "png", "py",
    "rs", "service", "sh", "so", "sql", "toml", "txt",
];

#[test]
fn files_exist() {
    let sources = Sources::read();
    let foreign = foreign();
    let mut unknown = BTreeSet::new();
    let mut found = 0;
    for page in Page::all() {
        for span in page.spans() {
            let is_path = span
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte));
            let ending = Path::new(span).extension().and_then(|end| end.to_str());
            let is_file = is_path && ending.is_some_and(|ending| ENDINGS.contains(&ending));
            if !is_file || foreign.contains(span) {
                continue;
            }
            found += 1;
            let path = span.trim_start_matches("../");
            let inside = format!("/{path}");
            let is_ours = sources
                .files
                .iter()
                .any(|file| file == path || file.ends_with(&inside));
            // Files that the program reads and writes are in its sources.
            let is_written = ending != Some("rs") && sources.text.contains(path);
            if !is_ours && !is_written {
                unknown.insert(format!("{}: {span}", page.path));
            }
        }
    }
    assert!(unknown.is_empty(), "unknown files:\n{}", join(&unknown));
    assert!(found >= 150, "{found} files");
}

#[test]
fn foreign_names_are_in_the_pages() {
    let pages = Page::all();
    let unused: Vec<_> = FOREIGN
        .lines()
        .filter(|name| !pages.iter().any(|page| page.text.contains(name)))
        .collect();
    assert!(unused.is_empty(), "no page has {unused:?}");
    assert!(
        FOREIGN.lines().is_sorted(),
        "foreign_names.txt is not sorted"
    );
}
