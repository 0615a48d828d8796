//! `process`: identity, lifetime and totals of each process.

mod energy;

use std::{collections::HashSet, sync::Arc};

use anyhow::Result;

use self::energy::Energies;
use super::{Input, Source, SourceSpec, Stage, TickContext, View};
use crate::{
    columns,
    job::Method,
    schema::{Batch, Columns as _, Label, TableBuilder, Timestamp, TypedTable, Words},
    tasks::{Access, Budget, Process, ProcessId},
};

columns! {
    /// Identity of a process, and time of the row.
    pub struct LifetimeKey {
        ts: Timestamp = Label("us", "Time of the last update of this row: wall clock of a sample"),
        interval_ns: u64 = Gauge("ns", "Time for which the process was followed"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
    }
}

columns! {
    /// A process from its start to its end.
    pub struct ProcessRow {
        ppid: u32 = Label("", "Process id of the parent"),
        uid: u32 = Label("", "Real user id"),
        comm: Label = Label("", "Command name, at most 15 bytes"),
        exe: Option<Label> = Label("", "Path of the executable; the path given to exec(2) if the process ended before the link could be read"),
        cmdline: Option<String> = Label("", "Arguments joined by spaces; long ones are truncated, see `cmdline_truncated`"),
        argv: Option<Words> = Label("", "List of the arguments, as long as `cmdline`"),
        cmdline_truncated: Option<bool> = Label("", "Whether `cmdline` is truncated: to 64 KiB, and while many processes have long command lines to less, but never below 256 bytes"),
        cgroup: Option<Label> = Label("", "Path of the cgroup: that of v2 or, if that is the root, of the first v1 hierarchy in which the process has a group"),
        allowed_cpus: Option<Label> = Label("", "CPUs on which the process may run, as a list such as 0-3,8: affinity of its threads, as limited by cpusets, at its start or when it was first seen"),
        quota_cpus: Option<f64> = Gauge("1", "Smallest CPU quota of its cgroups, in CPUs; null without a limit"),
        memory_limit: Option<u64> = Gauge("bytes", "Smallest memory limit of its cgroups; null without a limit"),
        end_ts: Option<Timestamp> = Label("us", "Time at which the last thread ended; null while the process lives"),
        exit_code: Option<i32> = Label("", "Exit code; null if the process was killed by a signal or its exit was not observed"),
        exit_signal: Option<i32> = Label("", "Signal that killed the process"),
        job_id: Option<Label> = Label("", "Batch job; null outside a job"),
        job_source: Option<Label> = Label("", "Origin of job_id: cgroup (of the scheduler or systemd), scheduler (it lists the process), environment (a variable of the process; on nodes where jobs have cgroups, accepted only from users with processes in the cgroup of the job)"),
        step_id: Option<Label> = Label("", "Step of a Slurm job: a number, batch, extern or interactive"),
        task_rank: Option<u32> = Label("", "MPI rank, or number of the task in the step; inherited by child processes"),
        started_by: Option<Label> = Label("", "Command name of the thread that forked the process, at that time; null for processes that existed before the run"),
        user_ns: Option<u64> = Counter("ns", "User time during the run; null until the process or the run ends"),
        system_ns: Option<u64> = Counter("ns", "System time during the run; null until the process or the run ends"),
        oncpu_ns: Option<u64> = Counter("ns", "Exact time on CPU during the run; null until the process or the run ends"),
        read_chars: Option<u64> = Counter("bytes", "Bytes returned by read system calls during the run; null until the process or the run ends"),
        write_chars: Option<u64> = Counter("bytes", "Bytes accepted by write system calls during the run; null until the process or the run ends"),
        read_bytes: Option<u64> = Counter("bytes", "Bytes fetched from storage during the run; null until the process or the run ends"),
        write_bytes: Option<u64> = Counter("bytes", "Bytes written to storage (O_DIRECT) or dirtied in the page cache during the run; null until the process or the run ends"),
        minor_faults: Option<u64> = Counter("1", "Page faults without I/O during the run; null until the process or the run ends"),
        major_faults: Option<u64> = Counter("1", "Page faults that waited for I/O during the run; null until the process or the run ends"),
        lifetime_user_ns: Option<u64> = Gauge("ns", "User time since the process started; null until the process or the run ends"),
        lifetime_system_ns: Option<u64> = Gauge("ns", "System time since the process started; null until the process or the run ends"),
        lifetime_oncpu_ns: Option<u64> = Gauge("ns", "Exact time on CPU since the process started; null until the process or the run ends"),
        lifetime_read_chars: Option<u64> = Gauge("bytes", "Bytes returned by read system calls since the process started; null until the process or the run ends"),
        lifetime_write_chars: Option<u64> = Gauge("bytes", "Bytes accepted by write system calls since the process started; null until the process or the run ends"),
        lifetime_read_bytes: Option<u64> = Gauge("bytes", "Bytes fetched from storage since the process started; null until the process or the run ends"),
        lifetime_write_bytes: Option<u64> = Gauge("bytes", "Bytes written to storage (O_DIRECT) or dirtied in the page cache since the process started; null until the process or the run ends"),
        lifetime_minor_faults: Option<u64> = Gauge("1", "Page faults without I/O since the process started; null until the process or the run ends"),
        lifetime_major_faults: Option<u64> = Gauge("1", "Page faults that waited for I/O since the process started; null until the process or the run ends"),
        peak_rss: Option<u64> = Gauge("bytes", "Largest resident memory during the run, without the memory of its parent that it had before its first exec. Exact if the process ends in the run, on Linux 6.16 and later, and on older ones if it was larger than before the exec; otherwise as of the last sample, null without one"),
        energy_uj: Option<f64> = Counter("µJ", "Energy of the packages while the process was followed × share of the node's CPU time used by the process: a model, not a measurement; null if the energy of an interval is unknown", "cpu_time_share"),
        energy_cycle_share_uj: Option<f64> = Counter("µJ", "Energy of the packages while the process was counted × share of the node's cycles used by the process and its descendants (perf_event, scope process): a model, not a measurement; null for processes without their own counters", "cycle_share"),
    }
}

columns! {
    /// A row of the view `process_tree`.
    pub struct ProcessTreeRow {
        host: String = Label("", "Name of the node"),
        pid: u32 = Label("", "Process id"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        end_ts: Option<Timestamp> = Label("us", "End of the process; null if it outlived the run"),
        ppid: u32 = Label("", "Process id of the process that forked it"),
        parent_start_ts: Option<Timestamp> = Label("us", "Start of that process; null if it is not in the target"),
        root_pid: u32 = Label("", "Process id of the first ancestor in the target"),
        root_start_ts: Timestamp = Label("us", "Start of that ancestor"),
        depth: u32 = Label("1", "Number of ancestors in the target"),
        started_by: Option<Label> = Label("", "Command name of the parent when it forked the process; null for processes that existed before the run"),
        comm: Label = Label("", "Last command name"),
        cmdline: Option<String> = Label("", "Arguments joined by spaces"),
        path: String = Label("", "Command names of the ancestors, each at the time of the fork, and of the process"),
    }
}

static TABLE: TypedTable<LifetimeKey, ProcessRow> = TypedTable::keyed(
    "process",
    "One row per process of the target, including short-lived ones: counters cover the run, `lifetime_` columns the whole life of the process. If processes are read from /proc, counters are null for processes without a sample",
);

static PROCESS_TREE: View = View {
    name: "process_tree",
    help: "One row per process, with its ancestors in the target",
    query: include_str!("process_tree.sql"),
    columns: || ProcessTreeRow::COLUMNS.iter().collect(),
};

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "process",
    help: "starts, programs, ends and lifetime totals of all processes",
    tables: &[TABLE.untyped()],
    views: &[&PROCESS_TREE],
    input: Input::Tasks { procfs: true },
    stage: Stage::Derive,
    open: |_| {
        Ok(Box::new(Processes {
            room: Budget::default(),
            energies: Energies::default(),
            held: Vec::new(),
            rows: TableBuilder::new(&TABLE),
        }))
    },
    ..SourceSpec::DEFAULT
};

/// Bytes of long command lines stored per sample. In a fork storm, every process has that of its
/// parent.
const STORED: usize = 1 << 20;
/// The same for the last sample, which has all processes.
const STORED_LAST: usize = 16 << 20;

struct Processes {
    /// Remaining bytes for long command lines at this sample.
    room: Budget,
    energies: Energies,
    /// Rows of processes that ended at boundaries since the last sample, whose energy is unknown
    /// yet.
    held: Vec<(ProcessId, LifetimeKey, ProcessRow)>,
    rows: TableBuilder<LifetimeKey, ProcessRow>,
}

impl Source for Processes {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.energies.add(ctx, out);
        if ctx.boundary.is_none() {
            self.room = Budget::new(if ctx.last { STORED_LAST } else { STORED });
            for (id, key, mut row) in std::mem::take(&mut self.held) {
                row.energy_uj = self.energies.by_cpu_time(id);
                row.energy_cycle_share_uj = self.energies.by_cycles(id);
                self.rows.push(key, row);
            }
        }
        let mut ids: Vec<ProcessId> = ctx.tasks.changed.clone();
        if ctx.last {
            let changed: HashSet<_> = ids.iter().copied().collect();
            let all = ctx.tasks.iter().map(|process| process.id);
            ids.extend(all.filter(|id| !changed.contains(id)));
            ids.sort_unstable();
        }
        for id in ids {
            if let Some(process) = ctx.tasks.get(id) {
                self.push(ctx, process);
            }
        }
        if ctx.boundary.is_none() {
            self.energies.retain(ctx.tasks);
        }
        self.rows.finish(out);
        Ok(())
    }
}

