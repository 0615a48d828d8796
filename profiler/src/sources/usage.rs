//! `usage`: CPU time, faults, memory, I/O accounting of each process.

use anyhow::Result;

use super::{Source, SourceSpec, TickContext, process_key, task_support};
use crate::{
    columns,
    schema::{Batch, Label, ProcessKey, Table, TableBuilder},
};

columns! {
    /// What a process used.
    pub struct UsageRow {
        user_ns: u64 = Counter("ns", "CPU time in user mode: exact time on CPU, divided as the timer interrupt sampled it"),
        system_ns: u64 = Counter("ns", "CPU time in the kernel, likewise"),
        minor_faults: u64 = Counter("1", "Page faults served without I/O (task_struct.min_flt)"),
        major_faults: u64 = Counter("1", "Page faults that waited for I/O (task_struct.maj_flt)"),
        rss: Option<u64> = Gauge("bytes", "Resident memory: file, anonymous and shared pages, per-CPU counters summed"),
        pss: Option<u64> = Gauge("bytes", "Resident memory with shared pages divided by their users; read (smaps_rollup) every 30 s, of the 512 largest processes that have run since, and of up to 256 at the end; null in between"),
        uss: Option<u64> = Gauge("bytes", "Private resident memory; read together with pss"),
        vms: Option<u64> = Gauge("bytes", "Address space (mm_struct.total_vm)"),
        shared: Option<u64> = Gauge("bytes", "Resident pages of files and shared memory"),
        text: Option<u64> = Gauge("bytes", "Text of the program"),
        data: Option<u64> = Gauge("bytes", "Data and stack (data_vm + stack_vm)"),
        swap: Option<u64> = Gauge("bytes", "Anonymous memory swapped out (VmSwap)"),
        threads: Option<u32> = Gauge("1", "Threads"),
        fds: Option<u32> = Gauge("1", "Open file descriptors"),
        voluntary_switches: u64 = Counter("1", "Context switches because the thread waited (nvcsw)"),
        involuntary_switches: u64 = Counter("1", "Context switches because the CPU was given to another (nivcsw)"),
        read_chars: Option<u64> = Counter("bytes", "Bytes returned by read system calls of all kinds (rchar)"),
        write_chars: Option<u64> = Counter("bytes", "Bytes accepted by write system calls of all kinds (wchar)"),
        read_syscalls: Option<u64> = Counter("1", "Read system calls (syscr)"),
        write_syscalls: Option<u64> = Counter("1", "Write system calls (syscw)"),
        read_bytes: Option<u64> = Counter("bytes", "Bytes fetched from storage"),
        write_bytes: Option<u64> = Counter("bytes", "Bytes dirtied that go to storage"),
        cancelled_write_bytes: Option<u64> = Counter("bytes", "Dirty bytes dropped before they were written (truncated files)"),
        cpu: Option<u32> = Gauge("", "CPU that the first thread last ran on"),
        state: Label = Label("", "State of the first thread: R running, S sleeping, D uninterruptible, T stopped, t traced, I idle, X ended since the last tick"),
    }
}

static TABLE: Table = Table::new::<ProcessKey, UsageRow>(
    "usage",
    "One row per tick and process of the target: CPU time, page faults, memory, I/O accounting",
);

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "usage",
    help: "CPU time, page faults, memory and I/O accounting of each process",
    tables: &[&TABLE],
    probe: task_support,
    tasks: true,
    procfs: true,
    instrumentation: None,
    default: true,
    open: |_| Ok(Box::new(Usage(TableBuilder::new(&TABLE)))),
};

struct Usage(TableBuilder<ProcessKey, UsageRow>);

impl Source for Usage {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        for row in &at.tasks.rows {
            let increase = &row.increase;
            let memory = row.memory;
            let io = |value: u64| (at.tasks.kernel_support.io && row.io_read).then_some(value);
            self.0.push(
                process_key(at, row),
                UsageRow {
                    user_ns: row.cpu_time.user,
                    system_ns: row.cpu_time.system,
                    minor_faults: increase.min_flt,
                    major_faults: increase.maj_flt,
                    rss: memory.map(|memory| memory.rss),
                    pss: row.footprint.map(|footprint| footprint.pss),
                    uss: row.footprint.map(|footprint| footprint.uss),
                    vms: memory.map(|memory| memory.vms),
                    shared: memory.map(|memory| memory.shared),
                    text: memory.map(|memory| memory.text),
                    data: memory.map(|memory| memory.data),
                    swap: memory.map(|memory| memory.swap),
                    threads: row.threads,
                    fds: row.fds,
                    voluntary_switches: increase.nvcsw,
                    involuntary_switches: increase.nivcsw,
                    read_chars: io(increase.rchar),
                    write_chars: io(increase.wchar),
                    read_syscalls: io(increase.syscr),
                    write_syscalls: io(increase.syscw),
                    read_bytes: io(increase.read_bytes),
                    write_bytes: io(increase.write_bytes),
                    cancelled_write_bytes: io(increase.cancelled_write_bytes),
                    cpu: row.cpu,
                    state: row.state.into(),
                },
            );
        }
        self.0.finish(out);
        Ok(())
    }
}
