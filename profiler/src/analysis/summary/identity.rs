//! Who ran what, when, with which result, from the manifests of a run.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    analysis::stored_run::StoredRun,
    output::dataset::manifest::{Loss, Manifest, SourceState, SourceStatus, State},
};

/// Facts about a run.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    pub run_id: String,
    pub path: PathBuf,
    pub user: Option<String>,
    pub scheduler: Option<String>,
    pub job_id: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// The target, as text.
    pub target: String,
    /// Command line of the profiler.
    pub command: Vec<String>,
    /// Start of the first host, ns since 1970-01-01 UTC.
    pub start: Option<i64>,
    /// End of the last host, ns since 1970-01-01 UTC; `None` while it runs and after a crash.
    pub end: Option<i64>,
    pub interval_ns: Option<u64>,
    /// Samples of the host with the most; `None` while it runs.
    pub samples: Option<u64>,
    /// Exit code of the command.
    pub exit_code: Option<u8>,
    pub state: Option<State>,
    pub version: String,
    /// Version of the schema of the first host.
    pub schema_version: u32,
    /// Time between the first and the last start of a host, each by its own clock, ns.
    pub starts_within: i64,
    /// Sessions that did not end in order, by host: when they began, ns since 1970-01-01 UTC, and what
    /// [happened](Manifest::interruption).
    pub interruptions: Vec<(String, i64, String)>,
    /// Losses by host.
    pub losses: Vec<(String, Loss)>,
    /// Sources that are not complete, by host.
    pub sources: Vec<(String, SourceState)>,
}

impl Identity {
    /// The facts in the manifests.
    pub fn of(run: &StoredRun) -> Self {
        let mut identity = Self {
            run_id: run.id(),
            path: run.path.clone(),
            ..Self::default()
        };
        let Some(first) = run.manifests().next() else {
            return identity;
        };
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let job = &first.target["job"];
        identity.user = Some(first.user.clone()).filter(|user| !user.is_empty());
        identity.scheduler = text(&job["scheduler"]);
        identity.job_id = text(&job["id"]);
        identity.labels = first.labels.0.clone();
        identity.target = text(&first.target["what"]).unwrap_or_default();
        identity.command.clone_from(&first.command);
        identity.interval_ns = first.config["interval_ns"].as_u64();
        identity.version.clone_from(&first.version);
        identity.schema_version = first.schema_version;
        let samples = |manifest: &Manifest| {
            let sessions = manifest.sessions().map(|session| session.samples);
            let sum = sessions.reduce(|sum, samples| Some(sum?.saturating_add(samples?)));
            sum.flatten()
        };
        identity.samples = run.manifests().filter_map(samples).max();
        let starts = || run.manifests().map(|manifest| manifest.start_ts);
        let ends = starts().min().zip(starts().max());
        identity.starts_within = ends.map_or(0, |(first, last)| last.saturating_sub(first));
        identity.exit_code = run
            .manifests()
            .filter_map(|manifest| manifest.exit_code)
            .max();
        let sessions = || run.manifests().flat_map(Manifest::sessions);
        identity.start = sessions().map(|session| session.start_ts).min();
        let ends: Option<Vec<i64>> = run.manifests().map(|manifest| manifest.end_ts).collect();
        identity.end = ends.and_then(|ends| ends.into_iter().max());
        identity.state = run
            .manifests()
            .map(|manifest| manifest.state)
            .max_by_key(|state| rank(*state));
        for manifest in run.manifests() {
            let host = || manifest.hostname.clone();
            let interrupted = manifest
                .sessions()
                .filter_map(|session| Some((host(), session.start_ts, session.interruption()?)));
            identity.interruptions.extend(interrupted);
            let losses = manifest.sessions().flat_map(|session| &session.losses);
            identity
                .losses
                .extend(losses.map(|loss| (host(), loss.clone())));
            let partial = manifest.sources.iter().filter(|source| {
                matches!(
                    source.status,
                    SourceStatus::Limited | SourceStatus::Unavailable
                )
            });
            identity
                .sources
                .extend(partial.map(|source| (host(), source.clone())));
        }
        identity
    }
}

/// The state of a run is the worst of its hosts.
pub(super) fn rank(state: State) -> u8 {
    match state {
        State::Complete => 0,
        State::Recovered => 1,
        State::Incomplete => 2,
        State::Running => 3,
    }
}
