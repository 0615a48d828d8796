//! Rows of readings between two samples. Rows of marked processes are delivered; all others are
//! deferred and added to those of the next sample, as if the reading had not taken place.

use std::hash::Hash;

use hashbrown::{HashMap, HashSet, hash_map::Entry};

use super::{ProcessId, Row, TaskTable, process_tree::process_key};

/// Process and thread of a deferred row.
pub(super) type RowKey = (ProcessId, Option<u32>);

impl TaskTable {
    /// Restricts the rows of the last reading to processes with these pids, their descendants and
    /// ended processes, and defers the others. Without pids, all rows are delivered, including
    /// deferred ones.
    pub fn deliver(&mut self, marked: Option<&HashSet<u32>>) {
        let selected = marked.map(|pids| self.process_trees(pids));
        let selected = selected.as_ref();
        if std::mem::replace(&mut self.any_deferred, selected.is_some()) || selected.is_some() {
            for process in self.processes.awake_mut() {
                let is_selected = selected.is_none_or(|selected| selected.contains(&process.id));
                process.deferred_ns = if is_selected { 0 } else { process.interval_ns };
            }
        }
        self.rows = deliver(
            &mut self.deferred_rows,
            std::mem::take(&mut self.rows),
            selected,
            |row| (row.id, row.tid),
            |(id, _)| Some(*id),
            Row::add,
        );
        self.rows.sort_by_cached_key(|row| (row.id, row.tid));
        let interval_ns = self.read_at - self.sampled_at;
        self.per_key.deliver(&self.processes, interval_ns, selected);
        self.restrict_rows();
        if marked.is_none() {
            self.sampled_at = self.read_at;
        }
    }

    /// Processes with these pids, ended processes, and all descendants of both.
    fn process_trees(&self, pids: &HashSet<u32>) -> HashSet<ProcessId> {
        let key = |id| process_key(&self.clock, id);
        let roots: HashSet<_> = self
            .processes
            .all()
            .filter(|process| process.end.is_some() || pids.contains(&process.id.pid))
            .map(|process| key(process.id))
            .collect();
        let ids = self.processes.all().map(|process| process.id);
        ids.filter(|id| {
            self.process_tree
                .ancestry(key(*id))
                .any(|ancestor| roots.contains(&ancestor))
        })
        .collect()
    }

    /// Divides a number of rows among the users in proportion to their present rows, rounded up.
    pub fn share_among_users(&self, rows: u64) -> HashMap<u32, u64> {
        let mut shares: HashMap<u32, u64> = HashMap::new();
        for row in &self.rows {
            if let Some(process) = self.get(row.id) {
                *shares.entry(process.uid).or_default() += 1;
            }
        }
        let all = (self.rows.len() as u64).max(1);
        for share in shares.values_mut() {
            *share = (*share * rows).div_ceil(all);
        }
        shares
    }
}

/// Adds `rows` to the deferred ones, then removes and returns those of the selected processes; all
/// if `selected` is `None`.
pub(super) fn deliver<K: Eq + Hash, R>(
    deferred: &mut HashMap<K, R>,
    rows: Vec<R>,
    selected: Option<&HashSet<ProcessId>>,
    key: impl Fn(&R) -> K,
    owner: impl Fn(&K) -> Option<ProcessId>,
    add: impl Fn(&mut R, &R),
) -> Vec<R> {
    if deferred.is_empty() && selected.is_none() {
        return rows;
    }
    let is_selected = |key: &K| {
        selected.is_none_or(|selected| owner(key).is_some_and(|owner| selected.contains(&owner)))
    };
    for row in rows {
        match deferred.entry(key(&row)) {
            Entry::Occupied(mut earlier) => add(earlier.get_mut(), &row),
            Entry::Vacant(vacant) => {
                vacant.insert(row);
            }
        }
    }
    let delivered = deferred.extract_if(|key, _| is_selected(key));
    delivered.map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId {
            pid,
            start_boottime: 1,
        }
    }

    #[test]
    fn deferred_rows_are_added_to_later_ones() {
        let mut deferred = HashMap::new();
        let mut deliver = |rows: &[(u32, u64)], selected: Option<&[u32]>| {
            let selected = selected.map(|pids| pids.iter().map(|pid| id(*pid)).collect());
            let mut delivered = deliver(
                &mut deferred,
                rows.to_vec(),
                selected.as_ref(),
                |row| row.0,
                |key| Some(id(*key)),
                |row, later| row.1 += later.1,
            );
            delivered.sort_unstable();
            delivered
        };
        assert_eq!(deliver(&[(1, 10), (2, 20)], Some(&[1])), [(1, 10)]);
        assert_eq!(deliver(&[(1, 5), (2, 5)], Some(&[])), []);
        assert_eq!(deliver(&[(1, 1)], Some(&[1, 2])), [(1, 6), (2, 25)]);
        assert_eq!(deliver(&[(1, 2), (2, 7)], Some(&[2])), [(2, 7)]);
        assert_eq!(deliver(&[(2, 1)], None), [(1, 2), (2, 1)]);
        assert_eq!(deliver(&[(2, 1)], None), [(2, 1)]);
    }
}
