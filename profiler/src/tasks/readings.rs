//! Application of a reading, from the BPF programs or from `/proc`, to the processes.

use anyhow::{Context as _, Result};
use profiler_ebpf::record::wait;

use super::{
    Cmdline, End, ProcessId, Reader, Row, TaskTable, counters::LatencySum, lifecycle::Change,
    process::on_fork, procfs_reader::Observed, threads::ReadingTime,
};
use crate::{
    bpf::{Event, Reading as BpfReading, Record},
    procfs::stat::tick_ns,
    support::clock::Tick,
};

impl TaskTable {
    /// Applies forks and execs, then the records of a reading, then exits.
    ///
    /// # Errors
    ///
    /// If tasks that were moved between cgroups cannot be followed.
    pub(super) fn apply_bpf_reading(&mut self, reading: BpfReading, last: bool) -> Result<()> {
        let drained = match &mut self.reader {
            Reader::Bpf(programs) => programs.tasks.drain(&mut self.events),
            _ => Ok(()),
        };
        let time = self.reading_time(reading.monotonic_ns, last);
        let exits = self.apply_starts(time);
        self.apply_records(reading, time);
        self.apply_exits(exits, reading, time);
        self.apply_idle(reading, time)?;
        drained.context("following tasks that were moved")
    }

    /// The processes that the reading has left out are those that it could leave out. If their number
    /// differs, some have left the target, or a record was lost: the others are read.
    fn apply_idle(&mut self, reading: BpfReading, time: ReadingTime) -> Result<()> {
        self.reading_clock = reading.clock;
        let left_out = if reading.has_visited_all {
            self.all_visited_at = time.now;
            let left_out = self.processes.awake().filter(|one| one.is_left_out());
            left_out.count() + self.processes.asleep()
        } else {
            0
        };
        if left_out as u64 == reading.idle {
            self.processes.leave_out(self.epochs);
            return Ok(());
        }
        self.processes.wake_all();
        if let Reader::Bpf(programs) = &mut self.reader {
            let tasks = &mut programs.tasks;
            tasks
                .sample_idle()
                .context("reading the tasks that were left out")?;
        }
        self.apply_records(reading, time);
        for process in self.processes.awake_mut() {
            if process.is_left_out() {
                process.idle_since = None;
            }
        }
        Ok(())
    }

    fn reading_time(&self, now: u64, last: bool) -> ReadingTime {
        ReadingTime {
            now,
            run_start: self.run_start,
            last,
            clock: self.clock,
        }
    }

    /// Applies forks, execs and environments, and returns the exits. Exits after the begin of the
    /// reading belong to the next one.
    fn apply_starts(&mut self, time: ReadingTime) -> Vec<Event> {
        let needs_budget =
            |event: &Event| matches!(event, Event::Exec(_, args) if Cmdline::can_be_long(args));
        if self.events.iter().any(needs_budget) {
            self.cmdlines = self.cmdline_budget();
        }
        let mut exits = Vec::new();
        let mut later = Vec::new();
        let processes = &mut self.processes;
        for event in self.events.drain(..) {
            match event {
                Event::Exit(ref exit) if exit.end > time.now && !time.last => later.push(event),
                Event::ThreadEnd(ref end) if time.is_next(end.thread_start_boottime) => {
                    later.push(event);
                }
                Event::Fork(fork) => on_fork(processes, &self.clock, &fork),
                Event::Exec(exec, args) => {
                    let process = processes.entry((&*exec).into(), time.now);
                    process.uid = exec.uid;
                    process.is_private = exec.permissions.hide_process(true);
                    process.on_exec(exec.max_rss, self.page);
                    let needs_names = process.description.on_exec(
                        &self.host,
                        &self.job_numbers,
                        &mut self.cmdlines,
                        &exec,
                        &args,
                    );
                    process.described = !needs_names;
                    process.changed = true;
                    self.identity_worker.discard(process.id);
                }
                Event::Environment(environment) => {
                    // The exec came before; without its event, the process can be unknown.
                    if let Some(process) = processes.get_mut((&*environment).into()) {
                        let description = &mut process.description;
                        let needs_names = description.on_environment(&self.host, &environment);
                        process.described &= !needs_names;
                        process.changed = true;
                    }
                }
                Event::Exit(_) | Event::ThreadEnd(_) => exits.push(event),
                Event::CgroupMove | Event::OutOfScopeFork(_) => {}
            }
        }
        self.events = later;
        exits
    }

