//! `profiler verify`: whether a run is whole. Reads everything once and changes nothing.

mod clocks;
mod files;
#[cfg(test)]
mod tests;
mod text;
mod ticks;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use clap::{Args, ValueHint};
use serde::Serialize;

use self::{
    clocks::Clock,
    files::{Contents, Place},
    ticks::Ticks,
};
use super::{print, print_json};
use crate::{
    failure::{Failure, Reason},
    output::dataset::{
        files::{Directory, host_of_directory, is_plain_name},
        manifest::{self, Loss, Manifest, State, saturating_sum},
        views,
    },
    schema::SCHEMA_VERSION,
    sources::dataset_schema,
};

/// No `run.json` of ours is larger (bytes).
const MAX_MANIFEST: u64 = 64 << 20;
/// Directories that are read at the same time.
const READERS: usize = 8;

/// Arguments of `profiler verify`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Run directories
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    run: Vec<PathBuf>,
    /// Print JSON: one report per run
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a run cannot be read.
    pub fn run(&self) -> Result<u8, Failure> {
        // A decoder that panics on a damaged file is a line of the report.
        std::panic::set_hook(Box::new(|_| {}));
        let reports = self.run.iter().map(|run| {
            verify(run).map_err(|error| {
                Failure::new(Reason::Target, format!("{}: {error}", run.display()))
            })
        });
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        let _ = std::panic::take_hook();
        if self.json {
            print_json(&reports)?;
        } else {
            for report in &reports {
                print(&report.text());
            }
        }
        let well = reports.iter().all(|report| report.well);
        Ok(if well { 0 } else { Reason::VerifyFailed as u8 })
    }
}

/// What was found in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Its directory.
    pub path: PathBuf,
    /// Its name, as the first host says it.
    pub run_id: Option<String>,
    /// Whether all is well: no problems.
    pub well: bool,
    /// Every host that has a `run.json` or rows.
    pub hosts: BTreeMap<String, HostReport>,
    /// Every table.
    pub tables: BTreeMap<String, TableReport>,
    /// Time between the first and the last start of a host, ns, each by its own clock.
    pub starts_within_ns: Option<u64>,
    /// Time between the first and the last end of a host, ns, likewise.
    pub ends_within_ns: Option<u64>,
    /// What is not as it should be.
    pub problems: Vec<String>,
    /// What is good to know.
    pub notes: Vec<String>,
}

/// What was found of one host.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    /// How its last session stands; `None` without `run.json`.
    pub state: Option<State>,
    /// Whether its profiler is at work; `None`: not known here.
    pub alive: Option<bool>,
    /// Start of the first session, RFC 3339.
    pub start: Option<String>,
    /// End of the last session, RFC 3339.
    pub end: Option<String>,
    /// Sessions.
    pub sessions: usize,
    /// Rows in parts.
    pub rows: u64,
    /// Parts.
    pub parts: u64,
    /// Rows that only journals have.
    pub in_journals: u64,
    /// Ticks of all sessions.
    pub ticks: Ticks,
    /// Its clock, compared with that of the first host.
    pub clock: Clock,
    /// Rows per table.
    pub tables: BTreeMap<String, u64>,
}

/// What was found of one table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableReport {
    /// Hosts that have rows.
    pub hosts: u64,
    /// Rows in parts.
    pub rows: u64,
    /// Parts.
    pub parts: u64,
    /// Bytes of parts and journals.
    pub bytes: u64,
}

