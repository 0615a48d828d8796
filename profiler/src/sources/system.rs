//! `system`: CPU times, load, memory, swap, page faults and pressure of the node, from procfs.

use anyhow::{Result, bail};

use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::{
        file::KernelFile,
        loadavg::LoadAvg,
        meminfo::{MemInfo, Paging, VmStat},
        pressure::{Pressure, Stalled},
        process_count::ProcessCount,
        stat::{self, ProcStat, StateTimes, at_most_ns, tick_ns},
    },
    schema::{Batch, TableBuilder, TickKey, TypedTable},
    support::{
        clock::monotonic_ns,
        delta::{Counter, Interval, SumOf32Bit},
    },
};

columns! {
    /// The node over one interval.
    pub struct SystemRow {
        user_ns: Option<u64> = Counter("ns", "Time of all CPUs in user mode, without guests (`/proc/stat`, in steps of 10 ms)"),
        nice_ns: Option<u64> = Counter("ns", "Time of all CPUs in user mode at a nice value above 0, without guests (`/proc/stat`)"),
        system_ns: Option<u64> = Counter("ns", "Time of all CPUs in the kernel, without interrupts (`/proc/stat`)"),
        idle_ns: Option<u64> = Counter("ns", "Idle time of all CPUs without outstanding I/O (`/proc/stat`)"),
        iowait_ns: Option<u64> = Counter("ns", "Idle time of all CPUs while a task of the CPU waited for I/O; an estimate that the kernel may correct downwards (`/proc/stat`)"),
        irq_ns: Option<u64> = Counter("ns", "Time of all CPUs in interrupts (`/proc/stat`)"),
        softirq_ns: Option<u64> = Counter("ns", "Time of all CPUs in soft interrupts (`/proc/stat`)"),
        steal_ns: Option<u64> = Counter("ns", "Time the hypervisor ran something else while a CPU of this node was ready to run (`/proc/stat`)"),
        guest_ns: Option<u64> = Counter("ns", "Time of all CPUs running guests; not part of `user_ns`, unlike in the kernel (`/proc/stat`)"),
        guest_nice_ns: Option<u64> = Counter("ns", "Time of all CPUs running guests at a nice value above 0; not part of `nice_ns` (`/proc/stat`)"),
        cpus: Option<u64> = Gauge("1", "Online CPUs (`/proc/stat`)"),
        load1: Option<f64> = Gauge("1", "Threads runnable or uninterruptible, averaged over 1 minute (`/proc/loadavg`)"),
        load5: Option<f64> = Gauge("1", "Threads runnable or uninterruptible, averaged over 5 minutes (`/proc/loadavg`)"),
        load15: Option<f64> = Gauge("1", "Threads runnable or uninterruptible, averaged over 15 minutes (`/proc/loadavg`)"),
        runnable: Option<u64> = Gauge("1", "Threads running or waiting for a CPU (`/proc/stat procs_running`)"),
        blocked: Option<u64> = Gauge("1", "Threads waiting for I/O (`/proc/stat procs_blocked`)"),
        processes: Option<u64> = Gauge("1", "Processes, including zombies (number of links of the procfs root)"),
        threads: Option<u64> = Gauge("1", "Threads (`/proc/loadavg`)"),
        context_switches: Option<u64> = Counter("1", "Context switches (`/proc/stat ctxt`)"),
        interrupts: Option<u64> = Counter("1", "Interrupts (`/proc/stat intr`)"),
        softirqs: Option<u64> = Counter("1", "Soft interrupts (`/proc/stat softirq`)"),
        forks: Option<u64> = Counter("1", "Processes and threads created (`/proc/stat processes`)"),
        memory_total: Option<u64> = Gauge("bytes", "Memory, without the part reserved by the kernel at boot (`/proc/meminfo MemTotal`)"),
        memory_available: Option<u64> = Gauge("bytes", "Estimate of the memory that can be allocated without swapping (`/proc/meminfo MemAvailable`)"),
        memory_used: Option<u64> = Gauge("bytes", "Memory in use: `memory_total - memory_available`, as in psutil and free"),
        memory_free: Option<u64> = Gauge("bytes", "Unused memory (`/proc/meminfo MemFree`)"),
        memory_active: Option<u64> = Gauge("bytes", "Memory used recently (`/proc/meminfo Active`)"),
        memory_inactive: Option<u64> = Gauge("bytes", "Memory not used recently, reclaimed first (`/proc/meminfo Inactive`)"),
        memory_buffers: Option<u64> = Gauge("bytes", "Cache of block devices (`/proc/meminfo Buffers`)"),
        memory_cached: Option<u64> = Gauge("bytes", "Page cache and reclaimable slabs, as in psutil (`/proc/meminfo Cached + SReclaimable`)"),
        memory_shared: Option<u64> = Gauge("bytes", "Shared memory and tmpfs (`/proc/meminfo Shmem`)"),
        memory_slab: Option<u64> = Gauge("bytes", "Data structures of the kernel (`/proc/meminfo Slab`)"),
        memory_dirty: Option<u64> = Gauge("bytes", "Dirty pages that are not being written yet (`/proc/meminfo Dirty`)"),
        memory_writeback: Option<u64> = Gauge("bytes", "Dirty pages that are being written (`/proc/meminfo Writeback`)"),
        memory_committed: Option<u64> = Gauge("bytes", "Memory committed to processes (`/proc/meminfo Committed_AS`)"),
        memory_commit_limit: Option<u64> = Gauge("bytes", "Limit of committed memory with strict overcommit (`/proc/meminfo CommitLimit`)"),
        memory_anon_huge: Option<u64> = Gauge("bytes", "Anonymous memory in transparent huge pages (`/proc/meminfo AnonHugePages`)"),
        hugepages_total: Option<u64> = Gauge("1", "Huge pages of the default size in the pool (`/proc/meminfo HugePages_Total`)"),
        hugepages_free: Option<u64> = Gauge("1", "Free huge pages of the pool (`/proc/meminfo HugePages_Free`)"),
        hugepage_size: Option<u64> = Gauge("bytes", "Default size of a huge page (`/proc/meminfo Hugepagesize`)"),
        swap_total: Option<u64> = Gauge("bytes", "Swap space (`/proc/meminfo SwapTotal`)"),
        swap_used: Option<u64> = Gauge("bytes", "Swap space in use (`/proc/meminfo SwapTotal - SwapFree`)"),
        swap_free: Option<u64> = Gauge("bytes", "Free swap space (`/proc/meminfo SwapFree`)"),
        swap_in_bytes: Option<u64> = Counter("bytes", "Bytes read from swap; sin in psutil (`/proc/vmstat pswpin`, pages)"),
        swap_out_bytes: Option<u64> = Counter("bytes", "Bytes written to swap; sout in psutil (`/proc/vmstat pswpout`, pages)"),
        minor_faults: Option<u64> = Counter("1", "Page faults served without I/O (`/proc/vmstat pgfault - pgmajfault`)"),
        major_faults: Option<u64> = Counter("1", "Page faults that needed I/O (`/proc/vmstat pgmajfault`)"),
        page_in_bytes: Option<u64> = Counter("bytes", "Bytes read from block devices (`/proc/vmstat pgpgin`)"),
        page_out_bytes: Option<u64> = Counter("bytes", "Bytes written to block devices (`/proc/vmstat pgpgout`)"),
        oom_kills: Option<u64> = Counter("1", "Processes killed for lack of memory, including cgroup limits (`/proc/vmstat oom_kill`)"),
        psi_cpu_some_avg10: Option<f64> = Gauge("%", "Share of the last 10 s in which a task waited for a CPU; null without PSI (`/proc/pressure/cpu`)"),
        psi_cpu_some_ns: Option<u64> = Counter("ns", "Time in which a task waited for a CPU; null without PSI (`/proc/pressure/cpu`)"),
        psi_cpu_full_avg10: Option<f64> = Gauge("%", "Share of the last 10 s in which all tasks waited for a CPU; 0 for a whole node, null before kernel 5.13 (`/proc/pressure/cpu`)"),
        psi_cpu_full_ns: Option<u64> = Counter("ns", "Time in which all tasks waited for a CPU; 0 for a whole node, null before kernel 5.13 (`/proc/pressure/cpu`)"),
        psi_memory_some_avg10: Option<f64> = Gauge("%", "Share of the last 10 s in which a task waited for memory; null without PSI (`/proc/pressure/memory`)"),
        psi_memory_some_ns: Option<u64> = Counter("ns", "Time in which a task waited for memory; null without PSI (`/proc/pressure/memory`)"),
        psi_memory_full_avg10: Option<f64> = Gauge("%", "Share of the last 10 s in which all tasks waited for memory; null without PSI (`/proc/pressure/memory`)"),
        psi_memory_full_ns: Option<u64> = Counter("ns", "Time in which all tasks waited for memory; null without PSI (`/proc/pressure/memory`)"),
        psi_io_some_avg10: Option<f64> = Gauge("%", "Share of the last 10 s in which a task waited for I/O; null without PSI (`/proc/pressure/io`)"),
        psi_io_some_ns: Option<u64> = Counter("ns", "Time in which a task waited for I/O; null without PSI (`/proc/pressure/io`)"),
        psi_io_full_avg10: Option<f64> = Gauge("%", "Share of the last 10 s in which all tasks waited for I/O; null without PSI (`/proc/pressure/io`)"),
        psi_io_full_ns: Option<u64> = Counter("ns", "Time in which all tasks waited for I/O; null without PSI (`/proc/pressure/io`)"),
    }
}

