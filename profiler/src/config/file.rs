//! The configuration files: TOML tables of options.
//!
//! Entries become arguments of the command line, so that a value in a file is parsed and checked
//! like the same value after an option.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, parser::ValueSource};
use serde::de::DeserializeOwned;
use toml::{Spanned, Value};

use super::Settings;
use crate::{
    failure::{Failure, Reason},
    support::{
        names,
        regular_file::{self, Links},
    },
};

/// The file that is read without `--config`, if it exists.
pub const SYSTEM_FILE: &str = "/etc/profiler.toml";
/// Further files, `*.toml`, read after it in the order of their names.
pub const SYSTEM_DIRECTORY: &str = "/etc/profiler.d";
/// The table of `profiler summary` and `profiler report`.
pub const REPORT: &str = "report";
/// The table of `profiler serve`.
pub const SERVE: &str = "serve";

/// The entries of all configuration files. A later file replaces entries of an earlier one, and adds
/// keys to its tables.
#[derive(Debug, Default)]
pub struct Configuration {
    entries: BTreeMap<String, Entry>,
}

/// An entry and its origin.
#[derive(Debug)]
pub struct Entry {
    pub value: Value,
    /// The last file that has the entry.
    pub path: PathBuf,
    pub line: usize,
}

impl Configuration {
    /// Reads the given file, or without one the files of the system.
    ///
    /// # Errors
    ///
    /// When the given file does not exist, or a file cannot be read or is not TOML.
    pub fn read(given: Option<&Path>) -> Result<Self, Failure> {
        match given {
            Some(path) => {
                let mut configuration = Self::default();
                configuration.add(path, &text(path)?)?;
                Ok(configuration)
            }
            None => Self::of_system(Path::new(SYSTEM_FILE), Path::new(SYSTEM_DIRECTORY)),
        }
    }

    fn of_system(file: &Path, directory: &Path) -> Result<Self, Failure> {
        let mut paths = Vec::new();
        match fs::read_dir(directory) {
            Ok(entries) => {
                for entry in entries {
                    let path = entry.map_err(|error| failure(directory, &error))?.path();
                    if path
                        .extension()
                        .is_some_and(|extension| extension == "toml")
                    {
                        paths.push(path);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failure(directory, &error)),
        }
        paths.sort();
        if file.exists() {
            paths.insert(0, file.to_owned());
        }
        let mut configuration = Self::default();
        for path in paths {
            configuration.add(&path, &text(&path)?)?;
        }
        Ok(configuration)
    }

    fn add(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        let line_of = |offset: usize| {
            let before = text.get(..offset).unwrap_or_default();
            before.matches('\n').count() + 1
        };
        let entries: BTreeMap<Spanned<String>, Spanned<Value>> =
            toml::from_str(text).map_err(|error| {
                // Display would quote the line, which can hold anything.
                let line = line_of(error.span().map_or(0, |span| span.start));
                failure(path, &format!("line {line}: {}", error.message()))
            })?;
        for (name, value) in entries {
            let line = line_of(name.span().start);
            let mut value = value.into_inner();
            if let Some(earlier) = self.entries.remove(name.get_ref()) {
                value = merged(earlier.value, value);
            }
            let entry = Entry {
                value,
                path: path.to_owned(),
                line,
            };
            self.entries.insert(name.into_inner(), entry);
        }
        Ok(())
    }

    /// All entries by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (&**name, entry))
    }

    /// A table of the file, with default values if no file has it.
    ///
    /// # Errors
    ///
    /// When the table has an unknown entry or an invalid value.
    pub fn table<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, Failure> {
        let Some(entry) = self.entries.get(name) else {
            return Ok(T::default());
        };
        let table = entry.value.clone().try_into();
        table.map_err(|error: toml::de::Error| entry.failure(&nearest_first(error.message())))
    }

    /// Arguments for the options that the user has not set otherwise. `given` are the options on
    /// the command line and in the environment.
    ///
    /// # Errors
    ///
    /// When there is an unknown option or an invalid value.
    pub fn arguments(&self, given: &ArgMatches) -> Result<Vec<OsString>, Failure> {
        let mut arguments = Vec::new();
        let is_option = |name: &str| ![REPORT, SERVE].contains(&name);
        for (name, entry) in self.entries().filter(|(name, _)| is_option(name)) {
            let argument =
                argument(name, &entry.value).map_err(|why| entry.failure(&why.to_string()))?;
            // Labels are added to those of the user.
            let is_given = name != "labels"
                && matches!(
                    given.value_source(name),
                    Some(ValueSource::CommandLine | ValueSource::EnvVariable)
                );
            arguments.extend(argument.filter(|_| !is_given));
        }
        Ok(arguments)
    }
}

impl Entry {
    fn failure(&self, what: &str) -> Failure {
        failure(&self.path, &format!("line {}: {what}", self.line))
    }
}

/// The message of serde about an unknown key, as about an unknown option.
fn nearest_first(message: &str) -> String {
    let known = message.strip_prefix("unknown field `").and_then(|rest| {
        let (key, known) = rest.split_once("`, expected ")?;
        // Names are between the backticks.
        let known = known.split('`').skip(1).step_by(2);
        Some(names::unknown("setting", key, known))
    });
    known.unwrap_or_else(|| message.to_owned())
}

fn failure(path: &Path, what: &dyn std::fmt::Display) -> Failure {
    Failure::new(Reason::Usage, format!("{}: {what}", path.display()))
}

fn text(path: &Path) -> Result<String, Failure> {
    regular_file::read_to_string(path, Links::Followed).map_err(|error| {
        let message = format!("cannot read settings {}: {error}", path.display());
        Failure::new(Reason::Usage, message)
    })
}

/// The later value; of two tables, the keys of both.
fn merged(earlier: Value, later: Value) -> Value {
    match (earlier, later) {
        (Value::Table(mut earlier), Value::Table(later)) => {
            for (key, value) in later {
                let value = match earlier.remove(&key) {
                    Some(before) => merged(before, value),
                    None => value,
                };
                earlier.insert(key, value);
            }
            Value::Table(earlier)
        }
        (_, later) => later,
    }
}

/// Arguments for the options in the configuration files that the user has not set otherwise.
///
/// `given` are the options on the command line and in the environment, `--config` among them.
///
/// # Errors
///
/// When a file cannot be read, or has an unknown option or an invalid value.
pub fn arguments(given: &ArgMatches) -> Result<Vec<OsString>, Failure> {
    let path = given.get_one::<PathBuf>("config");
    Configuration::read(path.map(PathBuf::as_path))?.arguments(given)
}

/// The socket of the service in the files of the system.
///
/// # Errors
///
/// When a file is unreadable or the entry is invalid.
pub fn service() -> Result<Option<PathBuf>, Failure> {
    path_of_system("service")
}

/// The directory of runs in the files of the system.
///
/// # Errors
///
/// When a file is unreadable or the entry is invalid.
pub fn out() -> Result<Option<PathBuf>, Failure> {
    path_of_system("out")
}

fn path_of_system(name: &str) -> Result<Option<PathBuf>, Failure> {
    let configuration = Configuration::read(None)?;
    let Some(entry) = configuration.entries.get(name) else {
        return Ok(None);
    };
    match &entry.value {
        Value::String(path) => Ok(Some(path.into())),
        _ => Err(entry.failure(&format!("{name}: expected a text"))),
    }
}

/// Why an entry is not an option.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("{0}")]
    Unknown(String),
    #[error("{name}: expected {expected}")]
    Type {
        name: String,
        expected: &'static str,
    },
    #[error("{name}: {why}")]
    Value { name: String, why: String },
}

