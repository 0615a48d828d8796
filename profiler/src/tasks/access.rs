//! What a client of the service may know of each process: no more than the kernel tells its user.

use profiler_ebpf::record::Totals;

use super::{Process, ProcessId, Row, TaskTable};
use crate::support::cache::Cache;

/// Ended processes whose later counters belong to the client. A write can reach its disk after the
/// end of its process.
const ENDED_MAX: usize = 16_384;

/// How much of a process is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    #[default]
    Full,
    /// What `/proc` shows to every user: the process runs a program with more permissions than its
    /// user, or one that is not dumpable, as ptrace(2) has it.
    Public,
    /// Nothing: a process of another user.
    None,
}

/// The user who receives the rows.
pub(super) struct Viewer {
    uid: u32,
    /// Ended processes with [`Access::Full`].
    ended: Cache<ProcessId, ()>,
}

impl Viewer {
    fn access(&self, process: &Process) -> Access {
        match (process.uid == self.uid, process.is_private) {
            (false, _) => Access::None,
            (true, true) => Access::Public,
            (true, false) => Access::Full,
        }
    }
}

impl TaskTable {
    /// Restricts the rows to what this user may know. Root may know everything.
    pub fn show_only_to(&mut self, uid: u32) {
        self.viewer = (uid != 0).then(|| Viewer {
            uid,
            ended: Cache::new(ENDED_MAX),
        });
    }

    /// A user other than the one who receives the rows and these `accounts`, if one has a process of the
    /// target.
    pub fn other_user(&self, accounts: &[u32]) -> Option<u32> {
        let viewer = self.viewer.as_ref()?;
        let mut users = self.processes.all().map(|process| process.uid);
        users.find(|uid| *uid != viewer.uid && !accounts.contains(uid))
    }

    /// Updates the access to all processes of a reading.
    pub(super) fn update_access(&mut self) {
        let Some(viewer) = &mut self.viewer else {
            return;
        };
        for process in self.processes.awake_mut() {
            process.access = viewer.access(process);
            if process.end.is_some() && process.access == Access::Full {
                viewer.ended.insert(process.id, ());
            }
        }
    }

    /// Removes rows, and values of rows, to which there is no access.
    pub(super) fn restrict_rows(&mut self) {
        let Some(viewer) = &self.viewer else {
            return;
        };
        let processes = &self.processes;
        let access = |id: ProcessId| match processes.get(id) {
            Some(process) => process.access,
            None if viewer.ended.contains(&id) => Access::Full,
            None => Access::None,
        };
        self.rows.retain_mut(|row| {
            let access = access(row.id);
            if access == Access::Public {
                row.keep_public();
            }
            access != Access::None
        });
        self.per_key.retain(|id| access(id) == Access::Full);
    }
}

impl Row {
    /// Removes the values that `/proc` shows only to the owner: I/O, descriptors, proportional memory.
    fn keep_public(&mut self) {
        let all = self.increase;
        self.increase = Totals {
            utime: all.utime,
            stime: all.stime,
            oncpu: all.oncpu,
            run_delay: all.run_delay,
            run_count: all.run_count,
            nvcsw: all.nvcsw,
            nivcsw: all.nivcsw,
            min_flt: all.min_flt,
            maj_flt: all.maj_flt,
            ..Totals::default()
        };
        self.is_public = true;
        self.io_read = false;
        self.runqueue = None;
        self.details = None;
        self.fds = None;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::counters::CpuTime, *};
    use crate::{host::Host, support::clock::Clock};

    fn table(uid: u32) -> TaskTable {
        let nowhere = Path::new("/nowhere");
        let host = Host::probe(nowhere, nowhere, Some("n1".to_owned()));
        let mut tasks = TaskTable::without_reader(&host, Clock::new());
        tasks.show_only_to(uid);
        for (pid, uid, is_private) in [(1, 7, false), (2, 7, true), (3, 8, false), (4, 0, true)] {
            let process = tasks.processes.entry(id(pid), 0);
            (process.uid, process.is_private) = (uid, is_private);
            let mut row = row(id(pid));
            (row.increase.oncpu, row.increase.rchar) = (5, 6);
            tasks.rows.push(row);
        }
        tasks.update_access();
        tasks.restrict_rows();
        tasks
    }

    fn row(id: ProcessId) -> Row {
        Row {
            id,
            tid: None,
            interval_ns: 1,
            increase: Totals::default(),
            io_read: true,
            is_public: false,
            cpu_time: CpuTime::default(),
            runqueue: None,
            memory: None,
            details: None,
            threads: None,
            fds: None,
            cpu: None,
            state: "R",
        }
    }

    fn id(pid: u32) -> ProcessId {
        ProcessId {
            pid,
            start_boottime: 1,
        }
    }

    #[test]
    fn users_see_what_the_kernel_tells_them() {
        let rows = |uid| {
            let tasks = table(uid);
            let rows = tasks.rows.iter();
            let rows = rows.map(|row| (row.id.pid, row.io_read, row.increase.rchar));
            rows.collect::<Vec<_>>()
        };
        assert_eq!(rows(7), [(1, true, 6), (2, false, 0)]);
        assert_eq!(rows(8), [(3, true, 6)]);
        assert_eq!(rows(9), []);
        let all = [1, 2, 3, 4].map(|pid| (pid, true, 6));
        assert_eq!(rows(0), all);
        assert_eq!(table(7).other_user(&[0]), Some(8));
        assert_eq!(table(7).other_user(&[0, 8]), None);
        assert_eq!(table(0).other_user(&[0]), None);
    }
}
