//! `profiler man`: manual pages of the subcommands and of the files.

use std::{fs, path::PathBuf};

use clap::{Arg, Args, Command, ValueHint};
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, italic, roman},
};

use super::print_content;
use crate::{
    config::{Settings, file},
    failure::{Failure, Reason},
    schema::{Column, SCHEMA_VERSION, Table, duckdb::type_name},
    sources::dataset_schema,
    support::names,
};

/// Name of the program in the titles of the pages.
const PROGRAM: &str = "profiler";

/// Arguments of `profiler man`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Page to print: a subcommand, or `files`, `tables` or `toml` for the file formats [default:
    /// the page of the program]
    page: Option<String>,
    /// Write all pages into this directory instead, such as /usr/local/share/man
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "page")]
    all: Option<PathBuf>,
}

/// One manual page.
struct Page {
    /// `profiler-run`, `profiler.toml`
    name: String,
    section: u8,
    text: Vec<u8>,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code. `program` is the command line that the pages
    /// describe.
    ///
    /// # Errors
    ///
    /// When there is no such page, or the pages cannot be written.
    pub fn run(&self, program: Command) -> Result<u8, Failure> {
        let pages = pages(program)?;
        if let Some(directory) = &self.all {
            for page in &pages {
                let directory = directory.join(format!("man{}", page.section));
                let path = directory.join(format!("{}.{}", page.name, page.section));
                fs::create_dir_all(&directory)
                    .and_then(|()| fs::write(&path, &page.text))
                    .map_err(|error| {
                        let message = format!("cannot write {}: {error}", path.display());
                        Failure::new(Reason::Output, message)
                    })?;
            }
            return Ok(0);
        }
        let name = match self.page.as_deref() {
            None => PROGRAM.to_owned(),
            Some(name) if name.starts_with(PROGRAM) => name.to_owned(),
            Some("toml") => "profiler.toml".to_owned(),
            Some(name) => format!("{PROGRAM}-{name}"),
        };
        let page = pages.iter().find(|page| page.name == name);
        let page = page.ok_or_else(|| {
            let known = pages.iter().map(|page| page.name.as_str());
            Failure::new(Reason::Usage, names::unknown("page", &name, known))
        })?;
        print_content(&page.text)?;
        Ok(0)
    }
}

fn pages(program: Command) -> Result<Vec<Page>, Failure> {
    let mut pages = vec![files(), tables(), configuration()];
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let version = program.get_version().unwrap_or_default().to_owned();
    let mut commands = vec![program];
    let mut next = 0;
    while let Some(command) = commands.get(next) {
        let below = command.get_subcommands().filter(|one| !one.is_hide_set());
        let below: Vec<Command> = below.cloned().collect();
        commands.extend(below);
        next += 1;
    }
    for command in commands {
        let name = command.get_display_name().unwrap_or(PROGRAM).to_owned();
        let mut text = Vec::new();
        Man::new(command)
            .title(name.to_uppercase())
            .source(format!("{PROGRAM} {version}"))
            .render(&mut text)
            .map_err(Failure::internal)?;
        pages.push(Page {
            name,
            section: 1,
            text,
        });
    }
    pages.sort_by(|a, b| (a.section, &a.name).cmp(&(b.section, &b.name)));
    Ok(pages)
}

/// A page of section 5, of which the title is written.
struct Format {
    name: &'static str,
    roff: Roff,
}

impl Format {
    fn new(name: &'static str, what: &str) -> Self {
        let mut roff = Roff::new();
        let version = concat!("profiler ", env!("CARGO_PKG_VERSION"));
        roff.control("TH", [&*name.to_uppercase(), "5", "", version]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{name} - {what}"))]);
        Self { name, roff }
    }

    fn heading(&mut self, title: &str) -> &mut Self {
        self.roff.control("SH", [title]);
        self
    }

    fn paragraph(&mut self, text: impl Into<Vec<Inline>>) -> &mut Self {
        self.roff.control("PP", []).text(text);
        self
    }

    /// A term and its explanation.
    fn item(&mut self, term: impl Into<Vec<Inline>>, text: &str) -> &mut Self {
        self.roff.control("TP", []).text(term).text([roman(text)]);
        self
    }

    fn see_also(mut self, pages: &[(&str, u8)]) -> Page {
        self.heading("SEE ALSO");
        let mut inlines = Vec::new();
        for (index, (name, section)) in pages.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            inlines.push(roman(separator));
            inlines.push(bold(*name));
            inlines.push(roman(format!("({section})")));
        }
        self.paragraph(inlines);
        Page {
            name: self.name.to_owned(),
            section: 5,
            text: self.roff.to_roff().into_bytes(),
        }
    }
}

