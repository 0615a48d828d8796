//! The processes of the target: who they are, and what each did since the last reading.
//!
//! Read once per tick for all sources, by the BPF programs or, where the kernel refuses them, from /proc.

mod budget;
mod cmdline;
pub mod counters;
pub mod dirtiers;
pub mod disks;
mod held;
mod memory;
mod name_reader;
mod names;
pub mod per_key;
mod process;
pub mod process_tree;
mod threads;
pub mod walk;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use counters::{CpuTime, Latency};
use hashbrown::{HashMap, HashSet};
use profiler_ebpf::wire::{self, Totals, thread_flags};

pub use self::{
    budget::Budget,
    cmdline::Cmdline,
    memory::Footprint,
    names::Description,
    per_key::PerKeyCounters,
    process::{End, Memory, Process, ProcessId},
    walk::Walker,
};
use self::{
    name_reader::NameReader,
    process::{Now, entry, on_fork},
    process_tree::{ProcessTree, Who, who},
};
use crate::{
    bpf::{Event, Programs, Reading as BpfReading, Record},
    host::Host,
    job::{self, Directory, Method, Numbers, ROOTS_MAX, cgroup_path},
    support::{
        cache::Cache,
        clock::{Clock, Tick},
    },
};

/// How long a tick waits for names, so that most are there at once.
const WAIT: Duration = Duration::from_millis(2);
/// The same of the first tick.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The same of the last one, which asks again until all are there.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Bytes of long command lines that are held at a time.
const HELD: usize = 32 << 20;
/// Users of batch jobs that are remembered.
const JOB_USERS: usize = 4096;

/// One process or thread at one tick.
#[derive(Clone, Debug)]
pub struct Row {
    /// Whose.
    pub id: ProcessId,
    /// Which thread, for rows of threads.
    pub tid: Option<u32>,
    /// Time since the reading before, or since birth; until the end, if it has ended.
    pub interval_ns: u64,
    /// What was added to its counters.
    pub increase: Totals,
    /// Whether I/O accounting could be read.
    pub io_read: bool,
    /// What was added to user and system time.
    pub cpu_time: CpuTime,
    /// Run-queue waits that ended.
    pub runqueue: Option<Latency>,
    /// Memory; `None` when ended, for kernel threads and for threads.
    pub memory: Option<Memory>,
    /// Proportional, unique and swapped memory, when it was just read.
    pub footprint: Option<Footprint>,
    /// Threads; `None` when ended.
    pub threads: Option<u32>,
    /// Open file descriptors; `None` when ended or not known.
    pub fds: Option<u32>,
    /// CPU it last ran on.
    pub cpu: Option<u32>,
    /// State letter of ps(1).
    pub state: &'static str,
}

/// Where readings come from.
pub enum Reader {
    /// The BPF programs.
    Bpf(Box<Programs>),
    /// /proc, where BPF cannot be used.
    Procfs(Walker),
    /// Nothing: no source needs the processes.
    None,
}

/// What a kernel does not keep is null in the rows.
#[derive(Clone, Copy, Debug)]
pub struct KernelSupport {
    /// Waits in the run queue (`CONFIG_SCHED_INFO`).
    pub run_delay: bool,
    /// I/O accounting (`CONFIG_TASK_IO_ACCOUNTING`).
    pub io: bool,
    /// Time asleep, wakeups, migrations, run-queue histogram: with BPF only.
    pub sched: bool,
}

/// All processes of the target.
pub struct TaskTable {
    /// What this kernel and this reader deliver.
    pub keeps: KernelSupport,
    /// Rows of this tick: what each process (and thread) did since the tick before.
    pub rows: Vec<Row>,
    /// Processes that were born, changed their program or ended since the tick before.
    pub changed: Vec<ProcessId>,
    /// What they did with other things.
    pub per_key: PerKeyCounters,
    /// Proportional memory of all processes together, when it was just read of each of them, bytes.
    pub pss: Option<u64>,
    /// Turns the kernel's clocks into wall clock.
    pub clock: Clock,
    /// Who descends from whom.
    pub process_tree: ProcessTree,
    held_rows: HashMap<held::Key, Row>,
    processes: HashMap<ProcessId, Process>,
    reader: Reader,
    memory: memory::Reader,
    host: Host,
    numbers: Numbers,
    name_reader: NameReader,
    /// Room for long command lines.
    held: Budget,
    job: Option<(Arc<str>, Method)>,
    /// Whether batch jobs have cgroups on this node.
    jobs_have_cgroups: bool,
    /// Batch jobs, and users whose processes have been in their cgroups.
    job_users: Cache<(Arc<str>, u32), ()>,
    with_threads: bool,
    page: u64,
    started: u64,
    epochs: u32,
    events: Vec<Event>,
    ended_threads: HashSet<(ProcessId, u32)>,
    /// When rows of nobody were delivered.
    flows_read_at: u64,
    /// When the last reading began, ns of `CLOCK_MONOTONIC`.
    read_at: u64,
}