impl Processes {
    fn push(&mut self, ctx: &TickContext<'_>, process: &Process) {
        let until = process.end.map_or(ctx.tick.monotonic_ns, |end| end.at);
        let key = LifetimeKey {
            ts: ctx.tick.ts,
            interval_ns: until.saturating_sub(process.followed_since),
            pid: process.id.pid,
            start_ts: ctx.tasks.clock.wall_of_boottime(process.id.start_boottime),
        };
        let row = self.row(ctx, process);
        // A live process has another row later, with its energy.
        if ctx.boundary.is_some() && process.end.is_some() {
            self.held.push((process.id, key, row));
        } else {
            self.rows.push(key, row);
        }
    }

    fn row(&mut self, ctx: &TickContext<'_>, process: &Process) -> ProcessRow {
        let complete = process.counted && (process.end.is_some() || ctx.last);
        let is_full = process.access == Access::Full;
        let counts_io = complete && ctx.tasks.kernel_support.io && process.io_read && is_full;
        let total = |value: u64| complete.then_some(value);
        let io = |value: u64| counts_io.then_some(value);
        let label = |text: &Option<Arc<str>>| text.as_ref().map(Label::from);
        let names = &process.description;
        let allocation = names.allocation.as_ref();
        let cmdline = names.cmdline.clone();
        let cmdline = cmdline.map(|cmdline| cmdline.within(&mut self.room, process.uid));
        let (in_run, life) = (&process.in_run, &process.totals);
        // The environment is no more public than the link to the executable.
        let is_shown = |method| is_full || method != Method::Environment;
        let job = ctx.tasks.job_of(process);
        let job = job.filter(|(_, method)| is_shown(*method));
        let by_environment = job.is_some() && is_full;
        let (exit_code, exit_signal) = exit(process);
        ProcessRow {
            ppid: process.ppid,
            uid: process.uid,
            comm: (&names.comm).into(),
            exe: label(&names.exe).filter(|_| is_full),
            cmdline_truncated: cmdline.as_ref().map(|cmdline| cmdline.truncated),
            argv: cmdline
                .as_ref()
                .map(|cmdline| Words(cmdline.args().map(str::to_owned).collect())),
            cmdline: cmdline.map(|cmdline| cmdline.joined()),
            cgroup: label(&names.cgroup),
            allowed_cpus: allocation.map(|allocation| (&allocation.cpus).into()),
            quota_cpus: allocation.and_then(|allocation| allocation.limits.cpus),
            memory_limit: allocation.and_then(|allocation| allocation.limits.memory),
            end_ts: process.end.map(|end| ctx.tasks.clock.wall(end.at)),
            exit_code,
            exit_signal,
            job_id: job.as_ref().map(|(id, _)| id.into()),
            job_source: job.as_ref().map(|(_, method)| method.name().into()),
            step_id: label(&names.job.step).filter(|_| by_environment),
            task_rank: names.job.rank.filter(|_| is_full),
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
            lifetime_user_ns: total(process.cpu_time.user),
            lifetime_system_ns: total(process.cpu_time.system),
            lifetime_oncpu_ns: total(life.oncpu),
            lifetime_read_chars: io(life.rchar),
            lifetime_write_chars: io(life.wchar),
            lifetime_read_bytes: io(life.read_bytes),
            lifetime_write_bytes: io(life.write_bytes),
            lifetime_minor_faults: total(life.min_flt),
            lifetime_major_faults: total(life.maj_flt),
            peak_rss: process.peak_rss,
            energy_uj: self.energies.by_cpu_time(process.id).filter(|_| complete),
            energy_cycle_share_uj: self.energies.by_cycles(process.id).filter(|_| complete),
        }
    }
}

/// Exit code and signal of a process, from its wait status.
fn exit(process: &Process) -> (Option<i32>, Option<i32>) {
    let Some(status) = process.end.and_then(|end| end.status) else {
        return (None, None);
    };
    let signal = (status & 0x7f).cast_signed();
    let code = (status >> 8 & 0xff).cast_signed();
    (
        (signal == 0).then_some(code),
        (signal != 0).then_some(signal),
    )
}
