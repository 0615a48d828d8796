//! `run.json`: who measured what, when, with what, and whether all of it is there.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read as _},
    time::{SystemTime, UNIX_EPOCH},
};

use arrow::temporal_conversions::timestamp_ns_to_datetime;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{Directory, OutputError};
use crate::{schema::SCHEMA_VERSION, support::clock::Timekeeping};

/// Name of the file. Where several hosts share a run, the others write `run.<hostname>.json`.
pub const FILE: &str = "run.json";

/// No file of ours is larger (bytes).
const MAX_BYTES: u64 = 16 << 20;

/// How a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its profiler is alive, or was killed and nobody has recovered it yet.
    #[default]
    Running,
    /// It ended, and every row is in a part.
    Complete,
    /// It was killed; what its journals held is in parts.
    Recovered,
    /// It ended, but rows are lost or only in a journal.
    Incomplete,
}

/// How far a source worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceStatus {
    /// All columns.
    Works,
    /// Some columns are null.
    Partly,
    /// Not available here.
    No,
    /// Not asked for.
    Off,
}

/// The clock of the node when the session began and when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clocks {
    /// At the start: all timestamps of the session have this offset.
    pub start: Option<Timekeeping>,
    /// At the end; `None` after a kill.
    pub end: Option<Timekeeping>,
}

/// One source of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Name on the command line.
    pub name: String,
    /// How far it worked.
    pub status: SourceStatus,
    /// What is missing, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What is stored of one table, for this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableState {
    /// Rows in parts.
    pub rows: u64,
    /// Parts.
    pub parts: u64,
    /// Rows that are lost.
    pub dropped: u64,
    /// Rows that only a journal has.
    pub in_journal: u64,
}

/// Something that is not in the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// What was lost: a table, a BPF map, ticks.
    pub what: String,
    /// How many of them.
    pub count: u64,
    /// Why.
    pub why: String,
    /// The user who lost it, of marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Loss {
    /// [`Self::what`] of marks of applications.
    pub const MARKS: &str = "marks";
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.what)?;
        if let Some(uid) = self.uid {
            write!(f, " of user {uid}")?;
        }
        write!(f, " lost: {}", self.why)
    }
}

/// What identifies a process for as long as its machine runs, and afterwards tells that it is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Start of the process in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

impl ProcessIdentity {
    /// This process.
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        let pid = std::process::id().cast_signed();
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid)?,
            boot_id: boot_id()?,
        })
    }

    /// Whether the process still runs; `None` if it is one of another machine, or of this one before it was booted.
    pub fn is_alive_here(&self) -> Option<bool> {
        let here = boot_id().is_ok_and(|boot| boot == self.boot_id);
        here.then(|| self.is_alive())
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
            && start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }
}

fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command, in parentheses, can contain anything; field 3 follows it.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(22 - 3)?.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "field 22 of stat"))
}

/// The content of `run.json`. Fields that it does not know are ignored, those that are missing are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Name of the run and of its directory.
    pub run_id: String,
    /// Node that this file is about.
    pub hostname: String,
    /// How the run stands.
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
    /// Settings after file, environment and command line.
    pub config: Value,
    /// What was profiled.
    pub target: Value,
    /// Where applications sent marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<std::path::PathBuf>,
    /// Release of the kernel.
    pub kernel: String,
    /// Who started the profiler.
    pub user: String,
    /// The profiler itself.
    pub process: ProcessIdentity,
    /// All sources.
    pub sources: Vec<SourceState>,
    /// All tables that had rows.
    pub tables: BTreeMap<String, TableState>,
    /// What is not in the data.
    pub losses: Vec<Loss>,
    /// Processes that got no run of their job, by user: their environments named more jobs than the quota allows. Their
    /// rows are in the node's run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_claims: BTreeMap<u32, u64>,
    /// Ticks of which there are rows.
    pub ticks: Option<u64>,
    /// The node's clock.
    pub clock: Clocks,
    /// Sessions of this host in this run before this one, oldest first: a run can be continued.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Manifest>,
    /// What this same profiler had stored when it took up the run once more.
    #[serde(skip)]
    pub(crate) tables_before: BTreeMap<String, TableState>,
    /// The ticks of that.
    #[serde(skip)]
    pub(crate) ticks_before: u64,
}