    fn apply_records(&mut self, reading: BpfReading, time: ReadingTime) {
        let Reader::Bpf(programs) = &self.reader else {
            return;
        };
        let processes = &mut self.processes;
        let mut current: Option<ProcessId> = None;
        let mut thread = None;
        for record in programs.tasks.records() {
            match record {
                Record::Process(record) => {
                    let id = record.into();
                    current = Some(id);
                    let process = processes.entry(id, reading.monotonic_ns);
                    process.seen_in = self.epochs;
                    process.apply_record(record, self.page);
                }
                Record::Unchanged(record) => {
                    let Some(process) = processes.get_mut(record.into()) else {
                        continue;
                    };
                    process.seen_in = self.epochs;
                    process.apply_unchanged(record, reading.clock, self.page);
                }
                Record::Ended(usage) => {
                    if let Some(process) = current.and_then(|id| processes.get_mut(id)) {
                        process.current.totals.add(&usage.totals);
                        process.current.runqueue.add(&usage.runqueue, reading.epoch);
                    }
                }
                Record::Thread(record) => {
                    let id = ProcessId::from(record);
                    let Some(process) = processes.get_mut(id) else {
                        continue;
                    };
                    process.apply_thread(record);
                    if record.accumulated != 0 {
                        continue;
                    }
                    process.current.totals.add(&record.totals);
                    thread = Some((id, record));
                    if self.with_threads {
                        let group = process.thread_group();
                        self.rows.extend(process.threads.row(group, record, time));
                    }
                }
                Record::Runqueue(histogram, present) => {
                    let Some((id, record)) = thread.take() else {
                        continue;
                    };
                    let Some(process) = processes.get_mut(id) else {
                        continue;
                    };
                    let add_to = |waits: &mut LatencySum| {
                        waits.add(histogram, reading.epoch);
                        if present.kind != wait::NONE {
                            waits.add_one(present.ns, present.kind == wait::NEW);
                        }
                    };
                    add_to(&mut process.current.runqueue);
                    if self.with_threads {
                        let mut waits = LatencySum::default();
                        add_to(&mut waits);
                        let latency = process.threads.latency(record, &waits);
                        let row = self.rows.last_mut();
                        if let Some(row) = row.filter(|row| row.tid == Some(record.tid)) {
                            row.runqueue = latency;
                        }
                    }
                }
            }
        }
    }

    fn apply_exits(&mut self, exits: Vec<Event>, reading: BpfReading, time: ReadingTime) {
        for event in exits {
            match event {
                Event::Exit(exit) => {
                    let process = self.processes.entry((&*exit).into(), time.now);
                    process.on_exit(&exit, self.page, reading.epoch);
                }
                Event::ThreadEnd(end) => {
                    let id = ProcessId::from(&*end);
                    let process = self.processes.entry(id, time.now);
                    let group = process.thread_group();
                    let row = process.threads.last_row(group, &end, reading.epoch, time);
                    self.ended_threads.insert((id, end.tid));
                    if let Some(row) = row {
                        self.add_last_row(row);
                    }
                }
                _ => {}
            }
        }
    }

    /// Adds the last row of a thread. If it ended during the reading, after it was read, it has a row
    /// already.
    fn add_last_row(&mut self, last: Row) {
        let is_same = |row: &Row| (row.id, row.tid) == (last.id, last.tid);
        let read = match last.interval_ns {
            0 => self.rows.iter_mut().rfind(|row| is_same(row)),
            _ => None,
        };
        match read {
            Some(row) => row.add(&last),
            None => self.rows.push(last),
        }
    }

    /// Reads the processes from `/proc` and applies them.
    pub(super) fn read_procfs(&mut self, tick: &Tick, first: bool, last: bool) -> Result<()> {
        let Reader::Procfs(reader) = &mut self.reader else {
            return Ok(());
        };
        let reading = reader.read(&self.host, first, last)?;
        let before = self.target_cpu_total.replace(reading.cpu_ns);
        self.target_cpu_ns = Some(
            reading
                .cpu_ns
                .saturating_sub(before.unwrap_or(reading.cpu_ns)),
        );
        let ends = self.apply_changes(reading.changes, tick.monotonic_ns);
        self.apply_observed(
            reading.processes,
            first,
            self.reading_time(tick.monotonic_ns, last),
        );
        for (id, at) in ends {
            let Some(process) = self.processes.get_mut(id) else {
                continue;
            };
            if process.seen_in != self.epochs {
                process.current.totals = process.published.unwrap_or_default();
            }
            process.end = Some(End {
                at,
                status: process.exit_status,
            });
            (process.changed, process.described) = (true, true);
            self.uncounted += u64::from(!process.counted);
        }
        Ok(())
    }

    /// Applies starts and execs, and returns the ends.
    fn apply_changes(&mut self, changes: Vec<Change>, now: u64) -> Vec<(ProcessId, u64)> {
        let mut ends = Vec::new();
        for change in changes {
            match change {
                Change::Start(fork) => on_fork(&mut self.processes, &self.clock, &fork),
                Change::Exec(id, comm) => {
                    let process = self.processes.entry(id, now);
                    process.description.on_recorded_exec(&comm);
                    process.on_exec(0, self.page);
                    process.described = false;
                    process.changed = true;
                    self.identity_worker.discard(id);
                }
                Change::End(id, at) => ends.push((id, at)),
            }
        }
        ends
    }

    fn apply_observed(&mut self, processes: Vec<Observed>, first: bool, time: ReadingTime) {
        for observed in processes {
            let id = ProcessId::from(&observed.process);
            let process = self.processes.entry(id, time.now);
            // Start times in /proc are rounded to clock ticks.
            process.started_in_run |= !first && process.read_at.is_none() && {
                let started = self.clock.monotonic_of_boottime(id.start_boottime);
                started + 2 * tick_ns() > self.run_start
            };
            process.seen_in = self.epochs;
            process.io_read &= observed.io_read;
            process.apply_record(&observed.process, self.page);
            for thread in &observed.threads {
                process.apply_thread(thread);
                if self.with_threads {
                    let group = process.thread_group();
                    self.rows.extend(process.threads.row(group, thread, time));
                }
            }
            process.current.totals = observed.totals;
            if observed.exit_status.is_some() {
                process.exit_status = observed.exit_status;
            }
        }
    }
}
