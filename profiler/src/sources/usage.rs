//! `usage`: CPU time, page faults, memory and I/O accounting of each process.

use anyhow::Result;

use super::{Input, Source, SourceSpec, TickContext};
use crate::{
    columns,
    schema::{
        Batch, Columns as _, Label, ProcessKey, Sparse, TableBuilder, Timestamp, TypedTable, View,
    },
};

columns! {
    /// Resources used by a process.
    pub struct UsageRow {
        user_ns: u64 = Counter("ns", "CPU time in user mode: the exact time on CPU, divided between user and system mode in the ratio sampled by the timer interrupt"),
        system_ns: u64 = Counter("ns", "CPU time in the kernel: the exact time on CPU, divided between user and system mode in the ratio sampled by the timer interrupt"),
        minor_faults: u64 = Counter("1", "Page faults served without I/O (task_struct.min_flt)"),
        major_faults: u64 = Counter("1", "Page faults that waited for I/O (task_struct.maj_flt)"),
        rss: Option<u64> = Gauge("bytes", "Resident memory: file, anonymous and shared pages, including the parts counted per CPU"),
        pss: Option<u64> = Gauge("bytes", "Resident memory, with shared pages divided by the number of processes that map them (smaps_rollup). Read every 30 s, when the resident memory of the target has grown by 25 %, and at the end of the run with up to 256 processes; if there are more, those that only sleep are read one after the other, at 0.1 % of a CPU. Null at other samples, for all but 16,384 processes (those that have run, then the largest), for processes that started since, and for those that block reading their memory. For sums over processes use the view `footprint`"),
        uss: Option<u64> = Gauge("bytes", "Private resident memory (smaps_rollup); read together with pss. For sums over processes use the view `footprint`"),
        vms: Option<u64> = Gauge("bytes", "Size of the address space (mm_struct.total_vm)"),
        shared: Option<u64> = Gauge("bytes", "Resident pages of files and shared memory"),
        text: Option<u64> = Gauge("bytes", "Size of the program text"),
        data: Option<u64> = Gauge("bytes", "Size of data and stack (data_vm + stack_vm)"),
        swap: Option<u64> = Gauge("bytes", "Anonymous memory that is swapped out (VmSwap)"),
        threads: Option<u32> = Gauge("1", "Number of threads"),
        fds: Option<u32> = Gauge("1", "Open file descriptors"),
        sockets: Option<u32> = Gauge("1", "Open sockets, of all families; read together with pss, and null with more than 4,096 descriptors, or 32,768 in all processes of the user"),
        open_files: Option<u32> = Gauge("1", "Descriptors of regular files; read together with pss, and null with more than 4,096 descriptors, or 32,768 in all processes of the user"),
        children_user_ns: Option<u64> = Gauge("ns", "User time of ended children that the process has waited for, with their children, since it started (cutime); read together with pss"),
        children_system_ns: Option<u64> = Gauge("ns", "System time of ended children that the process has waited for, with their children, since it started (cstime); read together with pss"),
        iowait_ns: Option<u64> = Gauge("ns", "Time in which the first thread waited for block I/O, since it started (delayacct_blkio_ticks); read together with pss, and null without kernel.task_delayacct"),
        voluntary_switches: u64 = Counter("1", "Context switches because the thread waited (nvcsw)"),
        involuntary_switches: u64 = Counter("1", "Context switches because the CPU was given to another thread (nivcsw)"),
        read_chars: Option<u64> = Counter("bytes", "Bytes returned by read system calls of all kinds (rchar)"),
        write_chars: Option<u64> = Counter("bytes", "Bytes accepted by write system calls of all kinds (wchar)"),
        read_syscalls: Option<u64> = Counter("1", "Read system calls (syscr)"),
        write_syscalls: Option<u64> = Counter("1", "Write system calls (syscw)"),
        read_bytes: Option<u64> = Counter("bytes", "Bytes fetched from storage"),
        write_bytes: Option<u64> = Counter("bytes", "Bytes written to storage at once (O_DIRECT), or dirtied in the page cache and written later"),
        cancelled_write_bytes: Option<u64> = Counter("bytes", "Dirty bytes dropped before they were written (truncated files)"),
        cpu: Option<u32> = Gauge("", "CPU on which the first thread last ran"),
        state: Label = Gauge("", "State of the first thread: R running, S sleeping, D uninterruptible, T stopped, t traced, I idle, X ended since the last sample"),
    }
}