/// Whether an option of [`Settings`] can be in the file.
pub fn has(option: &Arg) -> bool {
    !Settings::NOT_IN_FILE.contains(&option.get_id().as_str())
}

/// The argument for one entry; `None` for a flag that is false.
fn argument(name: &str, value: &Value) -> Result<Option<OsString>, EntryError> {
    let options = Settings::augment_args(Command::new("settings").no_binary_name(true));
    let known: Vec<&Arg> = options
        .get_arguments()
        .filter(|option| has(option))
        .collect();
    let Some(option) = known.iter().find(|option| option.get_id() == name) else {
        let known = known.iter().map(|option| option.get_id().as_str());
        return Err(EntryError::Unknown(names::unknown("setting", name, known)));
    };
    let expected = |expected| EntryError::Type {
        name: name.to_owned(),
        expected,
    };
    let long = option.get_long().unwrap_or(name);
    let is_flag = matches!(option.get_action(), ArgAction::SetTrue);
    let argument = match (is_flag, value) {
        (true, Value::Boolean(true)) => format!("--{long}"),
        (true, Value::Boolean(false)) => return Ok(None),
        (true, _) => return Err(expected("true or false")),
        (false, Value::Table(table)) if name == "labels" => {
            let mut labels = Vec::new();
            for (key, value) in table {
                let value = value.as_str().ok_or_else(|| expected("a table of texts"))?;
                labels.push(format!("{key}={value}"));
            }
            format!("--{long}={}", labels.join(","))
        }
        (false, _) if name == "labels" => return Err(expected("a table of texts")),
        (false, Value::String(text)) => format!("--{long}={text}"),
        (false, Value::Integer(number)) => format!("--{long}={number}"),
        (false, _) => return Err(expected("text or an integer")),
    };
    match options.try_get_matches_from([&argument]) {
        Ok(_) => Ok(Some(argument.into())),
        Err(error) => {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let first_line = || {
                error
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            };
            Err(EntryError::Value {
                name: name.to_owned(),
                why: source.unwrap_or_else(first_line),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments of a file with this text, beside options on the command line.
    fn arguments_of(text: &str, options: &[&str]) -> Result<Vec<OsString>, String> {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("profiler.toml");
        fs::write(&path, text).expect("written");
        let given: Vec<OsString> = options.iter().map(Into::into).collect();
        let words = [given, vec!["--config".into(), path.into()]].concat();
        let command = Settings::augment_args(Command::new("run").no_binary_name(true));
        let given = command.try_get_matches_from(words).expect("valid");
        arguments(&given).map_err(|failure| {
            assert_eq!(failure.reason, Reason::Usage);
            failure.message
        })
    }

    #[test]
    fn entries_become_arguments() {
        let text =
            "interval = '100ms'\nthreads = true\nsync = false\nmax_entries = 7\nmax_age = '1d'";
        let found = arguments_of(text, &[]).expect("valid");
        let expected = [
            "--interval=100ms",
            "--max-age=1d",
            "--max-entries=7",
            "--threads",
        ];
        assert_eq!(found, expected);
        assert_eq!(arguments_of("", &[]).expect("valid"), [""; 0]);
    }

    #[test]
    fn command_line_takes_precedence() {
        let text = "interval = '100ms'\nthreads = true\nout = 'x'";
        let found = arguments_of(text, &["-i", "2s", "--threads"]).expect("valid");
        assert_eq!(found, ["--out=x"]);
    }

    #[test]
    fn values_have_the_limits_of_the_options() {
        for (entries, is_accepted) in [(0, false), (1, true), (1 << 24, true), (1 << 25, false)] {
            let text = format!("max_entries = {entries}");
            assert_eq!(arguments_of(&text, &[]).is_ok(), is_accepted, "{entries}");
        }
    }

    #[test]
    fn errors_name_line_and_setting() {
        for (text, error) in [
            (
                "\ninterval = '999us'",
                "line 2: interval: `999us` is not between 1ms and 1h",
            ),
            (
                "intervall = '1s'",
                "line 1: unknown setting `intervall`; settings are interval, ",
            ),
            ("run_id = 'x'", "line 1: unknown setting `run_id`"),
            ("threads = 'yes'", "line 1: threads: expected true or false"),
            ("out = true", "line 1: out: expected text or an integer"),
            ("sync = true\nsync = true", "line 2: duplicate key"),
            ("sync = true\nx", "line 2: "),
        ] {
            let found = arguments_of(text, &[]).expect_err("invalid");
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn unknown_keys_of_tables_name_the_nearest_first() {
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Table {
            sessions: u32,
            users: u32,
        }
        let mut configuration = Configuration::default();
        let text = "[table]\nuser = 1";
        configuration.add(Path::new("x"), text).expect("TOML");
        let error = configuration.table::<Table>("table").expect_err("unknown");
        assert_eq!(
            error.message,
            "x: line 1: unknown setting `user`; settings are users, sessions"
        );
        configuration = Configuration::default();
        configuration
            .add(Path::new("x"), "[table]\nusers = 'one'\nsessions = 1")
            .expect("TOML");
        let error = configuration.table::<Table>("table").expect_err("invalid");
        assert!(error.message.contains("invalid type"), "{error}");
    }

    #[test]
    fn later_files_replace_entries_and_add_keys() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let (file, drop_ins) = (
            directory.path().join("profiler.toml"),
            directory.path().join("profiler.d"),
        );
        let read = || Configuration::of_system(&file, &drop_ins);
        assert_eq!(read().expect("no file").entries().count(), 0);

        let write = |path: &Path, text: &str| fs::write(path, text).expect("written");
        write(
            &file,
            "interval = '2s'\nout = 'a'\nlabels = { x = '1', y = '1' }\n[report.thresholds]\ncpu_percent = 80",
        );
        fs::create_dir(&drop_ins).expect("a directory");
        write(&drop_ins.join("20-b.toml"), "\ninterval = '3s'");
        write(
            &drop_ins.join("10-a.toml"),
            "interval = '4s'\nlabels = { y = '2' }\n[report]\nceilings = '/c'",
        );
        write(&drop_ins.join("30-c.toml.old"), "not read");
        let configuration = read().expect("valid");
        let command = Settings::augment_args(Command::new("run").no_binary_name(true));
        let given = command
            .try_get_matches_from(Vec::<OsString>::new())
            .expect("valid");
        let arguments = configuration.arguments(&given).expect("valid");
        assert_eq!(arguments, ["--interval=3s", "--label=x=1,y=2", "--out=a"]);
        let report: toml::Table = configuration.table(REPORT).expect("a table");
        assert_eq!(report.len(), 2, "{report:?}");

        write(&drop_ins.join("40-d.toml"), "\ninterval = '0s'");
        let error = read().expect("TOML").arguments(&given).expect_err("0 s");
        let expected = format!("{}: line 2: ", drop_ins.join("40-d.toml").display());
        assert!(error.message.starts_with(&expected), "{}", error.message);
    }

    #[test]
    fn excluded_options_exist() {
        let command = Settings::augment_args(Command::new("run"));
        for name in Settings::NOT_IN_FILE {
            let mut options = command.get_arguments();
            assert!(options.any(|option| option.get_id() == name), "{name}");
        }
    }
}
