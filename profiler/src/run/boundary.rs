//! Readings between the ticks: where a region begins or ends, what its process used until then is read once more.

use std::{sync::Arc, time::Duration};

use arrow::compute::concat_batches;

use crate::{
    clock::monotonic_ns,
    ledger::{Ledger, Part},
    marks::{Inbox, Wanted},
    schema::Batch,
};

/// Readings have at least this distance, ns.
const GAP: u64 = 5_000_000;

/// They take at most one part in so many of a CPU's time.
const SHARE: u64 = 10;

/// Time for which a row of theirs is paid, ns: 10,000 rows per second.
const PER_ROW: u64 = 100_000;

/// Senders that nobody asks about otherwise are found out in this time, ns.
const PATIENCE: u64 = 1_000_000_000;

/// Rows wait for those of the next tick, but not longer than this, ns.
const HOLD: u64 = 1_000_000_000;

/// When to read, and what was read.
pub struct Boundaries {
    /// Where the marks arrive.
    pub inbox: Arc<Inbox>,
    /// No reading before this moment, ns of `CLOCK_MONOTONIC`.
    earliest: u64,
    held: Vec<Batch>,
    held_since: u64,
}

impl Boundaries {
    /// None yet.
    pub fn new(inbox: Arc<Inbox>) -> Self {
        Self {
            inbox,
            earliest: 0,
            held: Vec::new(),
            held_since: 0,
        }
    }

    /// Waits until a reading is due.
    pub async fn due(&self) {
        loop {
            let at = match self.inbox.wanted() {
                Some(Wanted::Boundary) => self.earliest,
                Some(Wanted::Within(sent)) => self.earliest.max(sent + PATIENCE),
                None => {
                    self.inbox.came().await;
                    continue;
                }
            };
            let now = monotonic_ns();
            if now >= at {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_nanos(at - now)) => {}
                () = self.inbox.came() => {}
            }
        }
    }

    /// Notes a tick, whose own cost is not that of the marks.
    pub fn have_ticked(&mut self, began: u64) {
        self.earliest = self.earliest.max(began + GAP);
    }

    /// Notes that a reading has been made, for which so much CPU time was used.
    pub fn have_read(&mut self, began: u64, cpu_ns: u64, rows: u64) {
        let gap = GAP.max(cpu_ns * SHARE).max(rows.saturating_mul(PER_ROW));
        self.earliest = began + gap;
    }

    /// Brings what became of the marks up to date.
    pub fn account(&self, ledger: &mut Ledger) {
        for (loss, count) in self.inbox.losses().filter(|(_, count)| *count != 0) {
            let account = ledger.account(Part::Marks, loss.name());
            if loss.is_lost() {
                account.dropped = Some(count);
            } else {
                account.errors = Some(count);
            }
        }
    }

    /// Keeps the rows of a reading; returns those that have waited long enough.
    pub fn hold(&mut self, batches: Vec<Batch>) -> Vec<Batch> {
        let now = monotonic_ns();
        if self.held.is_empty() {
            self.held_since = now;
        }
        self.held.extend(batches);
        if now - self.held_since > HOLD {
            self.release()
        } else {
            Vec::new()
        }
    }

    /// The rows that were kept, one batch per table.
    pub fn release(&mut self) -> Vec<Batch> {
        let mut held = std::mem::take(&mut self.held);
        let mut released: Vec<Batch> = Vec::new();
        while let Some(table) = held.first().map(|batch| batch.table) {
            let of_table: Vec<Batch> = held
                .extract_if(.., |batch| std::ptr::eq(batch.table, table))
                .collect();
            let rows = of_table.iter().map(|batch| &batch.rows);
            match concat_batches(&table.schema(), rows) {
                Ok(rows) => released.push(Batch { table, rows }),
                // More words than a dictionary has room for.
                Err(_) => released.extend(of_table),
            }
        }
        released
    }
}

/// Waits until a reading is due; for ever if nobody can mark.
pub async fn due(boundaries: Option<&Boundaries>) {
    match boundaries {
        Some(boundaries) => boundaries.due().await,
        None => std::future::pending().await,
    }
}
