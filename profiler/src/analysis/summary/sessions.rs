//! Sessions of a run: the times in which it was recorded, with what was used in each.

use super::{Figures, identity::rank};
use crate::{
    analysis::{
        catalog::PROCESSES,
        figure::Figure,
        rows::times,
        scan::{Grouped, Groups, Request, Values, for_each_host, scan},
        stored_run::{StoredHost, StoredRun},
    },
    output::dataset::manifest::{Manifest, State},
};

/// Sessions of which figures are read: the last ones.
const KEPT: usize = 64;
/// What is shown of each, and what it is bounded by.
const SHOWN: [&str; 8] = [
    "cpu_s",
    "target_cpu_s",
    "runqueue_s",
    "file_read_bytes",
    "file_write_bytes",
    "storage_read_bytes",
    "storage_write_bytes",
    "peak_memory_bytes",
];

/// A time in which profilers recorded, on one host or on several at the same time.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// ns since 1970-01-01 UTC.
    pub start: i64,
    /// ns since 1970-01-01 UTC: of the last sample, while it runs and after a crash.
    pub end: i64,
    /// Whether an end was recorded.
    pub has_ended: bool,
    /// The worst of the hosts.
    pub state: State,
    pub exit_code: Option<u8>,
    pub target: String,
    /// Of the processes; without any if there is only this session.
    pub figures: Figures,
}

impl Session {
    fn of(manifest: &Manifest) -> Self {
        Self {
            start: manifest.start_ts,
            end: manifest.end_ts.unwrap_or(manifest.start_ts),
            has_ended: manifest.end_ts.is_some(),
            state: manifest.state,
            exit_code: manifest.exit_code,
            target: manifest.target["what"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            figures: Figures::default(),
        }
    }

    /// Adds that of another host at the same time.
    fn merge(&mut self, other: &Self) {
        self.end = self.end.max(other.end);
        self.has_ended &= other.has_ended;
        self.state = [self.state, other.state]
            .into_iter()
            .max_by_key(|state| rank(*state))
            .unwrap_or_default();
        self.exit_code = self.exit_code.max(other.exit_code);
    }

    /// Length, s; `None` if the clock was set back to before the start.
    pub fn seconds(&self) -> Option<f64> {
        let length = self.end.saturating_sub(self.start);
        (length >= 0).then_some(length as f64 / 1e9)
    }
}

/// The sessions of a run, in the order of their starts.
pub fn read_sessions(run: &StoredRun) -> Vec<Session> {
    let mut all: Vec<Session> = Vec::new();
    for host in run.hosts.iter() {
        let Some(manifest) = &host.manifest else {
            continue;
        };
        let mut sessions: Vec<_> = manifest.sessions().map(Session::of).collect();
        for index in 0..sessions.len() {
            if !sessions[index].has_ended {
                let until = sessions.get(index + 1).map_or(i64::MAX, |next| next.start);
                let last = last_sample(run, host, sessions[index].start, until);
                sessions[index].end = last.unwrap_or(sessions[index].start);
            }
        }
        all.append(&mut sessions);
    }
    all.sort_by_key(|session| session.start);
    let mut merged: Vec<Session> = Vec::new();
    for session in all {
        match merged.last_mut() {
            Some(last) if session.start < last.end => last.merge(&session),
            _ => merged.push(session),
        }
    }
    if merged.len() > 1 {
        let first = merged.len().saturating_sub(KEPT);
        for session in &mut merged[first..] {
            session.figures = figures(run, session);
        }
    }
    merged
}

/// Time of the last sample of a host between two times, all in ns since 1970-01-01 UTC.
fn last_sample(run: &StoredRun, host: &StoredHost, from: i64, to: i64) -> Option<i64> {
    let part = run.between(from / 1000, to / 1000);
    // Each has a row for each sample, if its source is on.
    ["timeline", "system", "overhead", "usage"]
        .iter()
        .find_map(|table| {
            let mut last = None;
            // What cannot be read is reported by those who read the rows.
            let _ = part.read(table, host, &["ts"], |batch| {
                last = last.max(times(batch, "ts").into_iter().flatten().max());
            });
            last
        })
        .map(|us| us.saturating_mul(1000))
}

fn figures(run: &StoredRun, session: &Session) -> Figures {
    let shown = PROCESSES.iter().filter(|of| SHOWN.contains(&of.name));
    let shown: Vec<Figure> = shown.copied().collect();
    let part = run.between(session.start / 1000, session.end / 1000 + 1);
    let of_hosts = for_each_host(&run.hosts, |host| {
        let mut requests = [Request::new(&shown, Groups::All, Grouped::new())];
        scan(&part, host, &mut requests);
        let [request] = requests;
        request.values
    });
    let mut all = Values::new(&shown);
    for values in of_hosts.iter().filter_map(|values| values.get("")) {
        all.merge(values);
    }
    Figures::of(&shown, Some(&all))
}
