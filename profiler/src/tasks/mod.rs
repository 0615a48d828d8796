//! The processes of the target: identity, names, counters.
//!
//! They are read once per sample for all sources, by the BPF programs or, if BPF cannot be used,
//! from `/proc`.

mod access;
mod allocation;
mod budget;
mod cmdline;
pub mod counters;
mod boundary_rows;
mod slow_fields;
mod slow_fields_reader;
pub mod dirtiers;
pub mod disks;
mod following;
mod gauges;
mod increases;
mod jobs;
mod lifecycle;
mod missed_estimate;
mod names;
mod identity_worker;
mod identity;
mod identity_queue;
mod procfs_process;
pub mod per_key;
mod perf_records;
mod process;
mod process_id;
mod processes;
pub mod process_tree;
mod readings;
mod row;
mod sparse;
mod threads;
mod tree_cpu;
mod visits;
pub mod procfs_reader;

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use hashbrown::{HashMap, HashSet};

pub use self::{
    access::Access,
    allocation::Allocation,
    budget::Budget,
    cmdline::Cmdline,
    gauges::Memory,
    identity::Description,
    per_key::PerKeyCounters,
    process::{End, Process},
    process_id::ProcessId,
    procfs_reader::ProcfsReader,
    row::Row,
    slow_fields::Details,
};
use self::{
    access::Viewer,
    identity_worker::IdentityWorker,
    process_tree::{ProcessTree, process_key},
    processes::Processes,
    slow_fields_reader::DetailsReader,
    sparse::SparseRows,
};
use crate::{
    bpf::{Event, KernelSupport, Programs},
    host::Host,
    job::{JobNumbers, Method},
    support::{
        cache::Cache,
        clock::{Clock, Tick},
        heap,
    },
};

/// Readings after which all per-key counters are read, changed or not: those of processes that have left
/// the target are removed.
const COMPLETE_EVERY: u32 = 64;

/// What a reading is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Sample,
    /// The begin or end of a region, between two samples.
    Boundary,
    /// The last sample.
    End,
}

/// Origin of readings.
pub enum Reader {
    Bpf(Box<Programs>),
    /// `/proc`, if BPF cannot be used.
    Procfs(Box<ProcfsReader>),
    /// None: no source needs the processes.
    None,
}

/// All processes of the target.
pub struct TaskTable {
    /// Values that the kernel and the reader supply.
    pub kernel_support: KernelSupport,
    /// Rows of this sample, by process and thread.
    pub rows: Vec<Row>,
    /// Processes that started, executed a program or ended since the previous sample.
    pub changed: Vec<ProcessId>,
    /// Counters by process and dimension.
    pub per_key: PerKeyCounters,
    /// Sum of the proportional memory of all processes, bytes, in the sample after all were read.
    pub pss: Option<u64>,
    /// Resident memory of the processes whose rows are left out of this sample, bytes; `None` if there
    /// are none with memory.
    pub left_out_rss: Option<u64>,
    /// CPU time of the target since the previous reading, with that of processes that no reading
    /// has, ns; `None` if it is the sum of the rows.
    pub target_cpu_ns: Option<u64>,
    /// Converts the kernel's clocks to wall clock.
    pub clock: Clock,
    /// Ancestry of the processes.
    pub process_tree: ProcessTree,
    deferred_rows: HashMap<boundary_rows::RowKey, Row>,
    /// Number of rows of the sample before.
    rows_before: usize,
    /// Whether processes have [deferred rows](Process::deferred_ns).
    any_deferred: bool,
    processes: Processes,
    /// Processes with changes in this reading, also those whose names are missing.
    touched: Vec<ProcessId>,
    /// Processes that have ended by this reading.
    ended: Vec<ProcessId>,
    missed: Vec<ProcessId>,
    users: HashSet<u32>,
    /// Resident memory of the live processes whose memory is shown, bytes.
    rss: u64,
    /// Whether names of a process are missing.
    any_undescribed: bool,
    /// Last request for names of idle processes of a large node.
    idle_names_at: Option<Instant>,
    /// Whether the iterator could not be read to its end; names are then read from `/proc`.
    has_pass_failed: bool,
    reader: Reader,
    details: DetailsReader,
    host: Host,
    job_numbers: JobNumbers,
    identity_worker: IdentityWorker,
    /// For long command lines.
    cmdlines: Budget,
    /// The job that is the target, and the method by which it was found.
    target_job: Option<(Arc<str>, Method)>,
    /// Whether batch jobs have cgroups on this node.
    jobs_have_cgroups: bool,
    /// Batch jobs, and users with processes that have been in their cgroups.
    job_users: Cache<(Arc<str>, u32), ()>,
    /// The user who receives the rows; `None` if everything is shown.
    viewer: Option<Viewer>,
    with_threads: bool,
    page: u64,
    /// Begin of the run, ns of `CLOCK_MONOTONIC`.
    run_start: u64,
    /// Readings so far.
    epochs: u32,
    /// Events that are applied by the next reading.
    events: Vec<Event>,
    ended_threads: HashSet<(ProcessId, u32)>,
    /// CPU time of the target since the first reading from `/proc`, ns.
    target_cpu_total: Option<u64>,
    /// Changed counters that could not be listed.
    unlisted: u64,
    /// Whether there were any before the last reading.
    was_unlisted: bool,
    /// Processes that ended without a reading that has their counters.
    uncounted: u64,
    /// Begin of the reading of the last sample, ns of `CLOCK_MONOTONIC`.
    sampled_at: u64,
    /// Begin of the last reading, ns of `CLOCK_MONOTONIC`.
    read_at: u64,
    /// The same on the clock of the records.
    reading_clock: u64,
    /// Begin of the last reading that has visited all processes, ns of `CLOCK_MONOTONIC`.
    all_visited_at: u64,
    /// Which rows of sleeping processes are left out; `None` for none.
    sparse: Option<SparseRows>,
}

