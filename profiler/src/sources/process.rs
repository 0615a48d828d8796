//! `process`: who each process was, and how it ended.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use anyhow::Result;
use arrow::datatypes::{Float64Type, TimestampNanosecondType, UInt32Type};

use super::{Source, SourceSpec, TickContext, energy::attribution::Attribution, task_support};
use crate::{
    columns,
    perf::TARGET_CYCLES,
    schema::{Batch, Label, Table, TableBuilder, Timestamp, read::Rows},
    tasks::{Budget, Process, ProcessId, TaskTable},
};

columns! {
    /// Which process, and when the row was made.
    pub struct LifetimeKey {
        ts: Timestamp = Label("ns", "Wall clock of the tick at which this state of the row was known"),
        interval_ns: u64 = Gauge("ns", "How long the process was followed"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("ns", "Start of the process; (pid, start_ts) identifies it"),
    }
}

columns! {
    /// A process from birth to end.
    pub struct ProcessRow {
        ppid: u32 = Label("", "Parent's process id"),
        uid: u32 = Label("", "Real user id"),
        comm: Label = Label("", "Command name, at most 15 bytes"),
        exe: Option<Label> = Label("", "Path of the executable; as exec(2) was given it when the process ended before the link could be read"),
        cmdline: Option<String> = Label("", "Arguments joined by spaces; of long ones the beginning, see `cmdline_truncated`"),
        cmdline_truncated: Option<bool> = Label("", "Whether `cmdline` is only the beginning: 64 KiB are stored at most, and less while many processes have long command lines, but never less than 256 bytes"),
        cgroup: Option<Label> = Label("", "Path of the cgroup: v2, or if that is the root, of the first v1 hierarchy with a group"),
        end_ts: Option<Timestamp> = Label("ns", "When its last thread ended; null while it lives"),
        exit_code: Option<i32> = Label("", "Exit code; null when killed by a signal, or not seen"),
        exit_signal: Option<i32> = Label("", "Signal that killed it"),
        job_id: Option<Label> = Label("", "Batch job; null outside one"),
        job_source: Option<Label> = Label("", "How job_id is known: cgroup (of the scheduler or systemd), scheduler (it lists the process), environment (the process claims it; on nodes where jobs have cgroups, accepted only of users with processes in that of the job)"),
        step_id: Option<Label> = Label("", "Step of a job of Slurm: a number, batch, extern or interactive"),
        task_rank: Option<u32> = Label("", "Rank of MPI, or number of the task in the step, inherited by what it starts"),
        started_by: Option<Label> = Label("", "Command name of the thread that forked it, at that moment; null for processes that were there before the run"),
        user_ns: Option<u64> = Counter("ns", "User time during the run; null until the process or the run ends"),
        system_ns: Option<u64> = Counter("ns", "System time during the run; null until the process or the run ends"),
        oncpu_ns: Option<u64> = Counter("ns", "Exact time on CPU during the run; null until the process or the run ends"),
        read_chars: Option<u64> = Counter("bytes", "Bytes returned by read system calls during the run; null until the process or the run ends"),
        write_chars: Option<u64> = Counter("bytes", "Bytes accepted by write system calls during the run; null until the process or the run ends"),
        read_bytes: Option<u64> = Counter("bytes", "Bytes fetched from storage during the run; null until the process or the run ends"),
        write_bytes: Option<u64> = Counter("bytes", "Bytes dirtied during the run that go to storage; null until the process or the run ends"),
        minor_faults: Option<u64> = Counter("1", "Page faults during the run that needed no I/O; null until the process or the run ends"),
        major_faults: Option<u64> = Counter("1", "Page faults during the run that waited for I/O; null until the process or the run ends"),
        life_user_ns: Option<u64> = Gauge("ns", "User time since the process started; null until the process or the run ends"),
        life_system_ns: Option<u64> = Gauge("ns", "System time since the process started; null until the process or the run ends"),
        life_oncpu_ns: Option<u64> = Gauge("ns", "Exact time on CPU since the process started; null until the process or the run ends"),
        life_read_chars: Option<u64> = Gauge("bytes", "Bytes returned by read system calls since the process started; null until the process or the run ends"),
        life_write_chars: Option<u64> = Gauge("bytes", "Bytes accepted by write system calls since the process started; null until the process or the run ends"),
        life_read_bytes: Option<u64> = Gauge("bytes", "Bytes fetched from storage since the process started; null until the process or the run ends"),
        life_write_bytes: Option<u64> = Gauge("bytes", "Bytes dirtied since the process started that go to storage; null until the process or the run ends"),
        life_minor_faults: Option<u64> = Gauge("1", "Page faults since the process started that needed no I/O; null until the process or the run ends"),
        life_major_faults: Option<u64> = Gauge("1", "Page faults since the process started that waited for I/O; null until the process or the run ends"),
        peak_rss: Option<u64> = Gauge("bytes", "Largest resident memory since the process started, including the image that it was forked from"),
        energy_uj: Option<f64> = Counter("µJ", "Its share of the packages' energy while it was followed, as its share of the node's CPU time: a model, not a measurement; null where an interval's energy is not known", "cpu_time_share"),
        energy_by_cycles_uj: Option<f64> = Counter("µJ", "The same, as the share of the node's cycles that it had together with all that was born of it while it was counted (perf_event, scope process): a model, not a measurement; null for who has no counters of its own", "cycle_share"),
    }
}

static TABLE: Table = Table::of_lifetimes::<LifetimeKey, ProcessRow>(
    "process",
    "One row per process of the target, however short it lived: counters cover the run, `life_` columns the whole life of the process",
);

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "process",
    help: "births, programs, ends and lifetime totals of all processes",
    tables: &[&TABLE],
    probe: task_support,
    tasks: true,
    procfs: true,
    instrumentation: None,
    default: true,
    open: |_| {
        Ok(Box::new(Processes {
            room: Budget::default(),
            energies: HashMap::new(),
            energies_by_cycles: HashMap::new(),
            used: HashMap::new(),
            cycles: HashMap::new(),
            held: Vec::new(),
            rows: TableBuilder::new(&TABLE),
        }))
    },
};

