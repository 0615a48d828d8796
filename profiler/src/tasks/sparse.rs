//! Rows of sleeping processes that are left out: see [`Table::sparse`](crate::schema::Table::sparse).

use hashbrown::HashMap;

use super::{Details, Moment, Process, ProcessId, TaskTable};
use crate::{job::Scheduler, schema::Sparse};

/// Which rows are left out.
#[derive(Debug)]
pub(super) struct SparseRows {
    /// Whether processes of batch jobs have all rows.
    all_of_jobs: bool,
    /// Last reading with rows of all processes, ns of `CLOCK_MONOTONIC`.
    complete_at: Option<u64>,
}

impl TaskTable {
    /// Leaves out rows of processes that sleep; `all_of_jobs` keeps those of processes of batch
    /// jobs.
    pub fn leave_out_sleeping(&mut self, all_of_jobs: bool) {
        self.sparse = Some(SparseRows {
            all_of_jobs,
            complete_at: None,
        });
    }

    /// Whether a reading has rows of all processes. Rows that regions need, or that are added to those
    /// of a region, are not left out.
    pub(super) fn needs_all_rows(&mut self, now: u64, moment: Moment) -> bool {
        let Some(sparse) = &mut self.sparse else {
            return true;
        };
        let since = now.saturating_sub(sparse.complete_at.unwrap_or(0));
        let is_due = since >= u64::from(Sparse::PERIOD_S) * 1_000_000_000;
        let all = is_due || moment != Moment::Sample || self.any_deferred;
        if all {
            sparse.complete_at = Some(now);
        }
        all
    }
}

impl SparseRows {
    /// Whether a process has a row although it sleeps.
    pub(super) fn needs(&self, process: &Process, details: &HashMap<ProcessId, Details>) -> bool {
        let is_of_job = || {
            let scheduler = process.description.job.scheduler;
            scheduler.is_some_and(|scheduler| scheduler != Scheduler::None)
        };
        process.changed || (self.all_of_jobs && is_of_job()) || details.contains_key(&process.id)
    }
}
