//! Messages of the service about its clients, few enough for a log.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{support::log::harmless_message, warning};

/// Time of a limit.
pub const PERIOD: Duration = Duration::from_secs(60);
/// Messages about one user in this time.
const OF_USER: u32 = 20;
/// Messages about all users in this time: one user can have many ids.
const OF_ALL: u32 = 400;
/// Longest line of a process for a client in bytes; the rest of it is a line of its own.
const LINE_MAX: u64 = 1000;

/// The log of all clients.
#[derive(Clone, Default)]
pub struct ClientLog(Arc<Mutex<Periods>>);

/// The present period of each user, and of all as `None`.
#[derive(Default)]
struct Periods(HashMap<Option<u32>, Period>);

struct Period {
    began: Instant,
    written: u32,
    suppressed: u64,
}

impl ClientLog {
    /// Writes a message about a client, or counts it.
    pub fn say(&self, uid: u32, text: &str) {
        self.report_ended();
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_written = periods.take(uid, Instant::now());
        drop(periods);
        if is_written {
            let text = text.trim_start_matches("profiler: ");
            warning!("profiler: user {uid}: {}", harmless_message(text));
        }
    }

    /// Says how many messages of past periods were not written.
    pub fn report_ended(&self) {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = periods.end(Instant::now());
        drop(periods);
        for (uid, count) in suppressed {
            warning!("profiler: user {uid}: {count} more messages within a minute");
        }
    }

    /// Passes on what a process for a client writes, until it ends.
    pub fn pass_on(&self, uid: u32, output: impl Read) {
        let mut lines = BufReader::new(output);
        let mut line = Vec::new();
        loop {
            line.clear();
            match lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => self.say(uid, String::from_utf8_lossy(&line).trim_end()),
            }
        }
    }
}

impl Periods {
    /// Whether one more message about a user may be written now.
    fn take(&mut self, uid: u32, now: Instant) -> bool {
        let mut period = |key, limit| {
            let period = self.0.entry(key).or_insert(Period {
                began: now,
                written: 0,
                suppressed: 0,
            });
            let has_place = period.written < limit;
            period.written += u32::from(has_place);
            has_place
        };
        let may = period(Some(uid), OF_USER) && period(None, OF_ALL);
        if let (false, Some(period)) = (may, self.0.get_mut(&Some(uid))) {
            period.suppressed += 1;
        }
        may
    }

    /// Removes past periods; returns the messages that were not written, by user.
    fn end(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let is_past = |period: &Period| now.saturating_duration_since(period.began) >= PERIOD;
        let past = self.0.extract_if(|_, period| is_past(period));
        past.filter_map(|(uid, period)| Some((uid?, period.suppressed)))
            .filter(|(_, suppressed)| *suppressed != 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_messages_of_a_user_are_counted() {
        let mut periods = Periods::default();
        let now = Instant::now();
        let written = (0..100).filter(|_| periods.take(1, now)).count();
        assert_eq!(written, 20);
        assert!(periods.take(2, now));
        assert_eq!(periods.end(now + PERIOD / 2), []);
        assert_eq!(periods.end(now + PERIOD), [(1, 80)]);
        assert!(periods.take(1, now + PERIOD));
        // Many users.
        let written = (0..1000).filter(|uid| periods.take(*uid, now + PERIOD));
        assert_eq!(written.count(), 399);
    }
}
