//! Readings at region boundaries, between ticks: when they are due, and how their cost is limited.

use std::{sync::Arc, time::Duration};

use arrow::compute::concat_batches;
use hashbrown::{HashMap, HashSet};

use crate::{
    marks::{DueReading, MarkReceiver},
    schema::Batch,
    support::{
        clock::monotonic_ns,
        self_metrics::{Component, SelfMetrics},
    },
};

/// Minimum time between readings, ns.
const GAP: u64 = 5_000_000;

/// Readings take at most 1/`SHARE` of the time of a CPU.
const SHARE: u64 = 10;

/// Time that a user waits for each row of their processes, ns: 10,000 rows per second.
const PER_ROW: u64 = 100_000;

/// Time in which the senders of marks that need no boundary are identified, ns.
const TIMEOUT: u64 = 1_000_000_000;

/// Rows are held for the next tick, but not longer than this, ns.
const HOLD: u64 = 1_000_000_000;

/// Schedule of the readings, and rows that wait for the next tick.
pub struct Boundaries {
    /// Receives the marks.
    pub receiver: Arc<MarkReceiver>,
    /// Earliest time of the next reading, ns of `CLOCK_MONOTONIC`.
    earliest: u64,
    /// The same for marks of these users.
    earliest_of: HashMap<u32, u64>,
    /// CPU time of handling the marks of the last reading, ns. It is limited by their rates.
    handling_ns: u64,
    held: Vec<Batch>,
    held_since: u64,
}

impl Boundaries {
    /// No reading has been made.
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
            let Some(at) = self.pending().map(|(_, at)| at).min() else {
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

    /// Users with marks that are due at `now`.
    pub fn users(&self, now: u64) -> HashSet<u32> {
        let due = self.pending().filter(|(_, at)| *at <= now);
        due.map(|(uid, _)| uid).collect()
    }

    /// Users with pending marks, and the time at which a reading for them is due.
    fn pending(&self) -> impl Iterator<Item = (u32, u64)> {
        self.receiver.due_readings().into_iter().map(|(uid, due)| {
            let own = self.earliest_of.get(&uid).copied().unwrap_or(0);
            let earliest = self.earliest.max(own);
            match due {
                DueReading::Boundary => (uid, earliest),
                DueReading::Within(sent) => (uid, earliest.max(sent + TIMEOUT)),
            }
        })
    }

    /// Notes a tick. Its cost is not that of marks.
    pub fn tick_began(&mut self, began: u64) {
        self.earliest = self.earliest.max(began + GAP);
    }

    /// Notes the CPU time of handling the marks of a reading.
    pub fn marks_handled(&mut self, cpu_ns: u64) {
        self.handling_ns = cpu_ns;
    }

    /// Notes a reading with its CPU time and the number of rows per user.
    pub fn reading_done(&mut self, began: u64, cpu_ns: u64, rows: &HashMap<u32, u64>) {
        let cpu_ns = cpu_ns.saturating_sub(self.handling_ns);
        self.earliest = began + GAP.max(cpu_ns * SHARE);
        self.earliest_of.retain(|_, earliest| *earliest > began);
        for (uid, rows) in rows {
            let earliest = began.saturating_add(rows.saturating_mul(PER_ROW));
            self.earliest_of.insert(*uid, earliest);
        }
    }

    /// Stores the totals of lost and rejected marks.
    pub fn update_self_metrics(&self, self_metrics: &mut SelfMetrics) {
        for (loss, count) in self
            .receiver
            .losses()
            .totals()
            .filter(|(_, count)| *count != 0)
        {
            let metrics = self_metrics.account(Component::Marks, loss.name());
            if loss.is_lost() {
                metrics.dropped = Some(count);
            } else {
                metrics.errors = Some(count);
            }
        }
    }

    /// Holds the rows of a reading; returns all held rows when the first has waited long enough.
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

    /// Removes the held rows, one batch per table.
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
                // The dictionary has more distinct values than its keys.
                Err(_) => released.extend(of_table),
            }
        }
        released
    }
}

/// Waits until a reading is due; forever without marks.
pub async fn due(boundaries: Option<&Boundaries>) {
    match boundaries {
        Some(boundaries) => boundaries.due().await,
        None => std::future::pending().await,
    }
}
