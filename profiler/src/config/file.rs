//! The configuration file: a TOML table of options.
//!
//! Its entries become arguments of the command line, so that a value in the file is parsed and
//! checked like the same value after an option.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, parser::ValueSource};
use toml::{Spanned, Value};

use super::Settings;
use crate::failure::{Failure, Reason};

/// The file that is read without `--config`, if it exists.
pub const SYSTEM_FILE: &str = "/etc/profiler.toml";

/// Arguments for the options in the configuration file that the user has not set otherwise.
///
/// `given` are the options on the command line and in the environment, `--config` among them.
///
/// # Errors
///
/// When the file cannot be read, or has an unknown option or an invalid value.
pub fn arguments(given: &ArgMatches) -> Result<Vec<OsString>, Failure> {
    let (path, required) = match given.get_one::<std::path::PathBuf>("config") {
        Some(path) => (path.as_path(), true),
        None => (Path::new(SYSTEM_FILE), false),
    };
    let fail = |what: String| Failure::new(Reason::Usage, format!("{}: {what}", path.display()));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(fail(error.to_string())),
    };
    let line_of = |offset: usize| {
        let before = text.get(..offset).unwrap_or_default();
        before.matches('\n').count() + 1
    };
    let entries: BTreeMap<Spanned<String>, Spanned<Value>> =
        toml::from_str(&text).map_err(|error| {
            // Display would quote the line, which can hold anything.
            let line = line_of(error.span().map_or(0, |span| span.start));
            fail(format!("line {line}: {}", error.message()))
        })?;
    let mut arguments = Vec::new();
    // The table of `profiler summary` and `profiler report`.
    for (name, value) in entries
        .iter()
        .filter(|(name, _)| name.get_ref() != "report")
    {
        let line = line_of(name.span().start);
        let argument = argument(name.get_ref(), value.get_ref())
            .map_err(|why| fail(format!("line {line}: {why}")))?;
        // Labels are added to those of the user.
        let is_given = name.get_ref() != "labels"
            && matches!(
                given.value_source(name.get_ref()),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            );
        arguments.extend(argument.filter(|_| !is_given));
    }
    Ok(arguments)
}

/// Why an entry is not an option.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("unknown setting `{name}`; settings are {known}")]
    Unknown { name: String, known: String },
    #[error("{name}: expected {expected}")]
    Type {
        name: String,
        expected: &'static str,
    },
    #[error("{name}: {why}")]
    Value { name: String, why: String },
}

/// The argument for one entry; `None` for a flag that is false.
fn argument(name: &str, value: &Value) -> Result<Option<OsString>, EntryError> {
    let options = Settings::augment_args(Command::new("settings").no_binary_name(true));
    let known: Vec<&Arg> = options
        .get_arguments()
        .filter(|option| !Settings::NOT_IN_FILE.contains(&option.get_id().as_str()))
        .collect();
    let Some(option) = known.iter().find(|option| option.get_id() == name) else {
        let known: Vec<_> = known
            .iter()
            .map(|option| option.get_id().as_str())
            .collect();
        return Err(EntryError::Unknown {
            name: name.to_owned(),
            known: known.join(", "),
        });
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
        std::fs::write(&path, text).expect("written");
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
                "\ninterval = '9ms'",
                "line 2: interval: `9ms` is not between 10ms and 1h",
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
    fn excluded_options_exist() {
        let command = Settings::augment_args(Command::new("run"));
        for name in Settings::NOT_IN_FILE {
            let mut options = command.get_arguments();
            assert!(options.any(|option| option.get_id() == name), "{name}");
        }
    }
}