impl TaskTable {
    /// A table that is filled at the first [`TaskTable::refresh`].
    pub fn new(
        host: &Host,
        clock: Clock,
        reader: Reader,
        per_key: PerKeyCounters,
        keeps: KernelSupport,
        threads: bool,
    ) -> Self {
        Self {
            keeps,
            per_key,
            pss: None,
            rows: Vec::new(),
            changed: Vec::new(),
            clock,
            process_tree: ProcessTree::default(),
            held_rows: HashMap::new(),
            processes: HashMap::new(),
            reader,
            memory: memory::Reader::new(host),
            host: host.clone(),
            numbers: Numbers::default(),
            name_reader: NameReader::new(host.procfs.clone(), host.cgroups.clone()),
            held: Budget::default(),
            job: None,
            jobs_have_cgroups: false,
            job_users: Cache::new(JOB_USERS),
            with_threads: threads,
            page: rustix::param::page_size() as u64,
            started: crate::support::clock::monotonic_ns(),
            epochs: 0,
            events: Vec::new(),
            ended_threads: HashSet::new(),
            flows_read_at: 0,
            read_at: 0,
        }
    }

    /// A table without processes, for runs whose sources need none.
    pub fn unread(host: &Host, clock: Clock) -> Self {
        let keeps = KernelSupport {
            run_delay: false,
            io: false,
            sched: false,
        };
        Self::new(
            host,
            clock,
            Reader::None,
            PerKeyCounters::default(),
            keeps,
            false,
        )
    }

    /// The batch job that all processes are of, also those that neither their cgroup nor their environment tell of.
    pub fn set_job(&mut self, found: &job::Found) {
        let id: Arc<str> = found.id.as_str().into();
        for directory in found
            .directories
            .iter()
            .filter(|directory| cgroup_path::is_sluid(&directory.job))
        {
            self.numbers.learn(&directory.job, Arc::clone(&id));
        }
        self.job = Some((id, found.method));
    }

    /// The job of a process, and what it is known from. An environment tells a job only of its users where jobs have
    /// cgroups, and no other one of a target that is a job.
    pub fn job_of(&self, process: &Process) -> Option<(Arc<str>, Method)> {
        let own = process.description.job.job();
        let own = own.map(|(job, method)| (self.numbers.known(job), method));
        own.filter(|(job, method)| {
            let is_believed = || !self.jobs_have_cgroups || self.is_user_of(job, process.uid);
            *method == Method::Cgroup || self.job.is_none() && is_believed()
        })
        .or_else(|| self.job.clone())
    }

    /// Whether processes of this user have been in the cgroup of the job.
    pub fn is_user_of(&self, job: &Arc<str>, uid: u32) -> bool {
        self.job_users.contains(&(Arc::clone(job), uid))
    }

    /// The BPF programs, if the readings come from them.
    pub fn programs(&mut self) -> Option<&mut Programs> {
        match &mut self.reader {
            Reader::Bpf(programs) => Some(programs),
            Reader::Procfs(_) | Reader::None => None,
        }
    }

    /// The process with this identity.
    pub fn get(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(&id)
    }

    /// All processes that live or ended since the last tick.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// Those that lived when the reading began and are not in it: they were ending. What they did comes with the next one.
    pub fn missed(&self) -> impl Iterator<Item = &Process> {
        self.processes.values().filter(|process| {
            let born = self.clock.monotonic_of_boottime(process.id.start_boottime);
            process.end.is_none() && process.read_at != Some(self.read_at) && born <= self.read_at
        })
    }

