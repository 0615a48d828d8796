//! Hosts: their rows, sessions and ticks against `run.json`.

use std::collections::{BTreeMap, BTreeSet};

use super::{All, HostReport, Report, clocks::Clock, files::Contents, text, ticks::Ticks};
use crate::{
    output::dataset::manifest::{Loss, Manifest, State, saturating_sum},
    schema::run::RUN,
    sources::dataset_schema,
    support::units::wall_clock,
};

/// Content of the tables of one host.
type Tables<'a> = BTreeMap<&'a str, &'a Contents>;

impl Report {
    /// Checks each host.
    pub(super) fn hosts(&mut self, manifests: &BTreeMap<String, Manifest>, all: &All) {
        let names: BTreeSet<&String> = manifests
            .keys()
            .chain(all.keys().map(|(_, host)| host))
            .collect();
        let first = manifests.values().next();
        for host in names {
            let of_host: Tables<'_> = all
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

    /// Compares the rows of one host with its `run.json`.
    fn host(
        &mut self,
        host: &str,
        manifest: &Manifest,
        tables: &Tables<'_>,
        found: &mut HostReport,
    ) {
        let run_id = self.run_id.as_ref();
        if run_id.is_some_and(|run| *run != manifest.run_id) {
            self.problem(format!(
                "{host}: its run.json is of run {}",
                manifest.run_id
            ));
        }
        let sessions: Vec<&Manifest> = manifest.sessions().collect();
        found.state = Some(manifest.state);
        found.sessions = sessions.len();
        found.start = sessions.first().map(|first| first.start.clone());
        found.end.clone_from(&manifest.end);
        let last_write = tables
            .values()
            .filter_map(|contents| contents.last_write)
            .max();
        let alive = manifest.state == State::Running && {
            found.alive = manifest.process.is_alive_here();
            if let (None, Some(ago)) = (found.alive, last_write.and_then(text::ago)) {
                self.note(format!("{host}: last written {ago} ago"));
            }
            found.alive != Some(false)
        };
        found.samples = self.sessions(host, &sessions, tables);
        if let Some(step @ (..=-1 | 1..)) = found.clock.step_ns {
            self.note(format!(
                "{host}: its clock was set by {} while it was profiled; timestamps do not follow",
                text::signed(step)
            ));
        }
        if !alive {
            self.journals(host, tables);
            // Before recovery, run.json describes the last checkpoint.
            if manifest.state != State::Running {
                self.rows(host, &sessions, tables);
            }
        }
    }

    /// Checks the sessions of a host, the last of which can be running. Returns their ticks.
    fn sessions(&mut self, host: &str, sessions: &[&Manifest], tables: &Tables<'_>) -> Ticks {
        let mut all = Ticks::default();
        let reduced: u64 = tables.values().map(|contents| contents.reduced).sum();
        if reduced != 0 {
            self.note(format!(
                "{host}: `profiler compact --keep` has merged or removed {reduced} rows of older \
                 days, so that its missing samples are unknown"
            ));
        }
        for (number, session) in sessions.iter().enumerate() {
            self.session(host, session);
            let until = sessions.get(number + 1).map(|next| next.start_ts);
            let mut ticks = ticks_of(session, number == 0, until, tables);
            if reduced != 0 {
                ticks.missing = None;
            }
            if let Some(missing @ 1..) = ticks.missing {
                self.problem(format!(
                    "{host}: {missing} samples are neither there nor counted as missed{}",
                    text::longest(&ticks)
                ));
            }
            all = all.and(ticks);
        }
        all
    }

    /// Checks that no rows are only in journals.
    fn journals(&mut self, host: &str, tables: &Tables<'_>) {
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
    }

    /// Compares the number of rows in each table with `run.json`.
    fn rows(&mut self, host: &str, sessions: &[&Manifest], tables: &Tables<'_>) {
        let known = sessions
            .iter()
            .flat_map(|session| session.tables.keys().map(String::as_str));
        let names: BTreeSet<&str> = tables.keys().copied().chain(known).collect();
        for table in names {
            let of = |session: &&Manifest| session.tables.get(table).map_or(0, |table| table.rows);
            let described = saturating_sum(sessions.iter().map(of));
            let rows = tables.get(table).map_or(0, |of| of.rows + of.reduced);
            if rows != described {
                self.problem(format!(
                    "{host}: {rows} rows of {table} in parts, {described} in its run.json"
                ));
            }
        }
    }

    /// Checks that the table of the run has a row for each session. Version 2 of the schema did not
    /// have the table.
    pub(super) fn run_table(&mut self, manifests: &BTreeMap<String, Manifest>, tables: &All) {
        for ((_, host), contents) in tables {
            let Some(manifest) = manifests.get(host) else {
                continue;
            };
            let sessions = manifest.sessions().count();
            if contents.rows != sessions as u64 {
                self.problem(format!(
                    "{host}: {} rows of {}, {sessions} sessions in its run.json",
                    contents.rows, RUN.name
                ));
            }
        }
    }

    /// Reports how a session ended, and what it lost.
    fn session(&mut self, host: &str, session: &Manifest) {
        if let Some(interruption) = session.interruption() {
            self.problem(format!(
                "{host}: the session of {} {interruption}",
                wall_clock(session.start_ts)
            ));
        }
        for loss in &session.losses {
            let text = format!("{host}: {loss}");
            // Increases include missed ticks, so no sum is wrong. Lost marks are charged to their
            // sender. Unknown values of processes are null.
            let notes = [
                "samples",
                Loss::MARKS,
                Loss::PROCESS_COUNTERS,
                Loss::MEMORY,
                Loss::DESCRIPTORS,
            ];
            if notes.contains(&&*loss.what) {
                self.note(text);
            } else {
                self.problem(text);
            }
        }
    }
}

/// Ticks of a session, which ends before `until`.
fn ticks_of(session: &Manifest, first: bool, until: Option<i64>, tables: &Tables<'_>) -> Ticks {
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
        .filter(|loss| loss.what == "samples")
        .map(|loss| loss.count);
    let said = saturating_sum(said);
    let mut every_tick = dataset_schema().tables().filter(|table| table.every_tick);
    let each = every_tick.any(|table| tables.contains_key(table.name));
    Ticks::of(session, &times, counted.max(said), each)
}