/// Bytes of long command lines that are stored per tick: a fork storm repeats those of the parent.
const STORED: usize = 1 << 20;
/// The same for the last tick, which has all processes.
const STORED_LAST: usize = 16 << 20;

struct Processes {
    /// Room for long command lines at this tick.
    room: Budget,
    /// Modelled energy of those that live, µJ; `None` since an interval had no energy.
    energies: HashMap<ProcessId, Option<f64>>,
    /// Likewise, by cycles.
    energies_by_cycles: HashMap<ProcessId, Option<f64>>,
    /// CPU time since the last tick, boundaries included, ns: its energy is known at the next one.
    used: HashMap<ProcessId, u64>,
    /// Likewise, cycles.
    cycles: HashMap<ProcessId, Option<f64>>,
    /// Rows of processes that ended at these boundaries.
    held: Vec<(ProcessId, LifetimeKey, ProcessRow)>,
    rows: TableBuilder<LifetimeKey, ProcessRow>,
}

impl Source for Processes {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.attribute(at, out);
        if at.boundary.is_none() {
            self.room = Budget::new(if at.last { STORED_LAST } else { STORED });
            for (id, key, mut row) in std::mem::take(&mut self.held) {
                row.energy_uj = self.energies.get(&id).copied().flatten();
                row.energy_by_cycles_uj = self.energies_by_cycles.get(&id).copied().flatten();
                self.rows.push(key, row);
            }
        }
        let mut ids: Vec<ProcessId> = at.tasks.changed.clone();
        if at.last {
            let known: HashSet<_> = ids.iter().copied().collect();
            let living = at.tasks.iter().map(|process| process.id);
            ids.extend(living.filter(|id| !known.contains(id)));
            ids.sort_unstable();
        }
        for id in ids {
            if let Some(process) = at.tasks.get(id) {
                self.push(at, at.tasks, process);
            }
        }
        if at.boundary.is_none() {
            let lives = |id: &ProcessId| {
                at.tasks
                    .get(*id)
                    .is_some_and(|process| process.end.is_none())
            };
            self.energies.retain(|id, _| lives(id));
            self.energies_by_cycles.retain(|id, _| lives(id));
        }
        self.rows.finish(out);
        Ok(())
    }
}

/// Adds up what a process has: nothing is known any more once one is not.
fn add(sums: &mut HashMap<ProcessId, Option<f64>>, id: ProcessId, more: Option<f64>) {
    let sum = sums.entry(id).or_insert(Some(0.0));
    *sum = sum.zip(more).map(|(sum, more)| sum + more);
}

/// Cycles of each process that has counters, by pid and start, summed over the kinds of cores.
fn cycles_of_processes(batches: &[Batch]) -> HashMap<(u32, Timestamp), Option<f64>> {
    let [group, event] = TARGET_CYCLES;
    let wanted = [("scope", "process"), ("group", group), ("event", event)];
    let events = Rows::of(batches, "perf_event");
    let pids = events.values::<UInt32Type>("pid", &wanted);
    let starts = events.values::<TimestampNanosecondType>("start_ts", &wanted);
    let counts = events.values::<Float64Type>("value", &wanted);
    let mut cycles = HashMap::new();
    for ((pid, start), count) in pids.into_iter().zip(starts).zip(counts) {
        if let (Some(pid), Some(start)) = (pid, start) {
            let sum = cycles.entry((pid, Timestamp(start))).or_insert(Some(0.0));
            *sum = sum.zip(count).map(|(sum, count): (f64, f64)| sum + count);
        }
    }
    cycles
}