    /// Processes of the target that live.
    ///
    /// # Errors
    ///
    /// When the programs' counters cannot be read.
    pub fn live(&self) -> Result<u64> {
        Ok(match &self.reader {
            Reader::Bpf(programs) => programs.counters()?.live,
            Reader::Procfs(_) | Reader::None => self
                .processes
                .values()
                .filter(|process| process.end.is_none())
                .count() as u64,
        })
    }

    /// Whether a process has ended whose end the kernel has yet to report: its last thread still has to leave its CPU.
    pub fn any_ending(&self) -> bool {
        let Reader::Bpf(programs) = &self.reader else {
            return false;
        };
        let mut live = programs.live_processes().unwrap_or_default().into_iter();
        live.any(|pid| names::has_ended(&self.host.procfs, pid))
    }

    /// Reads all processes once and works out what each did since the last time; [`Self::deliver`] then says whose rows
    /// are wanted.
    ///
    /// # Errors
    ///
    /// When they cannot be read at all; processes that vanish meanwhile are no error.
    pub fn refresh(&mut self, tick: &Tick, last: bool) -> Result<()> {
        self.process_tree.forget_ended(&self.processes, &self.clock);
        self.processes.retain(|_, process| process.end.is_none());
        for process in self.processes.values_mut() {
            process.changed &= process.read_at.is_none();
            process.now = Now::default();
        }
        self.rows.clear();
        self.held = self.room();
        self.epochs += 1;
        let first = self.epochs == 1;
        let now = match &mut self.reader {
            Reader::Bpf(programs) => {
                let reading = programs
                    .sample(tick.monotonic_ns)
                    .context("reading the tasks")?;
                self.take_bpf(reading, last);
                reading.monotonic_ns
            }
            Reader::Procfs(_) => {
                self.take_procfs(tick, first)?;
                tick.monotonic_ns
            }
            Reader::None => return Ok(()),
        };
        self.close_vanished(now);
        self.describe(first, last);
        self.publish(now, last);
        self.read_at = now;
        self.process_tree.learn(&self.processes, &self.clock);
        self.read_flows(now, first, last)?;
        self.memory.update(&self.processes);
        self.changed.clear();
        for process in self.processes.values() {
            let known = process.described && process.read_at.is_some();
            if process.changed && (known || process.end.is_some() || last) {
                self.changed.push(process.id);
            }
        }
        self.changed.sort_unstable();
        self.jobs_have_cgroups |= first && job::has_jobs(&self.host);
        for process in self.changed.iter().filter_map(|id| self.processes.get(id)) {
            if let Some(job) = process.description.job.proven() {
                self.jobs_have_cgroups = true;
                let user = (self.numbers.known(job), process.uid);
                self.job_users.insert(user, ());
            }
        }
        Ok(())
    }

    /// Applies births, execs, this reading's records and ends, in this order.
    fn take_bpf(&mut self, reading: BpfReading, last: bool) {
        if let Reader::Bpf(programs) = &mut self.reader {
            programs.drain(&mut self.events);
        }
        let mut ends = Vec::new();
        let now = reading.monotonic_ns;
        let processes = &mut self.processes;
        let mut later = Vec::new();
        for event in self.events.drain(..) {
            match event {
                // What ended after the reading had begun belongs to the next one.
                Event::Exit(ref end) if end.end > now && !last => later.push(event),
                Event::Birth(birth) => on_fork(processes, &self.clock, &birth),
                Event::Exec(exec, args) => {
                    let id = ProcessId {
                        pid: exec.pid,
                        start_boottime: exec.start_boottime,
                    };
                    let process = entry(processes, id, now);
                    process.uid = exec.uid;
                    let names = &mut process.description;
                    let (host, numbers) = (&self.host, &self.numbers);
                    process.described =
                        !names.exec(host, numbers, &mut self.held, id, &exec, &args);
                    process.changed = true;
                }
                Event::Environment(environment) => {
                    let id = ProcessId {
                        pid: environment.pid,
                        start_boottime: environment.start_boottime,
                    };
                    // Its exec came before, unless that was lost.
                    if let Some(process) = processes.get_mut(&id) {
                        let names = &mut process.description;
                        process.described &= !names.environment(&self.host, id, &environment);
                        process.changed = true;
                    }
                }
                Event::Exit(_) | Event::ThreadEnd(_) => ends.push(event),
                Event::CgroupMove | Event::OutOfScopeFork(_) => {}
            }
        }
        self.events = later;
        self.take_records(reading);
        for event in ends {
            match event {
                Event::Exit(end) => {
                    let id = ProcessId {
                        pid: end.pid,
                        start_boottime: end.start_boottime,
                    };
                    let process = entry(&mut self.processes, id, now);
                    process.finish(&end, self.page, reading.epoch);
                }
                Event::ThreadEnd(end) => {
                    let id = ProcessId {
                        pid: end.pid,
                        start_boottime: end.start_boottime,
                    };
                    let process = entry(&mut self.processes, id, now);
                    let row = process.thread_end(&end, reading, &self.clock, self.started);
                    self.ended_threads.insert((id, end.tid));
                    self.rows.extend(row);
                }
                _ => {}
            }
        }
    }

