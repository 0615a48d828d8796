//! `run.json`: description of a run. Target, settings, times, sources, losses, rows per table.

use std::{
    collections::BTreeMap,
    fmt, io,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{Directory, OutputError};
pub use super::process_identity::ProcessIdentity;
use crate::{
    schema::SCHEMA_VERSION,
    support::{labels::Labels, timekeeping::Timekeeping, units::rfc3339},
};

/// Name of the file. If several hosts share a run, all but the first write `run.<hostname>.json`.
pub const FILE: &str = "run.json";

/// Limit of the size of the file in bytes: its content is not trusted.
const MAX_BYTES: u64 = 64 << 20;
/// That of other users: 3 bytes can become a session of several hundred in memory.
const MAX_FOREIGN_BYTES: u64 = 1 << 20;

/// State of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its profiler is running, or was killed and the run has not been recovered.
    #[default]
    Running,
    /// It ended, and every row is in a Parquet file.
    Complete,
    /// It was killed, and the rows of its journals are in Parquet files.
    Recovered,
    /// It ended, but rows are lost, or only in a journal.
    Incomplete,
}

impl State {
    /// Name in `run.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Recovered => "recovered",
            Self::Incomplete => "incomplete",
        }
    }
}

/// Availability of a source. The aliases are the words of schema versions before 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceStatus {
    /// All columns are available.
    #[serde(alias = "works")]
    Ok,
    /// Some columns are null.
    #[serde(alias = "partly")]
    Limited,
    /// Not available.
    #[serde(alias = "no")]
    Unavailable,
    /// Not selected.
    #[serde(alias = "off")]
    Disabled,
}

/// The clock of the node at both ends of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clocks {
    /// At the start. All timestamps of the session have this offset.
    pub start: Option<Timekeeping>,
    /// At the end; `None` if the profiler was killed.
    pub end: Option<Timekeeping>,
}

/// One source of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Name on the command line.
    pub name: String,
    /// Availability.
    pub status: SourceStatus,
    /// Reason, unless all columns are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Rows of one table that this host has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableState {
    /// Rows in Parquet files.
    pub rows: u64,
    /// Parquet files (`part-N.parquet`).
    pub parts: u64,
    /// Lost rows.
    pub dropped: u64,
    /// Rows that are only in a journal.
    pub in_journal: u64,
}

/// A loss: data that was not collected or not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Kind of the losses: `samples`, `operations`, `rows of TABLE`, `rows of threads`.
    pub what: String,
    /// Number of losses.
    pub count: u64,
    /// Cause.
    pub why: String,
    /// The user that sent the marks, or whose processes could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Loss {
    /// [`Self::what`] of lost marks.
    pub const MARKS: &str = "marks";
    /// [`Self::what`] of processes that ended between two readings of `/proc`.
    pub const PROCESS_COUNTERS: &str = "process counters";
    /// [`Self::what`] of processes whose memory could not be read.
    pub const MEMORY: &str = "memory readings";
    /// [`Self::what`] of processes whose descriptors were not read.
    pub const DESCRIPTORS: &str = "descriptor readings";
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.what == "samples" {
            "samples"
        } else {
            &*self.what
        };
        let one = what.strip_suffix('s').filter(|_| self.count == 1);
        write!(f, "{} {}", self.count, one.unwrap_or(what))?;
        if let Some(uid) = self.uid {
            write!(f, " of user {uid}")?;
        }
        write!(f, " lost: {}", self.why)
    }
}

