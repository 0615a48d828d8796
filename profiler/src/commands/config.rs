//! `profiler config`: the configuration of this node.

use std::{fmt::Write as _, path::PathBuf};

use clap::{Args, ValueHint};

use super::{print, serve};
use crate::{
    analysis::summary::thresholds,
    config::{
        Settings,
        file::{Configuration, SYSTEM_DIRECTORY, SYSTEM_FILE},
    },
    failure::{Failure, Reason},
    report,
    support::log,
};

/// Arguments of `profiler config`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Only check the settings; print nothing if all are valid
    #[arg(long)]
    check: bool,
    /// Read this file instead
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or has an invalid entry.
    pub fn run(&self) -> Result<u8, Failure> {
        let configuration = Configuration::read(self.config.as_deref())?;
        let options = Settings::augment_args(clap::Command::new("run").no_binary_name(true));
        // Variables can be invalid too.
        let given = options
            .try_get_matches_from(std::iter::empty::<&str>())
            .map_err(|error| {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                let why = line.trim_start_matches("error: ").to_owned();
                Failure::new(Reason::Usage, why)
            })?;
        configuration.arguments(&given)?;
        thresholds::check(&configuration)?;
        serve::check(&configuration)?;
        if self.check {
            return Ok(0);
        }
        let mut text = String::new();
        for (name, entry) in configuration.entries() {
            let _ = writeln!(
                text,
                "{name} = {}  # {}:{}",
                entry.value,
                log::path(&entry.path),
                entry.line
            );
        }
        if text.is_empty() && self.config.is_none() {
            report!("no settings in {SYSTEM_FILE} and {SYSTEM_DIRECTORY}/*.toml");
        }
        print(text)?;
        Ok(0)
    }
}