    /// Applies the records of this reading.
    fn take_records(&mut self, reading: BpfReading) {
        let Reader::Bpf(programs) = &self.reader else {
            return;
        };
        let processes = &mut self.processes;
        let mut current = None;
        let mut thread = None;
        for record in programs.records() {
            match record {
                Record::Process(record) => {
                    let id = ProcessId {
                        pid: record.pid,
                        start_boottime: record.start_boottime,
                    };
                    current = Some(id);
                    let process = entry(processes, id, reading.monotonic_ns);
                    process.seen_in = self.epochs;
                    process.observe(record, self.page);
                }
                Record::Unchanged(record) => {
                    let id = ProcessId {
                        pid: record.pid,
                        start_boottime: record.start_boottime,
                    };
                    let Some(process) = processes.get_mut(&id) else {
                        continue;
                    };
                    process.seen_in = self.epochs;
                    process.now.quiet = Some(record.state);
                    if record.has_mm != 0 {
                        process.observe_rss(&record.rss, self.page);
                    }
                }
                Record::Ended(totals, runqueue) => {
                    if let Some(process) = current.and_then(|id| processes.get_mut(&id)) {
                        counters::add(&mut process.now.totals, totals);
                        process.now.runqueue.add(runqueue, reading.epoch);
                    }
                }
                Record::Thread(record) => {
                    let id = ProcessId {
                        pid: record.pid,
                        start_boottime: record.start_boottime,
                    };
                    let Some(process) = processes.get_mut(&id) else {
                        continue;
                    };
                    process.observe_thread(record);
                    if record.flags & thread_flags::ACCUMULATED != 0 {
                        continue;
                    }
                    counters::add(&mut process.now.totals, &record.totals);
                    thread = Some((id, record));
                    if self.with_threads {
                        let now = reading.monotonic_ns;
                        let row = process.thread_row(record, now, &self.clock, self.started);
                        self.rows.extend(row);
                    }
                }
                Record::Runqueue(histogram) => {
                    let Some((id, record)) = thread.take() else {
                        continue;
                    };
                    let Some(process) = processes.get_mut(&id) else {
                        continue;
                    };
                    process.now.runqueue.add(histogram, reading.epoch);
                    if self.with_threads {
                        let latency = process.thread_latency(record, histogram, reading.epoch);
                        let row = self.rows.last_mut();
                        if let Some(row) = row.filter(|row| row.tid == Some(record.tid)) {
                            row.runqueue = latency;
                        }
                    }
                }
            }
        }
    }

    fn take_procfs(&mut self, tick: &Tick, first: bool) -> Result<()> {
        let Reader::Procfs(walker) = &mut self.reader else {
            return Ok(());
        };
        for observed in walker.read(&self.host)? {
            let id = ProcessId {
                pid: observed.process.pid,
                start_boottime: observed.process.start_boottime,
            };
            let process = entry(&mut self.processes, id, tick.monotonic_ns);
            // Start times in /proc are in units of 10 ms.
            process.born_here |= !first && process.read_at.is_none() && {
                self.clock.monotonic_of_boottime(id.start_boottime) + 20_000_000 > self.started
            };
            process.seen_in = self.epochs;
            process.io_read &= observed.io_read;
            process.observe(&observed.process, self.page);
            for thread in &observed.threads {
                process.observe_thread(thread);
                if self.with_threads {
                    let row =
                        process.thread_row(thread, tick.monotonic_ns, &self.clock, self.started);
                    self.rows.extend(row);
                }
            }
            process.now.totals = observed.totals;
        }
        Ok(())
    }