/// Content of `run.json`. Unknown fields are ignored; missing ones have their default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Name of the run and of its directory.
    pub run_id: String,
    /// Node that the file describes.
    pub hostname: String,
    /// State.
    pub state: State,
    /// Version of the profiler.
    pub version: String,
    /// Version of the schema.
    pub schema_version: u32,
    /// Start, RFC 3339 in UTC.
    pub start: String,
    /// Start in ns since 1970-01-01 UTC.
    pub start_ts: i64,
    /// End, RFC 3339 in UTC.
    pub end: Option<String>,
    /// End in ns since 1970-01-01 UTC.
    pub end_ts: Option<i64>,
    /// Command line of the profiler.
    pub command: Vec<String>,
    /// Settings from the configuration file, the environment and the command line.
    pub config: Value,
    /// How often `config` has changed during the session; it has the last values.
    #[serde(skip_serializing_if = "is_zero")]
    pub reloads: u64,
    /// Labels that the user chose.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The target.
    pub target: Value,
    /// Path of the socket for marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<std::path::PathBuf>,
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the user who started the profiler.
    pub user: String,
    /// The user's id; in the run of a job that a profiler of the node has made, that of the job's
    /// user, if known.
    pub uid: Option<u32>,
    /// Exit code of the profiled command: see [`SessionEnd`](crate::output::SessionEnd).
    pub exit_code: Option<u8>,
    /// The profiler.
    pub process: ProcessIdentity,
    /// Availability of all sources.
    pub sources: Vec<SourceState>,
    /// Tables that have had rows.
    pub tables: BTreeMap<String, TableState>,
    /// Losses.
    pub losses: Vec<Loss>,
    /// Number of processes per user whose rows are in the run of the node and not in one of their
    /// job: their environments named more jobs than the quota of the user allows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_claims: BTreeMap<u32, u64>,
    /// Ticks with rows.
    pub samples: Option<u64>,
    /// The clock of the node.
    pub clock: Clocks,
    /// Earlier sessions of this host in this run, oldest first. A run can be continued.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Manifest>,
    /// Tables when this profiler continued the run, if it had written it before.
    #[serde(skip)]
    pub(crate) tables_before: BTreeMap<String, TableState>,
    /// Ticks at that time.
    #[serde(skip)]
    pub(crate) samples_before: u64,
}

impl Manifest {
    /// Describes a run of this process that starts at `start_ts` (ns since 1970-01-01 UTC).
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be read.
    pub fn new(run_id: &str, hostname: &str, start_ts: i64) -> io::Result<Self> {
        Ok(Self {
            run_id: run_id.to_owned(),
            hostname: hostname.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: SCHEMA_VERSION,
            start: rfc3339(start_ts),
            start_ts,
            process: ProcessIdentity::current()?,
            ..Self::default()
        })
    }

    /// Sets the start of the run (ns since 1970-01-01 UTC).
    pub fn set_start(&mut self, start_ts: i64) {
        self.start = rfc3339(start_ts);
        self.start_ts = start_ts;
    }

    /// Whether rows can be in journals.
    pub(crate) fn has_journals(&self) -> bool {
        let here = match self.state {
            State::Running => true,
            State::Incomplete => self.tables.values().any(|table| table.in_journal > 0),
            State::Complete | State::Recovered => false,
        };
        here || self.earlier.iter().any(Self::has_journals)
    }

    /// All sessions of the host, oldest first.
    pub fn sessions(&self) -> impl Iterator<Item = &Self> {
        self.earlier.iter().chain([self])
    }

    /// Adds the history that another writer of this run has found when it created the file.
    pub(super) fn continues(&mut self, found: Self) {
        self.earlier = found.earlier;
        (self.start, self.start_ts) = (found.start, found.start_ts);
        self.clock.start = found.clock.start;
        self.losses.splice(0..0, found.losses);
        self.tables = found.tables;
        self.tables_before = found.tables_before;
        (self.samples, self.samples_before) = (found.samples, found.samples_before);
    }

    /// Adds the history of this host in the run. The profiler that wrote `before` continues its
    /// session; another one begins a new session.
    fn follow(&mut self, mut before: Self) {
        self.earlier = std::mem::take(&mut before.earlier);
        if before.process == self.process && before.state != State::Running {
            (self.start, self.start_ts) = (before.start, before.start_ts);
            self.clock.start = before.clock.start;
            self.losses.splice(0..0, before.losses);
            self.tables.clone_from(&before.tables);
            self.tables_before = before.tables;
            self.samples = before.samples;
            self.samples_before = before.samples.unwrap_or(0);
        } else {
            self.earlier.push(before);
        }
    }