pub static TABLE: TypedTable<TickKey, SystemRow> = TypedTable::every_tick(
    "system",
    "One row per sample: the whole node, with times summed over all CPUs",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "system",
    help: "CPU times, load, memory, swap, page faults and pressure of the whole node",
    tables: &[TABLE.untyped()],
    probe: Some(probe),
    open: |context| Ok(Box::new(System::open(context.host))),
    ..SourceSpec::DEFAULT
};

fn probe(host: &Host) -> Support {
    Support::of_file(&stat::file(&host.procfs), stat::REMEDY).and(|| {
        if host.psi {
            return Support::Ok;
        }
        Support::Limited {
            why: "no pressure stall information: psi_* are null".to_owned(),
            remedy: "boot with psi=1 (the kernel needs CONFIG_PSI=y)".to_owned(),
        }
    })
}

struct System {
    stat: KernelFile,
    meminfo: KernelFile,
    vmstat: KernelFile,
    loadavg: KernelFile,
    cpu: Pressure,
    memory: Pressure,
    io: Pressure,
    process_count: ProcessCount,
    parsed: ProcStat,
    tick_ns: u64,
    page_size: u64,
    interval: Interval,
    times: StateTimes,
    context_switches: Counter,
    interrupts: SumOf32Bit,
    softirqs: SumOf32Bit,
    forks: Counter,
    paging: Paging,
    rows: TableBuilder<TickKey, SystemRow>,
}

