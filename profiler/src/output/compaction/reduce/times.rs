//! How much of each period a run covers.

use std::collections::BTreeMap;

use super::super::keep::Resolution;

/// Spans of the runs of a host.
#[derive(Debug, Default)]
pub struct Times {
    runs: BTreeMap<String, Span>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// `ts` of the first rows and of the last ones, µs.
    first: i64,
    last: i64,
    /// Time of the first rows, µs: processes that begin have shorter ones.
    before_first: i64,
}

impl Times {
    /// Adds a row of a run.
    pub fn add(&mut self, run: &str, ts: i64, interval_ns: u64) {
        let us = i64::try_from(interval_ns / 1000).unwrap_or(i64::MAX);
        let Some(span) = self.runs.get_mut(run) else {
            let span = Span {
                first: ts,
                last: ts,
                before_first: us,
            };
            self.runs.insert(run.to_owned(), span);
            return;
        };
        if ts < span.first {
            (span.first, span.before_first) = (ts, us);
        } else if ts == span.first {
            span.before_first = us.max(span.before_first);
        }
        span.last = ts.max(span.last);
    }

    /// Time of the period with this end in which the run has rows, ns.
    pub fn covered_ns(&self, run: &str, end: i64, resolution: Resolution) -> u64 {
        let span = self.runs.get(run).copied().unwrap_or_default();
        let first = span.first.saturating_sub(span.before_first);
        let from = first.max(end.saturating_sub(resolution.0));
        let us = span.last.min(end).saturating_sub(from).max(0);
        us.unsigned_abs().saturating_mul(1000)
    }

    /// The end of a period of a run, or that of the run.
    pub fn end(&self, run: &str, end: i64) -> i64 {
        self.runs.get(run).map_or(end, |span| span.last.min(end))
    }
}