    /// Replaces the settings during the session.
    pub fn reconfigure(&mut self, config: &Value) {
        self.config.clone_from(config);
        self.reloads += 1;
    }

    /// Sets the end of the run (ns since 1970-01-01 UTC).
    pub fn set_end(&mut self, end_ts: i64) {
        self.end = Some(rfc3339(end_ts));
        self.end_ts = Some(end_ts);
    }

    /// Sets the final state. The run ends now, unless its end has been set.
    pub(super) fn finish(&mut self, complete: bool) {
        if self.end_ts.is_none() {
            self.set_end(now_ns());
        }
        let lost = self
            .tables
            .iter()
            .filter(|(_, table)| table.dropped > 0)
            .map(|(name, table)| Loss {
                what: format!("rows of {name}"),
                count: table.dropped,
                why: "could not be stored in time".to_owned(),
                uid: None,
            });
        self.losses.extend(lost);
        self.state = if complete {
            State::Complete
        } else {
            State::Incomplete
        };
    }

    /// Sets the state after the recovery of the journals: of all if `complete`.
    pub(super) fn settle(&mut self, complete: bool) {
        if complete {
            for table in self.tables.values_mut() {
                table.in_journal = 0;
            }
        }
        let lost = self.tables.values().any(|table| table.dropped > 0);
        self.state = match self.state {
            _ if !complete => State::Incomplete,
            State::Incomplete if lost => State::Incomplete,
            _ => State::Recovered,
        };
    }

    /// Writes the file for the first time and returns its name. Earlier sessions of this host in
    /// the run are kept.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn create(&mut self, run: &Directory) -> Result<String, OutputError> {
        let of_host = format!("run.{}.json", self.hostname);
        let error = |error| OutputError::new(run.path(), error);
        let bytes = self.to_json().map_err(error)?;
        match run.write_new_among(FILE, &self.hostname, &bytes) {
            Ok(()) => return Ok(FILE.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(error(source)),
        }
        // The run is continued, or another host has created it.
        let ours = |name| {
            Self::read(run, name)
                .ok()
                .filter(|m| m.hostname == self.hostname)
        };
        let (name, before) = match ours(FILE) {
            Some(before) => (FILE, Some(before)),
            None => (&*of_host, ours(&of_host)),
        };
        if let Some(before) = before {
            self.follow(before);
        }
        let bytes = self.to_json().map_err(error)?;
        run.replace(name, &self.hostname, &bytes).map_err(error)?;
        Ok(name.to_owned())
    }

    /// Replaces the file `name`.
    ///
    /// # Errors
    ///
    /// When it cannot be written; the old file remains.
    pub(super) fn write(&self, run: &Directory, name: &str) -> io::Result<()> {
        run.replace(name, &self.hostname, &self.to_json()?)
    }

    /// Reads the file `name` of a run.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is too large or is not JSON.
    pub fn read(run: &Directory, name: &str) -> io::Result<Self> {
        let text = run.read_whole(name, MAX_BYTES, MAX_FOREIGN_BYTES)?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whether a file of this name has a [`Manifest`].
pub fn is_manifest(name: &str) -> bool {
    name == FILE
        || name
            .strip_prefix("run.")
            .is_some_and(|rest| rest.strip_suffix(".json").is_some())
}

/// Adds numbers from a file, which can have any value.
pub fn saturating_sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn now_ns() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_unknown_fields_are_accepted() {
        let manifest: Manifest =
            serde_json::from_str(r#"{"run_id": "a", "state": "complete", "new": 1}"#).unwrap();
        assert_eq!(manifest.run_id, "a");
        assert_eq!(manifest.state, State::Complete);
    }
}
