//! `profiler.toml`, up to the settings of a run.

#![no_main]

use std::{ffi::OsString, fs, path::PathBuf};

use libfuzzer_sys::fuzz_target;
use profiler::{
    cli::{Cli, Command, ParseError},
    config::Config,
};

thread_local! {
    static FILE: PathBuf =
        std::env::temp_dir().join(format!("profiler-fuzz-settings-{}.toml", std::process::id()));
}

fuzz_target!(|data: &[u8]| {
    FILE.with(|file| {
        fs::write(file, data).unwrap();
        let words = ["profiler", "run", "--node", "--config"].map(OsString::from);
        let words = words.into_iter().chain([file.into()]);
        let cli = match Cli::read(words.collect()) {
            Ok(cli) => cli,
            Err(ParseError::File(failure)) => {
                assert!(!failure.to_string().is_empty());
                return;
            }
            Err(ParseError::CommandLine(error)) => panic!("{error}"),
        };
        let Command::Run(run) = cli.command else {
            panic!("{cli:?}");
        };
        match run.into_config() {
            Ok(config) => check(&config),
            Err(failure) => assert!(!failure.to_string().is_empty()),
        }
    });
});

/// The file must not contain values that the command line would reject.
fn check(config: &Config) {
    let settings = &config.settings;
    assert!((10..=3_600_000).contains(&settings.interval.as_millis()));
    assert!(!settings.checkpoint.is_zero());
    for length in [settings.duration, settings.max_age] {
        assert!(length.is_none_or(|length| !length.is_zero()));
    }
    let entries = settings.max_entries.unwrap_or(1);
    assert!((1..=1 << 24).contains(&entries), "{entries}");
    assert!(config.sources.iter().count() > 0);
    let stored = config.to_json().to_string();
    assert!(serde_json::from_str::<serde_json::Value>(&stored).is_ok());
}