impl Processes {
    fn attribute(&mut self, at: &TickContext<'_>, batches: &[Batch]) {
        let earlier = self.used.values().sum();
        for row in at.tasks.rows.iter().filter(|row| row.tid.is_none()) {
            *self.used.entry(row.id).or_default() += row.cpu_time.user + row.cpu_time.system;
        }
        let cycles = cycles_of_processes(batches);
        for process in at.tasks.iter().filter(|_| !cycles.is_empty()) {
            let start = at.tasks.clock.wall_of_boottime(process.id.start_boottime);
            if let Some(cycles) = cycles.get(&(process.id.pid, start)) {
                add(&mut self.cycles, process.id, *cycles);
            }
        }
        if at.boundary.is_some() {
            return;
        }
        let model = Attribution::by_cpu_time(batches, earlier);
        for (id, used) in self.used.drain() {
            let share = model.map(|model| model.share(used as f64));
            add(&mut self.energies, id, share);
        }
        let model = Attribution::by_cycles(batches);
        for (id, used) in self.cycles.drain() {
            let share = used.zip(model).map(|(used, model)| model.share(used));
            add(&mut self.energies_by_cycles, id, share);
        }
    }

    fn push(&mut self, at: &TickContext<'_>, tasks: &TaskTable, process: &Process) {
        let until = process.end.map_or(at.tick.monotonic_ns, |end| end.at);
        let status = process.end.and_then(|end| end.status);
        let complete = process.end.is_some() || at.last;
        let total = |value: u64| complete.then_some(value);
        let io =
            |value: u64| (complete && tasks.kernel_support.io && process.io_read).then_some(value);
        let label = |text: &Option<Arc<str>>| text.as_ref().map(Label::from);
        let names = &process.description;
        let cmdline = names.cmdline.clone();
        let cmdline = cmdline.map(|cmdline| cmdline.within(&mut self.room, process.uid));
        let (in_run, life) = (&process.in_run, &process.totals);
        let job = tasks.job_of(process);
        let energy = |of: &HashMap<ProcessId, Option<f64>>| {
            of.get(&process.id).copied().flatten().filter(|_| complete)
        };
        let (key, row) = (
            LifetimeKey {
                ts: at.tick.ts,
                interval_ns: until.saturating_sub(process.followed_since),
                pid: process.id.pid,
                start_ts: tasks.clock.wall_of_boottime(process.id.start_boottime),
            },
            ProcessRow {
                ppid: process.ppid,
                uid: process.uid,
                comm: (&names.comm).into(),
                exe: label(&names.exe),
                cmdline_truncated: cmdline.as_ref().map(|cmdline| cmdline.truncated),
                cmdline: cmdline.map(|cmdline| cmdline.text.to_string()),
                cgroup: label(&names.cgroup),
                end_ts: process.end.map(|end| tasks.clock.wall(end.at)),
                exit_code: status
                    .filter(|status| status & 0x7f == 0)
                    .map(|status| (status >> 8 & 0xff).cast_signed()),
                exit_signal: status
                    .map(|status| (status & 0x7f).cast_signed())
                    .filter(|signal| *signal != 0),
                job_id: job.as_ref().map(|(id, _)| id.into()),
                job_source: job.as_ref().map(|(_, method)| method.name().into()),
                step_id: label(&names.job.step).filter(|_| job.is_some()),
                task_rank: names.job.rank,
                started_by: label(&process.started_by),
                user_ns: total(process.cpu_time_in_run.user),
                system_ns: total(process.cpu_time_in_run.system),
                oncpu_ns: total(in_run.oncpu),
                read_chars: io(in_run.rchar),
                write_chars: io(in_run.wchar),
                read_bytes: io(in_run.read_bytes),
                write_bytes: io(in_run.write_bytes),
                minor_faults: total(in_run.min_flt),
                major_faults: total(in_run.maj_flt),
                life_user_ns: total(process.cpu_time.user),
                life_system_ns: total(process.cpu_time.system),
                life_oncpu_ns: total(life.oncpu),
                life_read_chars: io(life.rchar),
                life_write_chars: io(life.wchar),
                life_read_bytes: io(life.read_bytes),
                life_write_bytes: io(life.write_bytes),
                life_minor_faults: total(life.min_flt),
                life_major_faults: total(life.maj_flt),
                peak_rss: process.peak_rss,
                energy_uj: energy(&self.energies),
                energy_by_cycles_uj: energy(&self.energies_by_cycles),
            },
        );
        // The energy of those that live is asked for again.
        if at.boundary.is_some() && process.end.is_some() {
            self.held.push((process.id, key, row));
        } else {
            self.rows.push(key, row);
        }
    }
}