pub static TABLE: TypedTable<ProcessKey, UsageRow> = TypedTable::sparse(
    "usage",
    "One row per sample and process of the target: CPU time, page faults, memory, I/O accounting",
    &Sparse {
        asleep: None,
        occasional: &[
            UsageRow::pss.name(),
            UsageRow::uss.name(),
            UsageRow::sockets.name(),
            UsageRow::open_files.name(),
            UsageRow::children_user_ns.name(),
            UsageRow::children_system_ns.name(),
            UsageRow::iowait_ns.name(),
        ],
    },
);

columns! {
    /// A row of the view `footprint`.
    pub struct Footprint {
        host: String = Label("", "Name of the node"),
        ts: Timestamp = Label("us", "Wall clock of the sample"),
        processes: u64 = Gauge("1", "Processes"),
        known: u64 = Gauge("1", "Processes whose memory has been read"),
        pss: Option<u64> = Gauge("bytes", "Sum of `pss`, each with its last known value; null while a process has none"),
        uss: Option<u64> = Gauge("bytes", "Sum of `uss`, each with its last known value; null while a process has none"),
    }
}

static FOOTPRINT: View = View {
    name: "footprint",
    help: "One row per sample: proportional and private memory of all processes",
    query: "SELECT host, ts, count(*) AS processes, count(pss) AS known,\n  \
        CASE WHEN known = processes THEN sum(pss) END AS pss,\n  \
        CASE WHEN known = processes THEN sum(uss) END AS uss\n\
        FROM (SELECT host, ts, last_value(pss IGNORE NULLS) OVER w AS pss,\n  \
        last_value(uss IGNORE NULLS) OVER w AS uss\n  \
        FROM usage_filled WHERE tid IS NULL AND rss IS NOT NULL\n  \
        WINDOW w AS (PARTITION BY host, pid, start_ts ORDER BY ts))\n\
        GROUP BY host, ts",
    columns: || Footprint::COLUMNS.iter().collect(),
};

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "usage",
    help: "CPU time, page faults, memory and I/O accounting of each process",
    tables: &[TABLE.untyped()],
    views: &[&FOOTPRINT],
    input: Input::Tasks { procfs: true },
    open: |_| Ok(Box::new(Usage(TableBuilder::new(&TABLE)))),
    ..SourceSpec::DEFAULT
};

struct Usage(TableBuilder<ProcessKey, UsageRow>);

impl Source for Usage {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        for row in &ctx.tasks.rows {
            let increase = &row.increase;
            let memory = row.memory;
            let details = row.details.unwrap_or_default();
            let io = |value: u64| (ctx.tasks.kernel_support.io && row.io_read).then_some(value);
            self.0.push(
                ctx.key_of_task(row),
                UsageRow {
                    user_ns: row.cpu_time.user,
                    system_ns: row.cpu_time.system,
                    minor_faults: increase.min_flt,
                    major_faults: increase.maj_flt,
                    rss: memory.map(|memory| memory.rss),
                    pss: details.footprint.map(|footprint| footprint.pss),
                    uss: details.footprint.map(|footprint| footprint.uss),
                    vms: memory.map(|memory| memory.vms),
                    shared: memory.map(|memory| memory.shared),
                    text: memory.map(|memory| memory.text),
                    data: memory.map(|memory| memory.data),
                    swap: memory.map(|memory| memory.swap),
                    threads: row.threads,
                    fds: row.fds,
                    sockets: details.files.map(|files| files.sockets),
                    open_files: details.files.map(|files| files.regular),
                    children_user_ns: details.children.map(|children| children.user),
                    children_system_ns: details.children.map(|children| children.system),
                    iowait_ns: details.iowait,
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