    /// A process that is no longer in the readings has ended though its end was not reported (event lost, or
    /// read from /proc), or it has left the cgroup.
    fn close_vanished(&mut self, now: u64) {
        // The end that is on its way, or a birth after the reading had begun, comes with the next one.
        let timeout = if matches!(self.reader, Reader::Bpf(_)) {
            2
        } else {
            1
        };
        let (host, epochs) = (&self.host, self.epochs);
        self.processes.retain(|id, process| {
            if process.seen_in == 0 {
                process.seen_in = epochs;
            }
            if process.end.is_some() || process.seen_in + timeout > epochs {
                return true;
            }
            process.now.totals = process.published.unwrap_or_default();
            process.end = Some(End {
                at: now,
                status: None,
            });
            process.changed = true;
            timeout == 1 || !names::is_alive(&host.procfs, *id)
        });
    }

    /// Room for long command lines, less what those have that are there already.
    fn room(&self) -> Budget {
        let mut room = Budget::of(HELD);
        let mut seen = HashSet::new();
        for process in self.processes.values() {
            // Children have their parent's, which is there once.
            if let Some(cmdline) = &process.description.cmdline
                && cmdline.is_long()
                && seen.insert(Arc::as_ptr(&cmdline.text))
            {
                room.charge(process.uid, cmdline.text.len());
            }
        }
        room
    }

    /// Looks up names of processes that were there before, and what the programs could not tell of others.
    fn describe(&mut self, first: bool, last: bool) {
        let begin = Instant::now();
        self.take_names(Duration::ZERO);
        loop {
            let has_asked = self.ask_for_names();
            self.take_names(match (first, last) {
                (_, true) => LAST_WAIT.saturating_sub(begin.elapsed()),
                (true, _) => FIRST_WAIT,
                _ if has_asked => WAIT,
                _ => Duration::ZERO,
            });
            let is_over = !has_asked && self.name_reader.is_idle();
            if !last || is_over || begin.elapsed() > LAST_WAIT {
                break;
            }
        }
    }

    /// Asks for the names of some of the processes that have none, if there are any.
    fn ask_for_names(&mut self) -> bool {
        if !self.name_reader.is_idle() {
            return false;
        }
        let mut batch = Vec::new();
        let processes = self.processes.values_mut();
        for process in processes.filter(|process| !process.described) {
            if batch.len() == name_reader::BATCH {
                break;
            }
            if self.name_reader.admits(process.uid) {
                batch.push((process.id, process.uid));
            } else {
                process.described = true;
                process.changed = true;
            }
        }
        !batch.is_empty() && self.name_reader.ask(batch)
    }

    fn take_names(&mut self, timeout: Duration) {
        for (id, names) in self.name_reader.take(timeout) {
            let Some(process) = self.processes.get_mut(&id) else {
                continue;
            };
            let description = &mut process.description;
            description.take(names, &mut self.numbers, &mut self.held, process.uid);
            process.described = true;
            process.changed = true;
        }
    }

    /// Processes whose names could not be read.
    pub fn nameless(&self) -> u64 {
        self.name_reader.lost()
    }

