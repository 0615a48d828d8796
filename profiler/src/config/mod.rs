//! Configuration of a run: target, settings, sources and hardware events.

pub mod file;
mod settings;
mod sources;

use std::{ffi::OsString, path::PathBuf, sync::Arc};

pub use self::{
    settings::{OUT, Settings, SplitBy, Switch},
    sources::Sources,
};
use crate::{failure::Failure, job, perf::Selection, service::connection::Client};

/// The processes that a run profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Processes and their descendants.
    Pids(Vec<u32>),
    /// A command that the profiler starts.
    Command(Vec<OsString>),
    /// Members of a cgroup and of those below it.
    Cgroup(PathBuf),
    /// The processes of a batch job on this node.
    Job(job::Request),
    /// Every process.
    Node,
}

/// Reads the configuration of this process again: its files, with the same options and variables.
pub type Reread = fn() -> Result<Config, Failure>;

/// A validated configuration.
#[derive(Clone)]
pub struct Config {
    /// The processes to profile.
    pub target: Target,
    /// Options that need no interpretation.
    pub settings: Settings,
    /// Sources to collect from.
    pub sources: Sources,
    /// Hardware events to count.
    pub perf: Selection,
    /// Whether the profiler goes on after the run, with programs of the user who called sudo.
    pub continues_after_run: bool,
    /// The client that gets the rows, in a process of the service.
    pub client: Option<Arc<Client>>,
}

impl Config {
    /// Interprets the settings.
    ///
    /// # Errors
    ///
    /// When the list of sources, groups or events is invalid.
    pub fn new(target: Target, settings: Settings) -> Result<Self, Failure> {
        Ok(Self {
            target,
            sources: Sources::select(settings.source.as_deref())?,
            perf: Selection::new(
                settings.groups.as_deref(),
                settings.events.as_deref(),
                settings.perfevents.clone(),
            )?,
            settings,
            continues_after_run: false,
            client: None,
        })
    }

    /// Whether [rows of sleeping processes](crate::schema::Table::sparse) are left out. Clients of the
    /// service get all rows, and with threads, readings have all processes.
    pub fn is_sparse(&self) -> bool {
        let default = matches!(self.target, Target::Node);
        let is_on = self
            .settings
            .sparse
            .map_or(default, |switch| switch == Switch::On);
        is_on && self.client.is_none() && !self.settings.threads
    }

    /// The object `config` of `run.json`.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(&self.settings).unwrap_or_default();
        json["sources"] = self.sources.iter().map(|spec| spec.name).collect();
        json["sparse"] = self.is_sparse().into();
        json["groups"] = serde_json::json!(self.perf.groups);
        json["events"] = serde_json::json!(self.perf.events.names());
        json
    }
}