impl System {
    fn open(host: &Host) -> Self {
        let file = |name| KernelFile::new(host.procfs.join(name));
        let pressure = |resource| Pressure::new(&host.procfs, resource);
        Self {
            stat: file("stat"),
            meminfo: file("meminfo"),
            vmstat: file("vmstat"),
            loadavg: file("loadavg"),
            cpu: pressure("cpu"),
            memory: pressure("memory"),
            io: pressure("io"),
            process_count: ProcessCount::new(&host.procfs),
            parsed: ProcStat::default(),
            tick_ns: tick_ns(),
            page_size: host.page_size,
            interval: Interval::default(),
            times: StateTimes::default(),
            context_switches: Counter::default(),
            interrupts: SumOf32Bit::default(),
            softirqs: SumOf32Bit::default(),
            forks: Counter::default(),
            paging: Paging::default(),
            rows: TableBuilder::new(&TABLE),
        }
    }

    /// Reads all files; those that cannot be read have no values.
    fn read(&mut self, interval_ns: Option<u64>) -> Result<Files> {
        // First, because these increase with the time itself.
        let pressure = [&mut self.cpu, &mut self.memory, &mut self.io]
            .map(|pressure| pressure.sample(interval_ns));
        let stat = self.stat.read().map(|text| self.parsed.parse(text));
        if stat.is_err() {
            self.parsed.parse(b"");
        }
        let meminfo = self.meminfo.read().map(MemInfo::parse);
        let vmstat = self.vmstat.read().map(VmStat::parse);
        let loadavg = self.loadavg.read().map(LoadAvg::parse);
        if let (Err(error), Err(_), Err(_), Err(_)) = (&stat, &meminfo, &vmstat, &loadavg) {
            let path = self.stat.path().display();
            bail!("none of stat, meminfo, vmstat and loadavg can be read: {path}: {error}");
        }
        Ok(Files {
            meminfo: meminfo.unwrap_or_default(),
            vmstat: vmstat.unwrap_or_default(),
            loadavg: loadavg.unwrap_or_default(),
            pressure,
        })
    }

