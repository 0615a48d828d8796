//! Processes with regions, and the resources that each of them and its descendants have used.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hashbrown::{HashMap, HashSet};

use super::usage::{Counts, EventName, Increases, Sums, unread};
use crate::{
    schema::Batch,
    sources::TickContext,
    tasks::process_tree::{ProcessKey, process_key},
};

/// Name of an event as text, which has an order.
type EventKey = (String, Option<String>, String);

/// Resources that a process with regions and its descendants had used at a reading.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Wall clock of the reading, ns.
    pub(super) ts: i64,
    /// The next reading adds what was used by processes that were ending during this one.
    sums: Mutex<Sums>,
    pub(super) events: BTreeMap<EventKey, Counts>,
}

impl Snapshot {
    /// A copy of the sums: both ends of a region may be in one reading, whose lock must not be held.
    pub(super) fn sums(&self) -> Sums {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process with regions.
#[derive(Debug, Default)]
struct Root {
    sums: Sums,
    events: BTreeMap<EventKey, Counts>,
    /// Of the last reading, if a region started or ended there.
    snapshot: Option<Arc<Snapshot>>,
}

impl Root {
    fn add_event(&mut self, (pmu, group, event): &EventName, counts: &Counts) {
        let key = (
            pmu.as_str().to_owned(),
            group.as_ref().map(|group| group.as_str().to_owned()),
            event.as_str().to_owned(),
        );
        self.events.entry(key).or_default().add(counts);
    }
}

/// All processes with regions.
#[derive(Default)]
pub(super) struct Roots {
    roots: HashMap<ProcessKey, Root>,
    /// Processes whose end the last reading did not include yet.
    missed: HashSet<ProcessKey>,
}

impl Roots {
    /// Adds what every process used since the previous reading to its ancestors with regions.
    pub(super) fn add(&mut self, ctx: &TickContext<'_>, batches: &[Batch]) {
        if self.roots.is_empty() {
            return;
        }
        let unread = unread(ctx);
        for root in self.roots.values_mut() {
            root.sums.add_unknown(&unread);
        }
        if !self.missed.is_empty() {
            // A process that lives on has used most of it after that reading.
            let ended = ctx.tasks.ended();
            let ended: HashSet<ProcessKey> = ended
                .map(|process| process_key(&ctx.tasks.clock, process.id))
                .collect();
            self.missed.retain(|missed| ended.contains(missed));
        }
        let increases = Increases::of(batches);
        for (process, sums) in &increases.sums {
            for ancestor in ctx.tasks.process_tree.ancestry(*process) {
                let Some(root) = self.roots.get_mut(&ancestor) else {
                    continue;
                };
                root.sums.add(sums);
                if let Some(before) = &root.snapshot
                    && self.missed.contains(process)
                {
                    before.locked().add(sums);
                }
            }
        }
        for (process, events) in &increases.events {
            for ancestor in ctx.tasks.process_tree.ancestry(*process) {
                let Some(root) = self.roots.get_mut(&ancestor) else {
                    continue;
                };
                for (name, counts) in events {
                    root.add_event(name, counts);
                }
            }
        }
    }

    /// Discards the snapshots of the previous reading.
    pub(super) fn begin_reading(&mut self) {
        for root in self.roots.values_mut() {
            root.snapshot = None;
        }
    }

    /// The snapshot of a process at this reading, whose wall clock is `ts`.
    pub(super) fn snapshot(&mut self, process: ProcessKey, ts: i64) -> Arc<Snapshot> {
        let root = self.roots.entry(process).or_default();
        let snapshot = root.snapshot.get_or_insert_with(|| {
            Arc::new(Snapshot {
                ts,
                sums: Mutex::new(root.sums.clone()),
                events: root.events.clone(),
            })
        });
        snapshot.clone()
    }

    /// Ends a reading: remembers the processes whose end it did not include. Returns whether there
    /// are any, whose usage the next reading adds to the snapshots.
    pub(super) fn end_reading(&mut self, ctx: &TickContext<'_>) -> bool {
        self.missed.clear();
        if !self.roots.is_empty() {
            let missed = ctx.tasks.missed().iter();
            let keys = missed.map(|id| process_key(&ctx.tasks.clock, *id));
            self.missed.extend(keys);
        }
        !self.missed.is_empty()
    }

    /// Forgets processes without regions.
    pub(super) fn retain(&mut self, has_regions: impl Fn(ProcessKey) -> bool) {
        self.roots.retain(|process, _| has_regions(*process));
    }
}
