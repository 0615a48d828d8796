//! Reload of the configuration on SIGHUP: what can change between two samples is applied, the rest
//! is reported.

use std::thread;

use tokio::sync::oneshot::{self, Receiver};

use crate::{
    config::{Config, Reread},
    failure::Failure,
    report,
    support::log,
    warning,
};

/// Settings that apply from the next sample on, by their names in `run.json`.
const APPLIED: [&str; 4] = ["interval_ns", "keep_free", "max_age_ns", "max_size"];

/// Reads the configuration in a thread of its own, because a file can hang.
pub struct Reload {
    reread: Option<Reread>,
    reading: Option<Receiver<Result<Config, Failure>>>,
    /// Whether a signal has arrived since the thread began.
    is_due: bool,
}

impl Reload {
    /// Without `reread`, signals do not reload.
    pub fn new(reread: Option<Reread>) -> Self {
        Self {
            reread,
            reading: None,
            is_due: false,
        }
    }

    /// Opens the log file again and reads the configuration. Returns whether that is possible.
    pub fn begin(&mut self) -> bool {
        let Some(reread) = self.reread else {
            return false;
        };
        self.is_due = self.reading.is_some();
        if !self.is_due {
            let (answer, reading) = oneshot::channel();
            let thread = thread::Builder::new().name("reload".to_owned());
            let _ = thread.spawn(move || {
                log::reopen();
                let _ = answer.send(reread());
            });
            self.reading = Some(reading);
        }
        true
    }

    /// Waits until the configuration has been read; forever if it is not being read.
    pub async fn read(&mut self) -> Result<Config, Failure> {
        let Some(reading) = &mut self.reading else {
            return std::future::pending().await;
        };
        let read = reading.await;
        self.reading = None;
        if self.is_due {
            self.begin();
        }
        read.unwrap_or_else(|_| Err(Failure::internal("there is no thread to read it")))
    }
}

/// Adopts the settings that can change and reports the others. Returns whether one has changed.
pub fn adopt(config: &mut Config, read: Result<Config, Failure>) -> bool {
    let new = match read {
        Ok(new) => new,
        Err(failure) => {
            warning!("profiler: the configuration is invalid and was not reloaded: {failure}");
            return false;
        }
    };
    let changed = differences(config, &new);
    let (applied, rest): (Vec<&str>, Vec<&str>) = changed
        .iter()
        .map(|name| &**name)
        .partition(|name| APPLIED.contains(name));
    if !rest.is_empty() {
        warning!(
            "profiler: restart the profiler to change {}",
            options(&rest)
        );
    }
    if !config.settings.quiet {
        report!("profiler: configuration reloaded: {}", options(&applied));
    }
    config.settings.interval = new.settings.interval;
    config.settings.keep_free = new.settings.keep_free;
    config.settings.max_age = new.settings.max_age;
    config.settings.max_size = new.settings.max_size;
    !applied.is_empty()
}

/// Names of settings whose values differ. The target and the names of run and host belong to the
/// command line.
fn differences(old: &Config, new: &Config) -> Vec<String> {
    let values = |config: &Config| {
        let mut json = config.to_json();
        json["log"] = serde_json::json!(config.settings.log);
        json["quiet"] = config.settings.quiet.into();
        json["verbose"] = config.settings.verbose.into();
        json
    };
    let (old, new) = (values(old), values(new));
    let entries = new.as_object().into_iter().flatten();
    entries
        .filter(|(name, value)| old.get(&**name) != Some(value))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Names as in the configuration file.
fn options(names: &[&str]) -> String {
    if names.is_empty() {
        return "no change".to_owned();
    }
    let names = names.iter().map(|name| match *name {
        "sources" => "source",
        name => name.strip_suffix("_ns").unwrap_or(name),
    });
    names.collect::<Vec<_>>().join(", ")
}