impl TaskTable {
    /// An empty table, which [`Self::refresh`] fills.
    pub fn new(
        host: &Host,
        clock: Clock,
        reader: Reader,
        per_key: PerKeyCounters,
        kernel_support: KernelSupport,
        threads: bool,
    ) -> Self {
        Self {
            kernel_support,
            per_key,
            pss: None,
            left_out_rss: None,
            target_cpu_ns: None,
            rows: Vec::new(),
            changed: Vec::new(),
            clock,
            process_tree: ProcessTree::default(),
            deferred_rows: HashMap::new(),
            rows_before: 0,
            any_deferred: false,
            touched: Vec::new(),
            ended: Vec::new(),
            missed: Vec::new(),
            users: HashSet::new(),
            rss: 0,
            any_undescribed: false,
            idle_names_at: None,
            has_pass_failed: false,
            processes: Processes::default(),
            reader,
            details: DetailsReader::new(host),
            host: host.clone(),
            job_numbers: JobNumbers::default(),
            identity_worker: IdentityWorker::new(host.procfs.clone(), host.cgroups.clone()),
            cmdlines: Budget::default(),
            target_job: None,
            jobs_have_cgroups: false,
            job_users: Cache::new(jobs::USERS_MAX),
            viewer: None,
            with_threads: threads,
            page: rustix::param::page_size() as u64,
            run_start: crate::support::clock::monotonic_ns(),
            epochs: 0,
            events: Vec::new(),
            ended_threads: HashSet::new(),
            target_cpu_total: None,
            unlisted: 0,
            was_unlisted: false,
            uncounted: 0,
            sampled_at: 0,
            read_at: 0,
            reading_clock: 0,
            all_visited_at: 0,
            sparse: None,
        }
    }

    /// A table that remains empty, for runs whose sources need no processes.
    pub fn without_reader(host: &Host, clock: Clock) -> Self {
        let kernel_support = KernelSupport {
            run_delay: false,
            io: false,
            sched: false,
            wakeups: false,
        };
        Self::new(
            host,
            clock,
            Reader::None,
            PerKeyCounters::default(),
            kernel_support,
            false,
        )
    }

    /// The process with this identity.
    pub fn get(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(id)
    }

