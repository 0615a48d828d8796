//! The report as text.

use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{Report, ticks::Ticks};
use crate::{
    output::dataset::manifest::State,
    support::{
        log::{self, harmless, harmless_message},
        units::{counted, format_bytes, format_ns, rfc3339},
    },
};

/// Lines of one kind that are shown.
const LINES: usize = 200;

impl Report {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let sum = |of: fn(&super::TableReport) -> u64| self.tables.values().map(of).sum::<u64>();
        // Compacted files are of the hosts of many runs.
        let hosts = match self.hosts.len() as u64 {
            0 => String::new(),
            number => format!("{}, ", counted(number, "host")),
        };
        let _ = writeln!(
            text,
            "{}: {}{}, {} in {}, {}",
            log::path(&self.path),
            hosts,
            counted(self.tables.len() as u64, "table"),
            counted(sum(|table| table.rows), "row"),
            counted(sum(|table| table.parts), "part"),
            format_bytes(sum(|table| table.bytes)),
        );
        if !self.hosts.is_empty() {
            self.table_of_hosts(&mut text);
        }
        for (table, of) in &self.tables {
            let table = harmless(table);
            let missing = self.hosts.len() as u64 - of.hosts.min(self.hosts.len() as u64);
            let remark = match missing {
                0 => String::new(),
                some => format!(", none of {some} hosts"),
            };
            let _ = writeln!(
                text,
                "  {table}: {} in {}, {}{remark}",
                counted(of.rows, "row"),
                counted(of.parts, "part"),
                format_bytes(of.bytes)
            );
        }
        if self.hosts.len() > 1 {
            self.between_hosts(&mut text);
        }
        shown(&mut text, "note", &self.notes);
        shown(&mut text, "problem", &self.problems);
        let verdict = if self.ok {
            "all is well"
        } else {
            "not all is well"
        };
        let _ = writeln!(text, "{verdict}");
        text
    }

    fn table_of_hosts(&self, text: &mut String) {
        let width = self.hosts.keys().map(String::len).max().unwrap_or(4).max(4);
        let _ = writeln!(
            text,
            "  {:width$}  {:10}  {:19}  {:19}  {:>8}  {:>6}  {:>7}  {:>9}",
            "host", "state", "start", "end", "samples", "missed", "missing", "rows"
        );
        let day = |time: &Option<String>| {
            let time = time.as_deref().unwrap_or_default();
            harmless(time.get(..19).unwrap_or(time)).replace('T', " ")
        };
        for (host, of) in self.hosts.iter().take(LINES) {
            let host = harmless(host);
            let state = match of.state {
                None => "?",
                Some(State::Running) if of.alive == Some(false) => "killed",
                Some(State::Running) => "running",
                Some(State::Complete) => "complete",
                Some(State::Recovered) => "recovered",
                Some(State::Incomplete) => "incomplete",
            };
            let missing = of
                .samples
                .missing
                .map_or("?".to_owned(), |missing| missing.to_string());
            let _ = writeln!(
                text,
                "  {host:width$}  {state:10}  {:19}  {:19}  {:>8}  {:>6}  {missing:>7}  {:>9}",
                day(&of.start),
                day(&of.end),
                of.samples.found,
                of.samples.missed,
                of.rows
            );
        }
        if self.hosts.len() > LINES {
            let _ = writeln!(text, "  and {} more", self.hosts.len() - LINES);
        }
    }

    /// Differences in time between the hosts.
    fn between_hosts(&self, text: &mut String) {
        let within = |ns: Option<u64>| ns.map_or("?".to_owned(), format_ns);
        let _ = writeln!(
            text,
            "  by their own clocks the hosts started within {}, and ended within {}",
            within(self.starts_within_ns),
            within(self.ends_within_ns)
        );
        let clocks = || self.hosts.values().map(|host| host.clock);
        let one_kernel: Vec<_> = clocks().filter_map(|clock| clock.offset_ns).collect();
        let bounds: Vec<_> = clocks()
            .filter(|clock| clock.offset_ns.is_none())
            .filter_map(|clock| clock.within_ns)
            .collect();
        let mut known = Vec::new();
        if let (Some(least), Some(most)) = (one_kernel.iter().min(), one_kernel.iter().max())
            && one_kernel.len() > 1
        {
            let apart = format_ns(most.abs_diff(*least));
            known.push(format!(
                "{} hosts of one kernel: {apart} apart",
                one_kernel.len()
            ));
        }
        if let Some(most) = bounds.iter().max() {
            known.push(format!(
                "{} more: at most {} from the first host, if their time daemons are right",
                bounds.len(),
                format_ns(*most)
            ));
        }
        let rest = self.hosts.len() - one_kernel.len() - bounds.len();
        if rest != 0 {
            known.push(format!(
                "{rest} more: not known, no time daemon has said how wrong they may be"
            ));
        }
        let _ = writeln!(text, "  clocks: {}", known.join("; "));
    }
}

fn shown(text: &mut String, kind: &str, lines: &[String]) {
    for line in lines.iter().take(LINES) {
        let _ = writeln!(text, "  {kind}: {}", harmless_message(line));
    }
    if lines.len() > LINES {
        let _ = writeln!(text, "  and {} more of these", lines.len() - LINES);
    }
}

/// The longest time between two ticks.
pub fn longest(ticks: &Ticks) -> String {
    match (ticks.longest_ns, ticks.longest_since) {
        (Some(length), Some(since)) => {
            format!(
                "; the longest time without is {} from {}",
                format_ns(length),
                rfc3339(since)
            )
        }
        _ => String::new(),
    }
}

/// A time that can be negative.
pub fn signed(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "+" };
    format!("{sign}{}", format_ns(ns.unsigned_abs()))
}

/// Time since `then` (s since 1970), by the clock of this machine.
pub fn ago(then: i64) -> Option<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let seconds = now.checked_sub(then.max(0).unsigned_abs())?;
    Some(format!("{seconds} s"))
}
