//! Readings between the ticks: where a region begins or ends, what its process used until then is read once more.

use std::{sync::Arc, time::Duration};

use arrow::compute::concat_batches;
use hashbrown::{HashMap, HashSet};

use crate::{
    marks::{MarkReceiver, Wanted},
    schema::Batch,
    support::{
        clock::monotonic_ns,
        self_metrics::{Component, SelfMetrics},
    },
};

/// Readings have at least this distance, ns.
const GAP: u64 = 5_000_000;

/// They take at most one part in so many of a CPU's time.
const SHARE: u64 = 10;

/// Time for which a row of a user's processes is paid, ns: 10,000 rows per second.
const PER_ROW: u64 = 100_000;

/// Senders that nobody asks about otherwise are found out in this time, ns.
const TIMEOUT: u64 = 1_000_000_000;

/// Rows wait for those of the next tick, but not longer than this, ns.
const HOLD: u64 = 1_000_000_000;

/// When to read, and what was read.
pub struct Boundaries {
    /// Where the marks arrive.
    pub receiver: Arc<MarkReceiver>,
    /// No reading before this moment, ns of `CLOCK_MONOTONIC`.
    earliest: u64,
    /// None for the marks of these users before.
    earliest_of: HashMap<u32, u64>,
    /// CPU time in which the marks of the last reading were handled, ns: that is limited by their rates.
    handling_ns: u64,
    held: Vec<Batch>,
    held_since: u64,
}

impl Boundaries {
    /// None yet.
    pub fn new(receiver: Arc<MarkReceiver>) -> Self {
        Self {
            receiver,
            earliest: 0,
            earliest_of: HashMap::new(),
            handling_ns: 0,
            held: Vec::new(),
            held_since: 0,
        }
    }

    /// Waits until a reading is due.
    pub async fn due(&self) {
        loop {
            let Some(at) = self.wanted().map(|(_, at)| at).min() else {
                self.receiver.came().await;
                continue;
            };
            let now = monotonic_ns();
            if now >= at {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_nanos(at - now)) => {}
                () = self.receiver.came() => {}
            }
        }
    }

    /// The users whose marks are due at a moment.
    pub fn users(&self, now: u64) -> HashSet<u32> {
        let due = self.wanted().filter(|(_, at)| *at <= now);
        due.map(|(uid, _)| uid).collect()
    }

    /// Users with marks that wait, and when a reading for them is due.
    fn wanted(&self) -> impl Iterator<Item = (u32, u64)> {
        self.receiver.wanted().into_iter().map(|(uid, wanted)| {
            let own = self.earliest_of.get(&uid).copied().unwrap_or(0);
            let earliest = self.earliest.max(own);
            match wanted {
                Wanted::Boundary => (uid, earliest),
                Wanted::Within(sent) => (uid, earliest.max(sent + TIMEOUT)),
            }
        })
    }

    /// Notes a tick, whose own cost is not that of the marks.
    pub fn have_ticked(&mut self, began: u64) {
        self.earliest = self.earliest.max(began + GAP);
    }

    /// Notes that the marks of a reading have been handled in so much CPU time.
    pub fn have_handled(&mut self, cpu_ns: u64) {
        self.handling_ns = cpu_ns;
    }

    /// Notes that a reading has been made, for which so much CPU time was used, with rows of these users' processes.
    pub fn have_read(&mut self, began: u64, cpu_ns: u64, rows: &HashMap<u32, u64>) {
        let cpu_ns = cpu_ns.saturating_sub(self.handling_ns);
        self.earliest = began + GAP.max(cpu_ns * SHARE);
        self.earliest_of.retain(|_, earliest| *earliest > began);
        for (uid, rows) in rows {
            let earliest = began.saturating_add(rows.saturating_mul(PER_ROW));
            self.earliest_of.insert(*uid, earliest);
        }
    }

    /// Brings what became of the marks up to date.
    pub fn account(&self, self_metrics: &mut SelfMetrics) {
        for (loss, count) in self
            .receiver
            .losses()
            .totals()
            .filter(|(_, count)| *count != 0)
        {
            let account = self_metrics.account(Component::Marks, loss.name());
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