/// profiler-files(5)
fn files() -> Page {
    let mut page = Format::new("profiler-files", "files of a run of the profiler");
    page.heading("DESCRIPTION")
        .paragraph([
            bold("profiler run"),
            roman(" creates a directory for each run below "),
            bold("--out"),
            roman(
                ". Its name is the time of the start (UTC), the node and the process id, unless ",
            ),
            bold("--run-id"),
            roman(
                " sets it. If several nodes write into one run, each has a directory in every table. \
                 Parquet files never change once they have their final name, so they can be read \
                 during the run.",
            ),
        ])
        .heading("FILES");
    for (name, text) in [
        (
            "TABLE/host=NODE/part-NNNNN.parquet",
            "Rows of a table up to a checkpoint (--checkpoint, 60 s, or 32 MiB). The Arrow metadata \
             of each field has its unit, its kind (counter, gauge, label) and its meaning.",
        ),
        (
            "TABLE/host=NODE/_part-NNNNN.arrows",
            "Journal of the next Parquet file: an Arrow IPC stream. After a crash, profiler recover \
             converts it to a Parquet file.",
        ),
        (
            "run.json, run.NODE.json",
            "State, target, settings, sources, tables, losses and clock of the run on its first node \
             and on each other node.",
        ),
        (
            "views.sql",
            "Views for DuckDB: one for each table, and some joins.",
        ),
        (
            "../schema.json",
            "All tables and columns with types, units and meanings, for all runs in the output directory. \
             A run that is copied without it has the units and meanings in its Parquet files.",
        ),
        (
            "../README.md",
            "An introduction for readers of the output directory.",
        ),
    ] {
        page.item([bold(name)], text);
    }
    page.heading("STATES OF A RUN");
    for (state, text) in [
        (
            "running",
            "The profiler is running, or was killed and the run has not been recovered.",
        ),
        ("complete", "Every row is in a Parquet file."),
        (
            "recovered",
            "The profiler was killed; the journals are in Parquet files.",
        ),
        ("incomplete", "Rows are lost, or only in a journal."),
    ] {
        page.item([bold(state)], text);
    }
    page.see_also(&[
        ("profiler-tables", 5),
        ("profiler-run", 1),
        ("profiler-recover", 1),
        ("profiler-verify", 1),
    ])
}

/// profiler-tables(5)
fn tables() -> Page {
    let mut page = Format::new("profiler-tables", "tables and columns of a run");
    page.heading("DESCRIPTION").paragraph([roman(format!(
        "Version {SCHEMA_VERSION} of the schema. A counter is the increase during interval_ns, a gauge \
         the value at the time of the sample. Null means \"not available\" and is never 0. Types are \
         those of DuckDB. Readers add the column host from the path."
    ))]);
    page.heading("TABLES");
    for table in dataset_schema().tables() {
        table_of(&mut page, table);
    }
    page.see_also(&[("profiler-files", 5), ("profiler-schema", 1)])
}

fn table_of(page: &mut Format, table: &Table) {
    page.roff.control("SS", [table.name]);
    page.paragraph([roman(format!("{}.", table.help))]);
    for column in table.columns() {
        let Column {
            name,
            unit,
            kind,
            nullable,
            help,
            ..
        } = column;
        let mut facts = vec![type_name(column), kind.as_str().to_owned()];
        facts.extend((!unit.is_empty()).then(|| (*unit).to_owned()));
        facts.extend(nullable.then(|| "or null".to_owned()));
        let term = [bold(*name), roman(format!(" ({})", facts.join(", ")))];
        page.item(term, &format!("{help}."));
    }
}