    /// Turns what was observed into increases.
    fn publish(&mut self, now: u64, last: bool) {
        let (mut footprints, pss) = self.memory.take();
        self.pss = pss;
        for process in self.processes.values_mut() {
            let observed = process.seen_in == self.epochs && !process.gauges.state.is_empty();
            if !observed && process.end.is_none() {
                continue;
            }
            let born = self.clock.monotonic_of_boottime(process.id.start_boottime);
            if born > now && !last {
                continue;
            }
            let until = process.end.map_or(now, |end| end.at);
            let since = process.read_at.replace(until).unwrap_or(born);
            let interval_ns = until.saturating_sub(since);
            process.interval_ns = process.held_ns + interval_ns;
            let baseline = process.published.is_none() && !process.born_here;
            if let Some(state) = process.now.quiet
                && process.end.is_none()
            {
                process.now.totals = process.published.unwrap_or_default();
                let totals = &mut process.now.totals;
                match state {
                    wire::state::QUEUED => totals.run_delay += interval_ns,
                    wire::state::BLOCKED => totals.blocked += interval_ns,
                    _ => totals.sleep += interval_ns,
                }
            }
            let published = process.published.get_or_insert_with(|| {
                if process.born_here {
                    Totals::default()
                } else {
                    process.now.totals
                }
            });
            let increase = counters::advance(published, &process.now.totals);
            process.totals = *published;
            let mut cpu_time = process.cpu_time;
            let cpu_increase = cpu_time.advance(&process.totals);
            process.cpu_time = cpu_time;
            let runqueue = process.runqueue.advance(&process.now.runqueue);
            if baseline {
                continue;
            }
            counters::add(&mut process.in_run, &increase);
            process.cpu_time_in_run.user += cpu_increase.user;
            process.cpu_time_in_run.system += cpu_increase.system;
            let ended = process.end.is_some();
            self.rows.push(Row {
                id: process.id,
                tid: None,
                interval_ns,
                increase,
                io_read: process.io_read,
                cpu_time: cpu_increase,
                runqueue,
                memory: process.gauges.memory.filter(|_| !ended),
                footprint: footprints.remove(&process.id).filter(|_| !ended),
                threads: process.gauges.threads.filter(|_| !ended),
                fds: process.gauges.fds.filter(|_| !ended),
                cpu: process.gauges.cpu,
                state: if ended { "X" } else { process.gauges.state },
            });
        }
        self.rows.sort_by_cached_key(|row| (row.id, row.tid));
    }

    /// Reads what the processes did with other things; after their ends, so that what has ended is complete.
    fn read_flows(&mut self, now: u64, first: bool, last: bool) -> Result<()> {
        let Reader::Bpf(programs) = &self.reader else {
            return Ok(());
        };
        let reading = per_key::Reading {
            processes: &self.processes,
            ended_threads: &self.ended_threads,
            boottime: self.clock.boottime(now),
            interval_ns: now.saturating_sub(self.flows_read_at),
            epoch: programs.epoch(),
            first,
            last,
        };
        self.per_key
            .refresh(&reading)
            .context("reading the flows")?;
        self.ended_threads.clear();
        Ok(())
    }

    /// Reads proportional and unique memory once more, for the last tick.
    pub fn read_footprints(&mut self) {
        self.memory.read_last(&self.processes);
    }

    /// Processes of the target that live and are this one or its children, as of the last reading.
    pub fn own(&self) -> u64 {
        let own = std::process::id();
        let ours = |process: &&Process| process.id.pid == own || process.ppid == own;
        let live = self
            .processes
            .values()
            .filter(|process| process.end.is_none());
        live.filter(ours).count() as u64
    }

    /// Follows the members of these cgroups, instead of those before, and these processes, with all their descendants.
    ///
    /// # Errors
    ///
    /// When the programs' maps or the tasks cannot be read or written.
    pub fn follow_more(&mut self, directories: Option<&[Directory]>, pids: &[u32]) -> Result<()> {
        match &mut self.reader {
            Reader::Bpf(programs) => {
                if let Some(directories) = directories {
                    let ids: Vec<u64> = directories.iter().map(|directory| directory.id).collect();
                    programs.set_cgroups(&ids)?;
                    programs.mark()?;
                }
                for some in pids.chunks(ROOTS_MAX) {
                    let roots: Vec<_> = some.iter().map(|pid| (*pid, 0)).collect();
                    programs.adopt(&roots)?;
                }
            }
            Reader::Procfs(walker) => walker.follow_more(directories, pids),
            Reader::None => {}
        }
        Ok(())
    }

    /// Takes over the events that wait in the kernel's buffer, and follows tasks that were moved into the
    /// cgroup. To be called when [`Programs::events_fd`] is readable.
    ///
    /// # Errors
    ///
    /// When the tasks cannot be read.
    pub fn pump(&mut self) -> Result<()> {
        if let Reader::Bpf(programs) = &mut self.reader {
            let known = self.events.len();
            programs.drain(&mut self.events);
            if self.events[known..]
                .iter()
                .any(|event| matches!(event, Event::CgroupMove))
            {
                programs.mark()?;
            }
        }
        Ok(())
    }
}