/// Reads the run in `path`.
///
/// # Errors
///
/// When it cannot be read, or is no run.
pub fn verify(path: &Path) -> io::Result<Report> {
    let run = Directory::open(path, None)?;
    let mut report = Report {
        path: path.to_owned(),
        ..Report::default()
    };
    let (manifests, tables) = report.overview(&run)?;
    if manifests.is_empty() && tables.is_empty() {
        let why = "not the directory of a run: neither run.json nor tables";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    report.run_id = manifests
        .values()
        .map(|manifest| manifest.run_id.clone())
        .find(|id| !id.is_empty());
    let contents = report.read(&run, &tables);
    report.columns(&contents);
    report.hosts(&manifests, &contents);
    report.sums(&manifests, &contents);
    report.well = report.problems.is_empty();
    Ok(report)
}

/// Table and host of every directory with rows.
type Directories = Vec<(String, String)>;

/// What each host has of each table.
type All = BTreeMap<(String, String), Contents>;

impl Report {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The manifest of each host, and each host's directories.
    fn overview(
        &mut self,
        run: &Directory,
    ) -> io::Result<(BTreeMap<String, Manifest>, Directories)> {
        let mut manifests = BTreeMap::new();
        let mut directories = Vec::new();
        for name in run.names()? {
            if manifest::is_manifest(&name) {
                match read_manifest(run, &name) {
                    Ok(manifest) if !is_plain_name(&manifest.hostname) => {
                        self.problem(format!("{name}: it does not say of which host it is"));
                    }
                    Ok(manifest) => {
                        let host = manifest.hostname.clone();
                        if manifests.insert(host.clone(), manifest).is_some() {
                            self.problem(format!("{name}: another file about {host}"));
                        }
                    }
                    Err(error) => self.problem(format!("{name}: {error}")),
                }
                continue;
            }
            let Ok(table) = run.sub(&name) else {
                if name != views::FILE {
                    self.note(format!("{name}: not of the profiler"));
                }
                continue;
            };
            match table.names() {
                Ok(names) => {
                    for entry in names {
                        match host_of_directory(&entry) {
                            Some(host) if table.sub(&entry).is_ok() => {
                                directories.push((name.clone(), host.to_owned()));
                            }
                            _ => self.note(format!("{name}/{entry}: not of the profiler")),
                        }
                    }
                }
                Err(error) => self.problem(format!("{name}: {error}")),
            }
        }
        Ok((manifests, directories))
    }

    /// Reads every directory, some at a time.
    fn read(&mut self, run: &Directory, directories: &Directories) -> All {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        let run_id = self.run_id.as_deref();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(READERS) {
                scope.spawn(|| {
                    while let Some((table, host)) =
                        directories.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let place = Place {
                            run_id,
                            table,
                            host,
                        };
                        let contents = run
                            .sub(table)
                            .and_then(|directory| {
                                directory.sub(crate::output::dataset::files::host_directory(host))
                            })
                            .and_then(|directory| Contents::read(&directory, place));
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push(((table.clone(), host.clone()), contents));
                    }
                });
            }
        });
        let mut all = All::new();
        for ((table, host), contents) in found.into_inner().unwrap_or_else(PoisonError::into_inner)
        {
            match contents {
                Ok(contents) => {
                    all.insert((table, host), contents);
                }
                Err(error) => self.problem(format!("{table}/host={host}: {error}")),
            }
        }
        for ((table, host), contents) in &all {
            for (file, why) in &contents.damage {
                self.problem(format!("{table}/host={host}/{file}: {why}"));
            }
            for (file, what) in &contents.besides {
                self.note(format!("{table}/host={host}/{file}: {what}"));
            }
        }
        all
    }

    /// Whether all hosts mean the same by a table.
    fn columns(&mut self, all: &All) {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut types: BTreeMap<(&str, &str), BTreeMap<&str, &str>> = BTreeMap::new();
        let mut conflicts = BTreeSet::new();
        for ((table, host), contents) in all {
            for version in &contents.versions {
                versions.entry(version).or_default().insert(host);
            }
            for (column, of_type) in &contents.columns {
                types
                    .entry((table, column))
                    .or_default()
                    .entry(of_type)
                    .or_insert(host);
            }
            conflicts.extend(
                contents
                    .conflicts
                    .iter()
                    .map(|column| (table.as_str(), column.as_str())),
            );
        }
        if versions.len() > 1 {
            let of: Vec<_> = versions
                .iter()
                .map(|(version, hosts)| format!("{version} of {}", some(hosts)))
                .collect();
            self.problem(format!("versions of the schema differ: {}", of.join(", ")));
        }
        for version in versions.keys() {
            if version
                .parse::<u32>()
                .is_ok_and(|version| version > SCHEMA_VERSION)
            {
                self.note(format!(
                    "version {version} of the schema is newer than this profiler's"
                ));
            }
        }
        for ((table, column), of) in types {
            if of.len() > 1 || conflicts.contains(&(table, column)) {
                let of: Vec<_> = of
                    .iter()
                    .map(|(of_type, host)| format!("{of_type} of {host}"))
                    .collect();
                self.problem(format!(
                    "{table}.{column} has several types: {}",
                    of.join(", ")
                ));
            }
        }
    }

    fn hosts(&mut self, manifests: &BTreeMap<String, Manifest>, all: &All) {
        let names: BTreeSet<&String> = manifests
            .keys()
            .chain(all.keys().map(|(_, host)| host))
            .collect();
        let first = manifests.values().next();
        for host in names {
            let of_host: BTreeMap<&str, &Contents> = all
                .iter()
                .filter(|((_, of), _)| of == host)
                .map(|((table, _), contents)| (table.as_str(), contents))
                .collect();
            let mut found = HostReport {
                rows: of_host.values().map(|contents| contents.rows).sum(),
                parts: of_host.values().map(|contents| contents.parts).sum(),
                in_journals: of_host
                    .values()
                    .flat_map(|c| &c.journals)
                    .map(|(_, rows)| rows)
                    .sum(),
                tables: of_host
                    .iter()
                    .map(|(table, c)| ((*table).to_owned(), c.rows))
                    .collect(),
                ..HostReport::default()
            };
            match manifests.get(host) {
                Some(manifest) => {
                    found.clock = Clock::of(manifest, first.unwrap_or(manifest));
                    self.host(host, manifest, &of_host, &mut found);
                }
                None => self.problem(format!("{host}: rows, but no run.{host}.json")),
            }
            self.hosts.insert(host.clone(), found);
        }
    }

    /// One host against what its `run.json` says.
    fn host(
        &mut self,
        host: &str,
        manifest: &Manifest,
        tables: &BTreeMap<&str, &Contents>,
        found: &mut HostReport,
    ) {
        if self
            .run_id
            .as_ref()
            .is_some_and(|run| *run != manifest.run_id)
        {
            self.problem(format!(
                "{host}: its run.json is of run {}",
                manifest.run_id
            ));
        }
        found.state = Some(manifest.state);
        found.sessions = manifest.sessions().count();
        found.start = manifest.sessions().next().map(|first| first.start.clone());
        found.end.clone_from(&manifest.end);
        let last_write = tables
            .values()
            .filter_map(|contents| contents.last_write)
            .max();
        let alive = manifest.state == State::Running && {
            found.alive = manifest.process.is_alive_here();
            self.at_work(host, found.alive, last_write)
        };
        let sessions: Vec<_> = manifest.sessions().collect();
        for (number, session) in sessions.iter().enumerate() {
            let last = number + 1 == sessions.len();
            if !(last && alive) {
                self.session(host, session);
            }
            let until = sessions.get(number + 1).map(|next| next.start_ts);
            let ticks = ticks_of(session, number == 0, until, tables);
            if let Some(missing @ 1..) = ticks.missing {
                self.problem(format!(
                    "{host}: {missing} ticks are neither there nor counted as missed{}",
                    text::longest(&ticks)
                ));
            }
            found.ticks = found.ticks.and(ticks);
        }
        if let Some(step @ (..=-1 | 1..)) = found.clock.step_ns {
            self.note(format!(
                "{host}: its clock was set by {} while it was profiled; timestamps do not follow",
                text::signed(step)
            ));
        }
        if alive {
            return;
        }
        let unsaved = tables.values().filter(|of| !of.journals.is_empty());
        let count = unsaved.clone().count();
        if count != 0 {
            let rows: u64 = unsaved
                .flat_map(|of| &of.journals)
                .map(|(_, rows)| rows)
                .sum();
            self.problem(format!(
                "{host}: {rows} unsaved rows in {count} table{}: run `profiler recover {}`",
                if count == 1 { "" } else { "s" },
                self.path.display()
            ));
        }
        let says = |table: &str| -> u64 {
            let of = |session: &&Manifest| session.tables.get(table).map_or(0, |table| table.rows);
            saturating_sum(sessions.iter().map(of))
        };
        let known = sessions
            .iter()
            .flat_map(|session| session.tables.keys().map(String::as_str));
        let names: BTreeSet<&str> = tables.keys().copied().chain(known).collect();
        for table in names {
            let rows = tables.get(table).map_or(0, |contents| contents.rows);
            // Before recovery it is as of the last checkpoint.
            if manifest.state != State::Running && rows != says(table) {
                self.problem(format!(
                    "{host}: {rows} rows of {table} in parts, {} in its run.json",
                    says(table)
                ));
            }
        }
    }

    /// Whether a profiler that has not said that it has ended is at work; says what is known.
    fn at_work(&mut self, host: &str, alive: Option<bool>, last_write: Option<i64>) -> bool {
        match alive {
            Some(true) => self.problem(format!("{host}: still being profiled")),
            Some(false) => {
                self.problem(format!(
                    "{host}: did not end: its profiler is gone; `profiler recover`"
                ));
            }
            None => {
                let ago = last_write.map(text::ago).unwrap_or_default();
                self.problem(format!(
                    "{host}: has not ended, or its profiler was killed: seen from here, that is not known{ago}"
                ));
            }
        }
        alive != Some(false)
    }

    /// How a session that is over went.
    fn session(&mut self, host: &str, session: &Manifest) {
        let begun = &session.start;
        match session.state {
            State::Complete | State::Running => {}
            State::Recovered => self.problem(format!(
                "{host}: the session of {begun} was killed; what it had written is recovered"
            )),
            State::Incomplete => {
                self.problem(format!(
                    "{host}: the session of {begun} has lost rows, or has them in a journal only"
                ));
            }
        }
        for loss in &session.losses {
            let text = format!("{host}: {loss}");
            // Counters go on over a missed tick: no sum is wrong. A mark is lost to who sent it, and anybody may send.
            if loss.what == "ticks" || loss.what == Loss::MARKS {
                self.note(text);
            } else {
                self.problem(text);
            }
        }
    }

    fn sums(&mut self, manifests: &BTreeMap<String, Manifest>, all: &All) {
        for ((table, _), contents) in all {
            let sum = self.tables.entry(table.clone()).or_default();
            sum.hosts += 1;
            sum.rows += contents.rows;
            sum.parts += contents.parts;
            sum.bytes += contents.bytes;
        }
        let within = |times: Vec<i64>| Some(times.iter().max()?.abs_diff(*times.iter().min()?));
        let starts = manifests.values().filter_map(|m| m.sessions().next());
        self.starts_within_ns = within(starts.map(|first| first.start_ts).collect());
        self.ends_within_ns = within(manifests.values().filter_map(|m| m.end_ts).collect());
    }
}

