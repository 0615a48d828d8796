//! Reading of one process from `/proc`.

use std::{collections::HashMap, mem::MaybeUninit, path::Path};

use procfs::{
    ProcResult,
    process::{Io, Process, Schedstat, Stat, Status},
};
use profiler_ebpf::record::{FDS_UNKNOWN, ProcessRecord, ThreadRecord, Totals};

use super::gauges::state_of_letter;
use crate::{
    host::Host,
    procfs::{
        process_stat::{self, has_ended},
        stat::tick_ns,
    },
    support::clock::cpu_ns_of,
};

/// A process as read from `/proc`.
pub struct Observed {
    /// Everything but counters.
    pub process: ProcessRecord,
    /// Counters of the process, including ended threads.
    pub totals: Totals,
    /// Whether I/O accounting could be read.
    pub io_read: bool,
    /// Its main thread, or all threads with `--threads`.
    pub threads: Vec<ThreadRecord>,
    /// Of all threads, by thread id; not yet in the counters of the process.
    pub(super) waits: HashMap<i32, Waits>,
    /// Status of a zombie as in wait(2), if it may be read.
    pub exit_status: Option<u32>,
    /// CPU time of the children for which it has waited, and of their descendants, ns.
    pub(super) children_cpu: u64,
}

/// Reads processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observer {
    /// Whether all threads are read, not only the main thread.
    threads: bool,
    page: u64,
    tick_ns: u64,
}

/// Run-queue waits and context switches of the threads of a process. `/proc` has no sums that
/// include ended threads.
#[derive(Debug, Default)]
pub(super) struct ThreadWaits {
    live: HashMap<i32, Waits>,
    /// Of ended threads, as of their last reading.
    ended: Waits,
}

/// Of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// Exact CPU time, ns.
    oncpu: Option<u64>,
    run_delay: u64,
    run_count: u64,
    voluntary: u64,
    involuntary: u64,
}

/// A zombie that is a child of the profiler.
struct EndedChild {
    /// As in wait(2).
    status: u32,
    /// CPU time, with that of the children for which it has waited, ns.
    cpu_ns: u64,
}

impl Observer {
    pub(super) fn new(threads: bool) -> Self {
        Self {
            threads,
            page: rustix::param::page_size() as u64,
            tick_ns: tick_ns(),
        }
    }

    /// Reads a process; `None` if it has disappeared.
    pub(super) fn observe(&self, host: &Host, process: &Process, stat: &Stat) -> Option<Observed> {
        let mut totals = Totals {
            utime: self.ns(stat.utime),
            stime: self.ns(stat.stime),
            min_flt: stat.minflt,
            maj_flt: stat.majflt,
            ..Totals::default()
        };
        let status = process.status().ok()?;
        let record = self.record(process, stat, &status)?;
        let exact = (host.procfs == Path::new("/proc")).then(|| cpu_ns_of(record.pid));
        totals.oncpu = exact
            .flatten()
            .unwrap_or_else(|| totals.utime.saturating_add(totals.stime));
        let io_read = add_io(&mut totals, &process.io());
        let mut threads = Vec::new();
        let mut waits = HashMap::new();
        // The files of the process are those of its main thread.
        let has_one_thread = stat.num_threads == 1 && !self.threads;
        if has_one_thread {
            let waited = Waits::new(process.schedstat().ok().as_ref(), &status);
            waits.insert(process.pid, waited);
            threads.push(self.thread(&record, process.pid, stat, waited));
        }
        let tasks = (!has_one_thread).then(|| process.tasks());
        for task in tasks.into_iter().flatten().flatten().flatten() {
            let directory = host
                .procfs
                .join(format!("{}/task/{}", record.pid, task.tid));
            let Ok(status) = task.status() else { continue };
            let waited = Waits::new(task.schedstat().ok().as_ref(), &status);
            waits.insert(task.tid, waited);
            if (self.threads || task.tid == process.pid)
                && let Some(stat) = process_stat::read(&directory)
            {
                let mut thread = self.thread(&record, task.tid, &stat, waited);
                if self.threads {
                    add_io(&mut thread.totals, &task.io());
                }
                threads.push(thread);
            }
        }
        let children = stat.cutime.saturating_add(stat.cstime);
        let mut observed = Observed {
            process: record,
            totals,
            io_read,
            threads,
            waits,
            exit_status: None,
            children_cpu: self.ns(u64::try_from(children).unwrap_or(0)),
        };
        if has_ended(stat) {
            observed.apply_end(process, stat);
        }
        Some(observed)
    }

