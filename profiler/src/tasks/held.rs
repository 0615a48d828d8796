//! Rows of readings between two ticks: those of the processes that are marked are delivered, all others are held until the
//! next tick, as if there had been no reading.

use std::hash::Hash;

use hashbrown::{HashMap, HashSet, hash_map::Entry};

use super::{ProcessId, Row, TaskTable, Who, counters, who};

/// Whose rows are added up.
pub type Key = (ProcessId, Option<u32>);

impl Row {
    /// Adds what the same process or thread did afterwards.
    fn add(&mut self, later: &Self) {
        counters::add(&mut self.increase, &later.increase);
        let increase = self.increase;
        let cpu_time = counters::CpuTime {
            user: self.cpu_time.user + later.cpu_time.user,
            system: self.cpu_time.system + later.cpu_time.system,
        };
        counters::add_latency(&mut self.runqueue, later.runqueue.as_ref());
        *self = Self {
            interval_ns: self.interval_ns + later.interval_ns,
            increase,
            io_read: self.io_read && later.io_read,
            cpu_time,
            runqueue: self.runqueue.take(),
            footprint: later.footprint.or(self.footprint),
            ..later.clone()
        };
    }
}

impl TaskTable {
    /// Leaves only those rows of the last reading that are of these processes and their descendants, or that are a process's
    /// last; the others are held and added to later ones. Without pids all rows are wanted, those that are held too.
    pub fn deliver(&mut self, marked: Option<&HashSet<u32>>) {
        let wanted = marked.map(|pids| self.trees(pids));
        let wanted = wanted.as_ref();
        for process in self.processes.values_mut() {
            let wanted = wanted.is_none_or(|wanted| wanted.contains(&process.id));
            process.held_ns = if wanted { 0 } else { process.interval_ns };
        }
        self.rows = deliver(
            &mut self.held_rows,
            std::mem::take(&mut self.rows),
            wanted,
            |row| (row.id, row.tid),
            |(id, _)| Some(*id),
            Row::add,
        );
        self.rows.sort_by_cached_key(|row| (row.id, row.tid));
        let interval_ns = self.read_at - self.flows_read_at;
        self.per_key.deliver(&self.processes, interval_ns, wanted);
        if marked.is_none() {
            self.flows_read_at = self.read_at;
        }
    }

    /// The processes with these pids, those that have ended, and all descendants of both.
    fn trees(&self, pids: &HashSet<u32>) -> HashSet<ProcessId> {
        let name = |id| who(&self.clock, id);
        let roots: HashSet<Who> = self
            .processes
            .values()
            .filter(|process| process.end.is_some() || pids.contains(&process.id.pid))
            .map(|process| name(process.id))
            .collect();
        let ids = self.processes.keys().copied();
        ids.filter(|id| {
            self.process_tree
                .line(name(*id))
                .any(|who| roots.contains(&who))
        })
        .collect()
    }

    /// Divides a number of rows among the users whose processes have rows now.
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

/// Adds rows to those that are held, and takes out those of processes that are wanted: all, if none is named.
pub fn deliver<K: Eq + Hash, R>(
    held: &mut HashMap<K, R>,
    rows: Vec<R>,
    wanted: Option<&HashSet<ProcessId>>,
    key: impl Fn(&R) -> K,
    owner: impl Fn(&K) -> Option<ProcessId>,
    add: impl Fn(&mut R, &R),
) -> Vec<R> {
    if held.is_empty() && wanted.is_none() {
        return rows;
    }
    let is_wanted = |key: &K| {
        wanted.is_none_or(|wanted| owner(key).is_some_and(|owner| wanted.contains(&owner)))
    };
    for row in rows {
        match held.entry(key(&row)) {
            Entry::Occupied(mut earlier) => add(earlier.get_mut(), &row),
            Entry::Vacant(place) => {
                place.insert(row);
            }
        }
    }
    let delivered = held.extract_if(|key, _| is_wanted(key));
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
    fn rows_that_are_held_come_with_those_that_follow() {
        let mut held = HashMap::new();
        let mut deliver = |rows: &[(u32, u64)], wanted: Option<&[u32]>| {
            let wanted = wanted.map(|pids| pids.iter().map(|pid| id(*pid)).collect());
            let mut delivered = deliver(
                &mut held,
                rows.to_vec(),
                wanted.as_ref(),
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