impl Manifest {
    /// A run of this process that starts at `start_ts` (ns since 1970-01-01 UTC).
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

    /// Says that the run begins at `start_ts` (ns since 1970-01-01 UTC).
    pub fn begins(&mut self, start_ts: i64) {
        self.start = rfc3339(start_ts);
        self.start_ts = start_ts;
    }

    /// Whether rows can still be in journals.
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

    /// Takes over what was found when the file was made.
    pub(super) fn continues(&mut self, found: Self) {
        self.earlier = found.earlier;
        (self.start, self.start_ts) = (found.start, found.start_ts);
        self.clock.start = found.clock.start;
        self.losses.splice(0..0, found.losses);
        self.tables = found.tables;
        self.tables_before = found.tables_before;
        (self.ticks, self.ticks_before) = (found.ticks, found.ticks_before);
    }

    /// Takes over what `before`, the session of this host before this one, has left. The same profiler goes on where
    /// it was; another one begins a new session.
    fn follow(&mut self, mut before: Self) {
        self.earlier = std::mem::take(&mut before.earlier);
        if before.process == self.process && before.state != State::Running {
            (self.start, self.start_ts) = (before.start, before.start_ts);
            self.clock.start = before.clock.start;
            self.losses.splice(0..0, before.losses);
            self.tables.clone_from(&before.tables);
            self.tables_before = before.tables;
            self.ticks = before.ticks;
            self.ticks_before = before.ticks.unwrap_or(0);
        } else {
            self.earlier.push(before);
        }
    }

    /// Says that the run has ended at `end_ts` (ns since 1970-01-01 UTC).
    pub fn set_end(&mut self, end_ts: i64) {
        self.end = Some(rfc3339(end_ts));
        self.end_ts = Some(end_ts);
    }

    /// Says how the run has ended; now, if nobody has said when.
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

    /// Writes the file for the first time and returns its name. Where the host has been in this run before, that
    /// stays said.
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
        // The run is continued, or another host was first.
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
    /// When it cannot be written; then the old one is still there.
    pub(super) fn write(&self, run: &Directory, name: &str) -> io::Result<()> {
        run.replace(name, &self.hostname, &self.to_json()?)
    }

    /// Reads the file `name` of a run.
    ///
    /// # Errors
    ///
    /// When it cannot be read or is not JSON.
    pub fn read(run: &Directory, name: &str) -> io::Result<Self> {
        let file = io::BufReader::new(run.read(name)?.take(MAX_BYTES));
        Ok(serde_json::from_reader(file)?)
    }

    fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Whether `name` is the name of a file with a [`Manifest`].
pub fn is_manifest(name: &str) -> bool {
    name == FILE
        || name
            .strip_prefix("run.")
            .is_some_and(|rest| rest.strip_suffix(".json").is_some())
}

/// `2026-01-31T12:00:00.123456789Z` for ns since 1970-01-01 UTC.
pub fn rfc3339(ns: i64) -> String {
    timestamp_ns_to_datetime(ns).map_or_else(String::new, |time| {
        time.format("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
    })
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
    fn times() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(
            rfc3339(1_782_907_200_000_000_001),
            "2026-07-01T12:00:00.000000001Z"
        );
    }

    #[test]
    fn a_process_is_alive_until_it_is_gone() {
        let identity = ProcessIdentity::current().unwrap();
        assert!(identity.is_alive());
        for other in [
            ProcessIdentity {
                start_ticks: identity.start_ticks + 1,
                ..identity.clone()
            },
            ProcessIdentity {
                boot_id: "another".to_owned(),
                ..identity.clone()
            },
            ProcessIdentity {
                pid: i32::MAX,
                ..identity.clone()
            },
        ] {
            assert!(!other.is_alive(), "{other:?}");
        }
    }

    #[test]
    fn older_and_newer_files_can_be_read() {
        let manifest: Manifest =
            serde_json::from_str(r#"{"run_id": "a", "state": "complete", "new": 1}"#).unwrap();
        assert_eq!(manifest.run_id, "a");
        assert_eq!(manifest.state, State::Complete);
    }
}
