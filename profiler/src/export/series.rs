//! Samples of a node, read in parts, so that the memory does not grow with the run.

use std::time::Duration;

use super::selection::Selection;
use crate::{
    analysis::{
        figure::Figure,
        samples::{Sample, Samples},
        scan::{Groups, Request, scan},
        stored_run::{StoredHost, StoredRun},
    },
    failure::Failure,
};

/// Length of a part, µs.
const PART: i64 = 600_000_000;

/// Samples of a run.
pub struct Series<'a> {
    pub run: &'a StoredRun,
    pub selection: &'a Selection,
    /// Time between two samples, if it is not that of the run.
    pub every: Option<Duration>,
}

impl Series<'_> {
    /// Passes the samples of a host on, with their times in µs since 1970-01-01 UTC. Each has a value
    /// of the first figure. Files that cannot be read are added to `failures`.
    ///
    /// # Errors
    ///
    /// Those of `each`.
    pub fn of_host(
        &self,
        host: &StoredHost,
        figures: &[Figure],
        failures: &mut Vec<String>,
        mut each: impl FnMut(i64, &Sample) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let selected = self.selection.on(self.run, host, failures);
        let every = self.every.map_or(0.0, |every| every.as_secs_f64());
        // Tables have rows at different times if one source is read less often than another.
        let spans = figures
            .iter()
            .filter_map(|figure| self.run.span(figure.table, host));
        let Some((first, last)) = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else {
            return Ok(());
        };
        let mut early = vec![f64::NAN; figures.len()];
        let mut pending: Option<(i64, Sample)> = None;
        let mut begin = first - 1;
        while begin < last {
            let end = begin.saturating_add(PART);
            let part = self.run.between(begin, end);
            let mut requests = [Request::new(figures, Groups::All, Samples::default())];
            failures.extend(scan(&part, host, &mut requests));
            let [Request { values, .. }] = requests;
            for (ts, mut sample) in values.0 {
                // Sources without intervals have values at the start of the run.
                for (value, early) in sample.values.iter_mut().zip(&mut early) {
                    if value.is_nan() {
                        *value = *early;
                    }
                    *early = f64::NAN;
                }
                if sample.values.first().is_some_and(|first| first.is_nan()) {
                    early.copy_from_slice(&sample.values);
                    continue;
                }
                if !selected.has(ts, sample.seconds) {
                    continue;
                }
                let (time, all) = pending.get_or_insert_with(|| (ts, Sample::default()));
                *time = ts;
                all.append(figures, &sample);
                // Samples are not exactly one interval apart.
                if all.seconds >= 0.99 * every
                    && let Some((time, sample)) = pending.take()
                {
                    each(time, &sample)?;
                }
            }
            begin = end;
        }
        failures.sort_unstable();
        failures.dedup();
        match pending {
            Some((time, sample)) => each(time, &sample),
            None => Ok(()),
        }
    }
}