/// profiler.toml(5)
fn configuration() -> Page {
    let mut page = Format::new("profiler.toml", "configuration of the profiler");
    page.heading("SYNOPSIS")
        .paragraph([
            bold(file::SYSTEM_FILE),
            roman(", "),
            bold(format!("{}/*.toml", file::SYSTEM_DIRECTORY)),
        ])
        .heading("DESCRIPTION")
        .paragraph([
            roman("TOML files with defaults for the options of "),
            bold("profiler run"),
            roman(
                ". They are read in this order, files in the directory by name. Entries of a later \
                 file replace those of an earlier one; its tables are merged key by key. The command line \
                 and the variables PROFILER_* have precedence. An unknown entry or an invalid value \
                 is an error that names its file and line; profiler config --check finds it. The \
                 option ",
            ),
            bold("--config"),
            roman(" names a file that is read instead."),
        ])
        .heading("SETTINGS");
    let options = Settings::augment_args(Command::new("settings"));
    for option in options.get_arguments().filter(|option| file::has(option)) {
        let (value, help) = setting(option);
        page.item(
            [bold(option.get_id().as_str()), roman(" = "), italic(value)],
            &help,
        );
    }
    page.heading("REPORTS");
    page.item(
        [bold("[report.thresholds]")],
        "profiler summary and profiler report tag nodes above these values: cpu_percent, \
         memory_bytes, disk_bytes, cpu_seconds. None has a default.",
    );
    page.item(
        [bold("[report] ceilings = "), italic("PATH")],
        "File with peak performance and bandwidths for the roofline, in the format of profiler ceilings.",
    );
    page.see_also(&[
        ("profiler-config", 1),
        ("profiler-run", 1),
        ("profiler-summary", 1),
        ("profiler-ceilings", 1),
    ])
}

/// Form of the value, and the meaning.
fn setting(option: &Arg) -> (String, String) {
    let help = option.get_long_help().or(option.get_help());
    let mut help = help.map(ToString::to_string).unwrap_or_default();
    let default: Vec<_> = option
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if !default.is_empty() && option.get_action().takes_values() {
        help = format!("{help} [default: {}]", default.join(","));
    }
    let value = match option.get_value_names() {
        _ if option.get_id() == "labels" => "{ KEY = \"VALUE\", … }".to_owned(),
        _ if !option.get_action().takes_values() => "true|false".to_owned(),
        Some([name, ..]) => name.to_string(),
        _ => option.get_id().as_str().to_uppercase(),
    };
    (value, help)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn text(page: &Page) -> String {
        String::from_utf8(page.text.clone()).expect("UTF-8")
    }

    #[test]
    fn every_subcommand_and_every_format_has_a_page() {
        let pages = pages(Cli::command()).expect("pages");
        let names: Vec<_> = pages
            .iter()
            .map(|page| (page.name.as_str(), page.section))
            .collect();
        for name in Cli::command().get_subcommands().map(Command::get_name) {
            assert!(
                names.contains(&(&format!("profiler-{name}"), 1)),
                "{name} of {names:?}"
            );
        }
        for name in ["profiler-files", "profiler-tables", "profiler.toml"] {
            assert!(names.contains(&(name, 5)), "{name}");
        }
    }

    #[test]
    fn pages_have_all_options_and_reference_pages_that_exist() {
        let pages = pages(Cli::command()).expect("pages");
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands() {
            let name = format!("profiler-{}", command.get_name());
            let Some(page) = pages.iter().find(|page| page.name == name) else {
                // clap's `help`.
                continue;
            };
            let text = text(page);
            for option in command.get_opts().filter(|option| !option.is_hide_set()) {
                let long = option
                    .get_long()
                    .expect("a long option")
                    .replace('-', "\\-");
                assert!(text.contains(&format!("\\-\\-{long}")), "{name}: {long}");
            }
        }
        let mut references = 0;
        for page in &pages {
            let text = text(page).replace("\\-", "-").replace("\\fR", "");
            for (at, _) in text.match_indices("profiler-") {
                let rest = &text[at..];
                let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '-');
                let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
                let section = ["(1)", "(5)"]
                    .iter()
                    .find(|section| rest.starts_with(*section));
                let Some(section) = section.and_then(|section| section[1..2].parse::<u8>().ok())
                else {
                    continue;
                };
                references += 1;
                let exists = |other: &Page| other.name == name && other.section == section;
                assert!(pages.iter().any(exists), "{}: {name}({section})", page.name);
            }
        }
        assert!(references > pages.len(), "{references}");
    }

    #[test]
    fn formats_name_all_columns_and_settings() {
        let (tables, configuration) = (text(&tables()), text(&configuration()));
        for column in ["oncpu_ns", "peak_rss", "interval_ns"] {
            assert!(tables.contains(&format!("\\fB{column}\\fR")), "{column}");
        }
        for setting in ["interval", "max_entries", "labels"] {
            assert!(
                configuration.contains(&format!("\\fB{setting}\\fR = ")),
                "{setting}"
            );
        }
        assert!(!configuration.contains("\\fBconfig\\fR = "));
    }
}
