//! What a running profiler has written so far, so that a test waits for a row and not for a time.

use std::{collections::BTreeSet, path::Path};

use crate::{dataset::Dataset, rows::Row, runs::wait_until};

impl Dataset {
    /// The rows of a table that a running profiler has written so far.
    pub fn so_far(&self, table: &str) -> Vec<Row> {
        let directory = self.path().join(table);
        let is_journal = |path: &Path| path.extension().is_some_and(|end| end == "arrows");
        let mut files = self.files();
        files.retain(|path| path.starts_with(&directory) && is_journal(path));
        let journals = files.iter().flat_map(|file| Row::read_journal(file));
        self.table(table).into_iter().chain(journals).collect()
    }

    /// Waits until a running profiler has written a row that satisfies a condition.
    #[track_caller]
    pub fn wait_for_row(&self, table: &str, what: &str, mut is_it: impl FnMut(&Row) -> bool) {
        wait_until(what, || self.so_far(table).iter().any(&mut is_it));
    }

    /// Waits until a running profiler has written so many samples, after those of this moment, with
    /// rows of a table. All but the first of them have begun since.
    #[track_caller]
    pub fn wait_for_samples(&self, table: &str, more: usize) {
        let count = || {
            let rows = self.so_far(table);
            let times: BTreeSet<_> = rows.iter().map(|row| row.i64("ts")).collect();
            times.len()
        };
        let before = count();
        wait_until("samples are written", || count() >= before + more);
    }
}