    fn record(&self, process: &Process, stat: &Stat, status: &Status) -> Option<ProcessRecord> {
        let statm = process.statm().ok()?;
        let mut record = ProcessRecord {
            pid: stat.pid.cast_unsigned(),
            ppid: stat.ppid.cast_unsigned(),
            uid: status.ruid,
            threads: u32::try_from(stat.num_threads).unwrap_or(0),
            fds: process
                .fd_count()
                .ok()
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or(FDS_UNKNOWN),
            has_mm: (statm.size != 0).into(),
            start_boottime: self.ns(stat.starttime),
            total_vm: statm.size,
            data_vm: statm.data,
            // The kernel has rounded the size to pages.
            start_code: 0,
            end_code: statm.text.saturating_mul(self.page),
            hiwater_rss: status
                .vmhwm
                .map_or(0, |kib| kib.saturating_mul(1024) / self.page),
            ..ProcessRecord::default()
        };
        let pages =
            |kib: Option<u64>| (kib.unwrap_or(0).saturating_mul(1024) / self.page).cast_signed();
        record.rss = [
            pages(status.rssfile),
            pages(status.rssanon),
            pages(status.vmswap),
            pages(status.rssshmem),
        ];
        record.comm = comm(stat.comm.as_bytes());
        Some(record)
    }

    fn ns(&self, ticks: u64) -> u64 {
        ticks.saturating_mul(self.tick_ns)
    }

    fn thread(&self, process: &ProcessRecord, tid: i32, stat: &Stat, waits: Waits) -> ThreadRecord {
        let (utime, stime) = (self.ns(stat.utime), self.ns(stat.stime));
        let mut thread = ThreadRecord {
            pid: process.pid,
            tid: tid.cast_unsigned(),
            start_boottime: process.start_boottime,
            thread_start_boottime: self.ns(stat.starttime),
            cpu: stat.processor.unwrap_or(0).cast_unsigned(),
            state: state_of_letter(stat.state),
            totals: Totals {
                utime,
                stime,
                oncpu: waits.oncpu.unwrap_or(utime.saturating_add(stime)),
                min_flt: stat.minflt,
                maj_flt: stat.majflt,
                ..Totals::default()
            },
            ..ThreadRecord::default()
        };
        waits.add_to(&mut thread.totals);
        thread
    }
}

impl Observed {
    /// Adds what is known of a zombie.
    fn apply_end(&mut self, process: &Process, stat: &Stat) {
        match EndedChild::wait(stat) {
            Some(child) => {
                self.exit_status = Some(child.status);
                self.children_cpu = child.cpu_ns.saturating_sub(self.totals.oncpu);
            }
            None => self.exit_status = exit_status(process, stat),
        }
    }
}

/// Sets the counters of I/O accounting. Returns whether it could be read.
fn add_io(totals: &mut Totals, io: &ProcResult<Io>) -> bool {
    let Ok(io) = io else { return false };
    totals.rchar = io.rchar;
    totals.wchar = io.wchar;
    totals.syscr = io.syscr;
    totals.syscw = io.syscw;
    totals.read_bytes = io.read_bytes;
    totals.write_bytes = io.write_bytes;
    totals.cancelled_write_bytes = io.cancelled_write_bytes;
    true
}