    fn row(&mut self, files: &Files, interval_ns: u64) -> SystemRow {
        let Files {
            meminfo,
            vmstat,
            loadavg,
            pressure: [cpu, memory, io],
        } = files;
        let stat = &self.parsed;
        let cpus = stat.cpus.len();
        let at_most = at_most_ns(interval_ns, cpus);
        let times = self.times.increase(&stat.total, at_most, self.tick_ns);
        let paging = self.paging.increase(vmstat, self.page_size);
        SystemRow {
            user_ns: times.user,
            nice_ns: times.nice,
            system_ns: times.system,
            idle_ns: times.idle,
            iowait_ns: times.iowait,
            irq_ns: times.irq,
            softirq_ns: times.softirq,
            steal_ns: times.steal,
            guest_ns: times.guest,
            guest_nice_ns: times.guest_nice,
            cpus: (cpus > 0).then_some(cpus as u64),
            load1: loadavg.load1,
            load5: loadavg.load5,
            load15: loadavg.load15,
            runnable: stat.runnable,
            blocked: stat.blocked,
            processes: self.process_count.read(),
            threads: loadavg.threads,
            context_switches: self.context_switches.increase(stat.context_switches),
            interrupts: self.interrupts.increase(stat.interrupts),
            softirqs: self.softirqs.increase(stat.softirqs),
            forks: self.forks.increase(stat.forks),
            memory_total: meminfo.total,
            memory_available: meminfo.available(),
            memory_used: meminfo.used(),
            memory_free: meminfo.free,
            memory_active: meminfo.active,
            memory_inactive: meminfo.inactive,
            memory_buffers: meminfo.buffers,
            memory_cached: meminfo.cached(),
            memory_shared: meminfo.shared,
            memory_slab: meminfo.slab,
            memory_dirty: meminfo.dirty,
            memory_writeback: meminfo.writeback,
            memory_committed: meminfo.committed,
            memory_commit_limit: meminfo.commit_limit,
            memory_anon_huge: meminfo.anon_huge,
            hugepages_total: meminfo.hugepages_total,
            hugepages_free: meminfo.hugepages_free,
            hugepage_size: meminfo.hugepage_size,
            swap_total: meminfo.swap_total,
            swap_used: meminfo.swap_used(),
            swap_free: meminfo.swap_free,
            swap_in_bytes: paging.swapped_in,
            swap_out_bytes: paging.swapped_out,
            minor_faults: paging.minor_faults,
            major_faults: paging.major_faults,
            page_in_bytes: paging.paged_in,
            page_out_bytes: paging.paged_out,
            oom_kills: paging.oom_kills,
            psi_cpu_some_avg10: cpu.some_avg10,
            psi_cpu_some_ns: cpu.some_ns,
            psi_cpu_full_avg10: cpu.full_avg10,
            psi_cpu_full_ns: cpu.full_ns,
            psi_memory_some_avg10: memory.some_avg10,
            psi_memory_some_ns: memory.some_ns,
            psi_memory_full_avg10: memory.full_avg10,
            psi_memory_full_ns: memory.full_ns,
            psi_io_some_avg10: io.some_avg10,
            psi_io_some_ns: io.some_ns,
            psi_io_full_avg10: io.full_avg10,
            psi_io_full_ns: io.full_ns,
        }
    }
}

/// Content of the files at one reading; that of `stat` is kept in [`System`].
struct Files {
    meminfo: MemInfo,
    vmstat: VmStat,
    loadavg: LoadAvg,
    /// Of CPUs, memory and I/O.
    pressure: [Stalled; 3],
}

impl Source for System {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let interval_ns = self.interval.end(monotonic_ns());
        let files = self
            .read(interval_ns)
            .inspect_err(|_| self.interval.restart())?;
        let row = self.row(&files, interval_ns.unwrap_or(0));
        if let Some(interval_ns) = interval_ns {
            self.rows.push(ctx.key(interval_ns), row);
            self.rows.finish(out);
        }
        Ok(())
    }
}