    /// All live processes, and those that ended since the previous sample.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.all()
    }

    /// All processes but those that sleep and have no row.
    pub fn awake(&self) -> impl Iterator<Item = &Process> {
        self.processes.awake()
    }

    /// Processes that ended since the previous sample.
    pub fn ended(&self) -> impl Iterator<Item = &Process> {
        self.awake().filter(|process| process.end.is_some())
    }

    /// Number of processes that [`Self::iter`] returns.
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Real uids of all processes.
    pub fn users(&self) -> &HashSet<u32> {
        &self.users
    }

    /// Live processes that are missing in the last reading although they had started before it.
    /// They were ending; the next reading has their counters.
    pub fn missed(&self) -> &[ProcessId] {
        &self.missed
    }

    /// Reads all processes and computes the increases since the previous reading.
    /// [`Self::deliver`] then selects the rows.
    ///
    /// # Errors
    ///
    /// If the processes cannot be read. Processes that end during the reading are no error.
    pub fn refresh(&mut self, tick: &Tick, moment: Moment) -> Result<()> {
        let last = moment == Moment::End;
        self.begin_epoch();
        let first = self.epochs == 1;
        let mut moved = Ok(());
        let visits = self.visits(tick.monotonic_ns, last);
        let now = match &mut self.reader {
            Reader::Bpf(programs) => {
                let reading = programs
                    .tasks
                    .sample(tick.monotonic_ns, visits)
                    .context("reading the tasks")?;
                moved = self.apply_bpf_reading(reading, last);
                reading.monotonic_ns
            }
            Reader::Procfs(_) => {
                self.read_procfs(tick, first, last)?;
                tick.monotonic_ns
            }
            Reader::None => return Ok(()),
        };
        let all = self.needs_all_rows(now, moment);
        if all {
            self.processes.wake_all();
        }
        self.close_missing(now);
        self.update_access();
        self.update_names(first, last);
        self.publish(now, all, last);
        self.processes.end_reading(now);
        self.read_at = now;
        self.read_per_key(now, first, last)?;
        self.details.update(&self.processes, self.rss);
        self.collect_changed(last);
        self.update_job_users(first);
        moved
    }

    /// Removes processes that ended in the previous epoch.
    fn begin_epoch(&mut self) {
        for id in self.ended.drain(..) {
            self.process_tree.end(process_key(&self.clock, id));
            self.processes.remove(id);
        }
        self.touched.clear();
        heap::empty(&mut self.rows, &mut self.rows_before);
        self.epochs += 1;
    }

    /// Reads the counters by process and dimension, after the exits, so that those of ended
    /// processes are complete.
    fn read_per_key(&mut self, now: u64, first: bool, last: bool) -> Result<()> {
        let Reader::Bpf(programs) = &mut self.reader else {
            return Ok(());
        };
        programs.changed_keys(|map, key| self.per_key.changed(map, key));
        let unlisted = programs.tasks.counters()?.unlisted;
        let is_unlisted = std::mem::replace(&mut self.unlisted, unlisted) != unlisted;
        // Also the next one: a program that could not list a key can change its counters after this one.
        let was_unlisted = std::mem::replace(&mut self.was_unlisted, is_unlisted);
        let is_due = self.epochs.is_multiple_of(COMPLETE_EVERY);
        let is_complete = first || last || is_unlisted || was_unlisted || is_due;
        let reading = per_key::Reading {
            processes: &self.processes,
            ended_threads: &self.ended_threads,
            boottime: self.clock.boottime(now),
            interval_ns: now.saturating_sub(self.sampled_at),
            epoch: programs.tasks.epoch(),
            is_complete,
            ended: &self.ended,
            first,
            last,
        };
        self.per_key
            .refresh(&reading)
            .context("reading the per-key counters")?;
        self.ended_threads.clear();
        Ok(())
    }

    /// Collects changed processes. Live ones are included when their names and counters are known.
    fn collect_changed(&mut self, last: bool) {
        let processes = &self.processes;
        let is_ready = |id: &&ProcessId| {
            let process = processes.get(**id);
            process.is_some_and(|process| {
                let is_known = process.described && process.read_at.is_some();
                is_known || process.end.is_some() || last
            })
        };
        self.changed.clear();
        self.changed.extend(self.touched.iter().filter(is_ready));
        self.changed.sort_unstable();
    }

    /// Reads the details of all processes, for the last sample.
    pub fn read_details(&mut self) {
        self.details.read_last(&self.processes);
    }
}