impl Waits {
    fn new(schedstat: Option<&Schedstat>, status: &Status) -> Self {
        Self {
            oncpu: schedstat.map(|stat| stat.sum_exec_runtime),
            run_delay: schedstat.map_or(0, |stat| stat.run_delay),
            run_count: schedstat.map_or(0, |stat| stat.pcount),
            voluntary: status.voluntary_ctxt_switches.unwrap_or(0),
            involuntary: status.nonvoluntary_ctxt_switches.unwrap_or(0),
        }
    }

    fn add(&mut self, more: Self) {
        self.run_delay = self.run_delay.saturating_add(more.run_delay);
        self.run_count = self.run_count.saturating_add(more.run_count);
        self.voluntary = self.voluntary.saturating_add(more.voluntary);
        self.involuntary = self.involuntary.saturating_add(more.involuntary);
    }

    fn add_to(self, totals: &mut Totals) {
        totals.run_delay += self.run_delay;
        totals.run_count += self.run_count;
        totals.nvcsw += self.voluntary;
        totals.nivcsw += self.involuntary;
    }
}

impl ThreadWaits {
    /// Replaces the readings of the live threads, and adds the sum over all threads to the counters
    /// of the process. Returns the number of new threads.
    pub(super) fn update(&mut self, totals: &mut Totals, live: HashMap<i32, Waits>) -> u64 {
        let is_new = |tid: &&i32| !self.live.contains_key(tid);
        let new = live.keys().filter(is_new).count() as u64;
        for (tid, waits) in std::mem::replace(&mut self.live, live) {
            if !self.live.contains_key(&tid) {
                self.ended.add(waits);
            }
        }
        let mut sum = self.ended;
        for waits in self.live.values() {
            sum.add(*waits);
        }
        sum.add_to(totals);
        new
    }
}

impl EndedChild {
    /// A zombie that is a child of the profiler; it remains a zombie.
    fn wait(stat: &Stat) -> Option<Self> {
        if stat.ppid.cast_unsigned() != std::process::id() {
            return None;
        }
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // glibc's waitid(3) has no resource usage.
        // SAFETY: both structures are valid for the call.
        let result = unsafe {
            let (info, usage) = (info.as_mut_ptr(), usage.as_mut_ptr());
            libc::syscall(libc::SYS_waitid, libc::P_PID, stat.pid, info, flags, usage)
        };
        // SAFETY: integers and unions of them, for which 0 is valid.
        let (info, usage) = unsafe { (info.assume_init(), usage.assume_init()) };
        // SAFETY: waitid(2) fills these fields.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status().cast_unsigned()) };
        if result != 0 || pid != stat.pid {
            return None;
        }
        let ns = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec) * 1000;
        Some(Self {
            status: match info.si_code {
                libc::CLD_EXITED => status << 8,
                libc::CLD_DUMPED => status | 0x80,
                _ => status,
            },
            cpu_ns: (ns(usage.ru_utime) + ns(usage.ru_stime)).cast_unsigned(),
        })
    }
}

/// Whether the main thread has ended, or is about to.
pub(super) fn is_ending(stat: &Stat) -> bool {
    matches!(stat.state, 'X' | 'Z') || stat.flags & libc::PF_EXITING.cast_unsigned() != 0
}

/// Status of a zombie as in wait(2). The kernel prints 0 for a process that the reader may not
/// trace.
fn exit_status(process: &Process, stat: &Stat) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    let status = process.status().ok()?;
    let is_own = [status.ruid, status.euid, status.suid] == [own; 3];
    let may_read = own == 0 || is_own;
    stat.exit_code.filter(|_| may_read).map(i32::cast_unsigned)
}

/// A command name as in the kernel, which NUL ends.
pub(super) fn comm(name: &[u8]) -> [u8; 16] {
    let mut comm = [0; 16];
    let length = name.len().min(comm.len() - 1);
    comm[..length].copy_from_slice(&name[..length]);
    comm
}