fn ticks_of(
    session: &Manifest,
    first: bool,
    until: Option<i64>,
    tables: &BTreeMap<&str, &Contents>,
) -> Ticks {
    let inside = |ts: &i64| (first || *ts >= session.start_ts) && until.is_none_or(|end| *ts < end);
    let mut times: Vec<i64> = tables
        .values()
        .flat_map(|contents| &contents.ticks)
        .copied()
        .filter(inside)
        .collect();
    times.sort_unstable();
    times.dedup();
    let counted = tables
        .values()
        .flat_map(|contents| &contents.missed)
        .filter(|(ts, _)| inside(ts))
        .map(|(_, missed)| *missed);
    let counted = saturating_sum(counted);
    let said = session
        .losses
        .iter()
        .filter(|loss| loss.what == "ticks")
        .map(|loss| loss.count);
    let said = saturating_sum(said);
    let schema = dataset_schema();
    let mut every_tick = schema.tables.iter().filter(|table| table.every_tick);
    let each = every_tick.any(|table| tables.contains_key(table.name));
    Ticks::of(session, &times, counted.max(said), each)
}

fn read_manifest(run: &Directory, name: &str) -> io::Result<Manifest> {
    let mut text = Vec::new();
    run.read(name)?
        .take(MAX_MANIFEST + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_MANIFEST {
        return Err(io::Error::other("too large for a run.json"));
    }
    Ok(serde_json::from_slice(&text)?)
}

/// Some of many names.
fn some(names: &BTreeSet<&str>) -> String {
    let shown: Vec<_> = names.iter().take(3).copied().collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
