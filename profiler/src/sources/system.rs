//! The whole node: times, load, memory, swap, faults and pressure, from procfs.

use anyhow::{Context as _, Result};

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::{
        file::KernelFile,
        loadavg::LoadAvg,
        meminfo::{MemInfo, Paging, VmStat},
        pressure::Pressure,
        process_count::ProcessCount,
        stat::{ProcStat, StateTimes, at_most_ns, tick_ns},
    },
    schema::{Batch, Table, TableBuilder, TickKey},
    support::{
        clock::monotonic_ns,
        delta::{Counter, SumOf32Bit},
    },
};

columns! {
    /// The node over one interval.
    pub struct SystemRow {
        user_ns: Option<u64> = Counter("ns", "Time of all CPUs in user space, without guests (`/proc/stat`, in steps of 10 ms)"),
        nice_ns: Option<u64> = Counter("ns", "Time of all CPUs in user space at a nice value above 0, without guests (`/proc/stat`)"),
        system_ns: Option<u64> = Counter("ns", "Time of all CPUs in the kernel, without interrupts (`/proc/stat`)"),
        idle_ns: Option<u64> = Counter("ns", "Idle time of all CPUs with no I/O outstanding (`/proc/stat`)"),
        iowait_ns: Option<u64> = Counter("ns", "Idle time of all CPUs while a task of that CPU waited for I/O; an estimate that the kernel may take back (`/proc/stat`)"),
        irq_ns: Option<u64> = Counter("ns", "Time of all CPUs in interrupts (`/proc/stat`)"),
        softirq_ns: Option<u64> = Counter("ns", "Time of all CPUs in soft interrupts (`/proc/stat`)"),
        steal_ns: Option<u64> = Counter("ns", "Time that the hypervisor gave to others while a CPU of this node was ready to run (`/proc/stat`)"),
        guest_ns: Option<u64> = Counter("ns", "Time of all CPUs running guests; not part of `user_ns`, where the kernel counts it too (`/proc/stat`)"),
        guest_nice_ns: Option<u64> = Counter("ns", "Time of all CPUs running guests at a nice value above 0; not part of `nice_ns` (`/proc/stat`)"),
        cpus: Option<u64> = Gauge("1", "Online CPUs (`/proc/stat`)"),
        load1: Option<f64> = Gauge("1", "Threads runnable or uninterruptible, averaged over 1 minute (`/proc/loadavg`)"),
        load5: Option<f64> = Gauge("1", "The same over 5 minutes (`/proc/loadavg`)"),
        load15: Option<f64> = Gauge("1", "The same over 15 minutes (`/proc/loadavg`)"),
        runnable: Option<u64> = Gauge("1", "Threads running or waiting for a CPU (`/proc/stat procs_running`)"),
        blocked: Option<u64> = Gauge("1", "Threads waiting for I/O (`/proc/stat procs_blocked`)"),
        processes: Option<u64> = Gauge("1", "Processes, zombies included (links of the procfs root, where the kernel counts them)"),
        threads: Option<u64> = Gauge("1", "Threads (`/proc/loadavg`)"),
        context_switches: Option<u64> = Counter("1", "Context switches (`/proc/stat ctxt`)"),
        interrupts: Option<u64> = Counter("1", "Interrupts (`/proc/stat intr`)"),
        softirqs: Option<u64> = Counter("1", "Soft interrupts (`/proc/stat softirq`)"),
        forks: Option<u64> = Counter("1", "Processes and threads created (`/proc/stat processes`)"),
        memory_total: Option<u64> = Gauge("bytes", "Memory without what the kernel reserved at boot (`/proc/meminfo MemTotal`)"),
        memory_available: Option<u64> = Gauge("bytes", "What can be allocated without swapping, as the kernel estimates it (`/proc/meminfo MemAvailable`)"),
        memory_used: Option<u64> = Gauge("bytes", "`memory_total - memory_available`, as psutil and free count it"),
        memory_free: Option<u64> = Gauge("bytes", "Memory not used for anything (`/proc/meminfo MemFree`)"),
        memory_active: Option<u64> = Gauge("bytes", "Memory used lately (`/proc/meminfo Active`)"),
        memory_inactive: Option<u64> = Gauge("bytes", "Memory not used lately, first to be reclaimed (`/proc/meminfo Inactive`)"),
        memory_buffers: Option<u64> = Gauge("bytes", "Cache of block devices (`/proc/meminfo Buffers`)"),
        memory_cached: Option<u64> = Gauge("bytes", "Page cache and reclaimable slabs, as psutil counts it (`/proc/meminfo Cached + SReclaimable`)"),
        memory_shared: Option<u64> = Gauge("bytes", "Shared memory and tmpfs (`/proc/meminfo Shmem`)"),
        memory_slab: Option<u64> = Gauge("bytes", "Data structures of the kernel (`/proc/meminfo Slab`)"),
        memory_dirty: Option<u64> = Gauge("bytes", "Written, but not yet on its way to disk (`/proc/meminfo Dirty`)"),
        memory_writeback: Option<u64> = Gauge("bytes", "On its way to disk (`/proc/meminfo Writeback`)"),
        memory_committed: Option<u64> = Gauge("bytes", "Promised to processes (`/proc/meminfo Committed_AS`)"),
        memory_commit_limit: Option<u64> = Gauge("bytes", "What may be promised under strict overcommit (`/proc/meminfo CommitLimit`)"),
        memory_anon_huge: Option<u64> = Gauge("bytes", "Anonymous memory in transparent huge pages (`/proc/meminfo AnonHugePages`)"),
        hugepages_total: Option<u64> = Gauge("1", "Huge pages of the default size in the pool (`/proc/meminfo HugePages_Total`)"),
        hugepages_free: Option<u64> = Gauge("1", "Huge pages of the pool not allocated (`/proc/meminfo HugePages_Free`)"),
        hugepage_size: Option<u64> = Gauge("bytes", "Default size of a huge page (`/proc/meminfo Hugepagesize`)"),
        swap_total: Option<u64> = Gauge("bytes", "Swap space (`/proc/meminfo SwapTotal`)"),
        swap_used: Option<u64> = Gauge("bytes", "Swap space in use (`/proc/meminfo SwapTotal - SwapFree`)"),
        swap_free: Option<u64> = Gauge("bytes", "Swap space not in use (`/proc/meminfo SwapFree`)"),
        swap_sin: Option<u64> = Counter("bytes", "Read from swap; psutil's sin (`/proc/vmstat pswpin`, pages)"),
        swap_sout: Option<u64> = Counter("bytes", "Written to swap; psutil's sout (`/proc/vmstat pswpout`, pages)"),
        minor_faults: Option<u64> = Counter("1", "Page faults served without I/O (`/proc/vmstat pgfault - pgmajfault`)"),
        major_faults: Option<u64> = Counter("1", "Page faults that needed I/O (`/proc/vmstat pgmajfault`)"),
        page_in_bytes: Option<u64> = Counter("bytes", "Read from block devices, whether cached or not (`/proc/vmstat pgpgin`)"),
        page_out_bytes: Option<u64> = Counter("bytes", "Written to block devices (`/proc/vmstat pgpgout`)"),
        oom_kills: Option<u64> = Counter("1", "Processes killed for lack of memory, cgroup limits included (`/proc/vmstat oom_kill`)"),
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

static TABLE: Table = Table::new::<TickKey, SystemRow>(
    "system",
    "The whole node: one row per tick, times summed over all CPUs",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "system",
    help: "CPU times, load, memory, swap, page faults and pressure of the whole node",
    tables: &[&TABLE],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(System::open(context.host))),
};

fn probe(host: &Host) -> Support {
    if let Err(error) = std::fs::read(host.procfs.join("stat")) {
        return Support::No {
            why: format!("{}: {error}", host.procfs.join("stat").display()),
            remedy: "mount procfs: mount -t proc proc /proc".to_owned(),
        };
    }
    if host.psi {
        return Support::Works;
    }
    Support::Partly {
        why: "no pressure stall information: psi_* are null".to_owned(),
        remedy: "boot with psi=1 (the kernel needs CONFIG_PSI=y)".to_owned(),
    }
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
    previous_ns: Option<u64>,
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
            previous_ns: None,
            times: StateTimes::default(),
            context_switches: Counter::default(),
            interrupts: SumOf32Bit::default(),
            softirqs: SumOf32Bit::default(),
            forks: Counter::default(),
            paging: Paging::default(),
            rows: TableBuilder::new(&TABLE),
        }
    }

    fn read(&mut self, interval_ns: u64) -> Result<SystemRow> {
        let stat = self.stat.read().map(|text| self.parsed.parse(text));
        if stat.is_err() {
            self.parsed.parse(b"");
        }
        let meminfo = self.meminfo.read().map(MemInfo::parse);
        let vmstat = self.vmstat.read().map(VmStat::parse);
        let loadavg = self.loadavg.read().map(LoadAvg::parse);
        if let (Err(error), Err(_), Err(_), Err(_)) = (&stat, &meminfo, &vmstat, &loadavg) {
            anyhow::bail!("{}: {error}", self.stat.path().display());
        }
        let meminfo = meminfo.unwrap_or_default();
        let loadavg = loadavg.unwrap_or_default();
        let vmstat = vmstat.unwrap_or_default();
        let stat = &self.parsed;
        let cpus = stat.cpus.len();
        let times = self
            .times
            .increase(&stat.total, at_most_ns(interval_ns, cpus), self.tick_ns);
        let [
            user,
            nice,
            system,
            idle,
            iowait,
            irq,
            softirq,
            steal,
            guest,
            guest_nice,
        ] = times;
        let paging = self.paging.increase(&vmstat, self.page_size);
        let [cpu, memory, io] =
            [&mut self.cpu, &mut self.memory, &mut self.io].map(Pressure::sample);
        Ok(SystemRow {
            user_ns: user,
            nice_ns: nice,
            system_ns: system,
            idle_ns: idle,
            iowait_ns: iowait,
            irq_ns: irq,
            softirq_ns: softirq,
            steal_ns: steal,
            guest_ns: guest,
            guest_nice_ns: guest_nice,
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
            swap_sin: paging.swapped_in,
            swap_sout: paging.swapped_out,
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
        })
    }
}

impl Source for System {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let now = monotonic_ns();
        let previous = self.previous_ns.replace(now);
        let interval_ns = previous.map_or(0, |previous| now.saturating_sub(previous));
        let row = self
            .read(interval_ns)
            .context("neither stat, meminfo, vmstat nor loadavg")
            .inspect_err(|_| self.previous_ns = None)?;
        if previous.is_some() {
            let ts = at.tick.ts;
            self.rows.push(TickKey { ts, interval_ns }, row);
            self.rows.finish(out);
        }
        Ok(())
    }
}
