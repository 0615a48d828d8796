//! Forks, execs and exits of processes from perf_event_open(2), for users who may not load BPF
//! programs.
//!
//! A dummy software event makes the kernel write a record for each fork, exec, change of the
//! command name and exit, also of processes that live for less than a sampling interval. Events of
//! all tasks of a CPU need CAP_PERFMON or `kernel.perf_event_paranoid` ≤ 0. Events of one's own
//! threads, which all descendants inherit, need no privilege if it is at most 2. An inherited event
//! can write only into the ring buffer of a CPU, so there is one buffer per CPU, into which the
//! events of all threads write.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use perf_event_open_sys::{
    bindings::{
        PERF_COUNT_SW_DUMMY, PERF_COUNT_SW_TASK_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_COMM,
        PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
        PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE, perf_event_attr, perf_event_mmap_page,
    },
    ioctls, perf_event_open,
};
use rustix::{event::epoll, io::Errno, mm::ProtFlags};

use crate::support::{resource_limits, shared_memory::SharedMemory};

/// Pages of a ring buffer, a power of two: 6,500 records of 40 bytes. All buffers of a user
/// together may have `kernel.perf_event_mlock_kb` (516 KiB) for each CPU.
const PAGES: usize = 64;

/// Fewest pages with which the records are used.
const PAGES_MIN: usize = 4;

/// Events of followed threads, each with a descriptor and about 2 KiB of kernel memory.
const EVENTS_MAX: usize = 16_384;

/// A change in the life of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskRecord {
    /// A thread or a process was created.
    Fork {
        /// The new thread.
        task: Task,
        /// The thread that created it.
        parent: Task,
    },
    /// A thread has another command name.
    Comm {
        task: Task,
        name: Vec<u8>,
        /// Whether it runs another program.
        is_exec: bool,
    },
    /// A thread has ended.
    Exit { task: Task },
}

/// A thread in the profiler's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// The records of a set of threads and all their descendants, or of all tasks.
pub(super) struct PerfRecords {
    rings: Vec<Ring>,
    /// Whether the rings have the records of all tasks.
    is_system_wide: bool,
    /// Events of followed threads, which write into the rings.
    events: Vec<OwnedFd>,
    /// Exact CPU time of the followed threads and all their descendants, an event for each thread.
    clocks: Vec<OwnedFd>,
    /// Readable when a quarter of a ring is filled.
    epoll: OwnedFd,
    lost: u64,
}

impl PerfRecords {
    /// Opens the buffers; no threads are followed yet.
    ///
    /// # Errors
    ///
    /// If the kernel refuses events or buffers.
    pub(super) fn open(cpus: &[u32]) -> io::Result<Self> {
        let (rings, is_system_wide) = match open_rings(cpus, ALL_TASKS) {
            Ok(rings) => (rings, true),
            Err(_) => (open_rings(cpus, CALLING_THREAD)?, false),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for ring in &rings {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, &ring.event, data, epoll::EventFlags::IN)?;
        }
        let mut records = Self {
            rings,
            is_system_wide,
            events: Vec::new(),
            clocks: Vec::new(),
            epoll,
            lost: 0,
        };
        // Events of threads can be forbidden although the buffers are not.
        records.follow(
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .cast_unsigned(),
        )?;
        records.events.clear();
        records.clocks.clear();
        Ok(records)
    }

    /// Follows a thread and its descendants.
    ///
    /// # Errors
    ///
    /// If the kernel refuses an event, because the thread belongs to another user, or has ended; or
    /// if too many events are open.
    pub(super) fn follow(&mut self, tid: u32) -> io::Result<()> {
        if self.is_system_wide {
            return Ok(());
        }
        if self.events.len() + self.rings.len() > EVENTS_MAX {
            return Err(Errno::MFILE.into());
        }
        let mut events = Vec::with_capacity(self.rings.len());
        for ring in &self.rings {
            let event = open_event(Kind::Records, tid.cast_signed(), ring.cpu)?;
            // SAFETY: both descriptors are open, and of the same CPU and clock.
            if unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), ring.event.as_raw_fd()) } < 0 {
                return Err(io::Error::last_os_error());
            }
            events.push(event);
        }
        self.clocks
            .push(open_event(Kind::Clock, tid.cast_signed(), ANY_CPU)?);
        self.events.append(&mut events);
        Ok(())
    }

    /// CPU time of the followed threads and all their descendants since they are followed, ns,
    /// without about 0.1 ms at the end of each; `None` if no thread has to be followed.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        let read = |clock: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(clock, &mut count).map(|_| u64::from_ne_bytes(count))
        };
        let sum = || {
            self.clocks
                .iter()
                .filter_map(|clock| read(clock).ok())
                .sum()
        };
        (!self.is_system_wide).then(sum)
    }

    /// A descriptor that is readable when a quarter of a buffer is filled.
    pub(super) fn fd(&self) -> io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// Takes all records out of the buffers, in the order of their times (ns of `CLOCK_MONOTONIC`).
    pub(super) fn drain(&mut self) -> Vec<(u64, TaskRecord)> {
        let mut records = Vec::new();
        for ring in &mut self.rings {
            self.lost += ring.drain(&mut records);
        }
        records.sort_by_key(|(time, _)| *time);
        records
    }

    /// Records for which a buffer had no space.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

/// A mapped ring buffer: a page of metadata, then the data.
struct Ring {
    /// Belongs to no followed thread, so that it outlives them all.
    event: OwnedFd,
    cpu: i32,
    pages: SharedMemory,
}

/// Values of `pid` and `cpu` for perf_event_open(2).
const ALL_TASKS: i32 = -1;
const CALLING_THREAD: i32 = 0;
const ANY_CPU: i32 = -1;

/// One ring for each CPU, as large as the limit of locked memory allows.
fn open_rings(cpus: &[u32], pid: i32) -> io::Result<Vec<Ring>> {
    if cpus.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut pages = PAGES;
    loop {
        let cpus = cpus.iter().map(|cpu| cpu.cast_signed());
        match cpus.map(|cpu| Ring::open(pid, cpu, pages)).collect() {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory && pages > PAGES_MIN => {
                pages /= 2;
            }
            rings => return rings,
        }
    }
}

/// The error of a mapping that was refused because of `kernel.perf_event_mlock_kb`.
fn of_mapping(error: Errno) -> io::Error {
    match error {
        Errno::PERM | Errno::NOMEM => io::Error::new(
            io::ErrorKind::OutOfMemory,
            "the locked memory of the user is used up (remedy: raise ulimit -l, or sysctl \
             kernel.perf_event_mlock_kb)",
        ),
        _ => error.into(),
    }
}

impl Ring {
    fn open(pid: i32, cpu: i32, pages: usize) -> io::Result<Self> {
        let event = open_event(Kind::Buffer { pages }, pid, cpu)?;
        let page = rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let pages = SharedMemory::map(&event, 0, (1 + pages) * page, access);
        let pages = pages.map_err(of_mapping)?;
        Ok(Self { event, cpu, pages })
    }

    /// Adds all records to `records`; returns the number of lost ones.
    fn drain(&mut self, records: &mut Vec<(u64, TaskRecord)>) -> u64 {
        let page = rustix::param::page_size();
        let size = self.pages.length() - page;
        let metadata = self.pages.start::<perf_event_mmap_page>();
        // The words count all bytes ever written.
        let offset = |word: u64| usize::try_from(word % size as u64).unwrap_or(0);
        // SAFETY: inside the mapping; the kernel writes `data_head`, only this function `data_tail`.
        let (head, tail_word, data) = unsafe {
            let head = &*(&raw const (*metadata).data_head).cast::<AtomicU64>();
            let tail = &*(&raw const (*metadata).data_tail).cast::<AtomicU64>();
            (head, tail, metadata.cast::<u8>().add(page))
        };
        let end = head.load(Ordering::Acquire);
        let mut tail = tail_word.load(Ordering::Relaxed);
        let mut lost = 0;
        let mut record = Vec::new();
        while tail < end {
            let copy = |from: u64, length: usize, to: &mut Vec<u8>| {
                to.clear();
                to.extend((from..).take(length).map(|at| {
                    // SAFETY: within the data, which the kernel does not overwrite before
                    // `data_tail` has passed it.
                    unsafe { data.add(offset(at)).read() }
                }));
            };
            copy(tail, HEADER, &mut record);
            let length = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if length < HEADER {
                break;
            }
            copy(tail, length, &mut record);
            match Parsed::of(&record) {
                Some(Parsed::Record(time, record)) => records.push((time, record)),
                Some(Parsed::Lost(count)) => lost += count,
                None => {}
            }
            tail += length as u64;
        }
        tail_word.store(end, Ordering::Release);
        lost
    }
}

/// Use of an event.
#[derive(Clone, Copy)]
enum Kind {
    /// Records of forks, execs and exits of descendants too, which go to a buffer.
    Records,
    /// The same without descendants, with a buffer of this many pages.
    Buffer { pages: usize },
    /// CPU time, with that of descendants.
    Clock,
}

fn open_event(kind: Kind, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        size: u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0),
        type_: PERF_TYPE_SOFTWARE,
        ..perf_event_attr::default()
    };
    // Without this, users without privileges are refused. The clock runs in the kernel too.
    attributes.set_exclude_kernel(1);
    attributes.set_exclude_hv(1);
    match kind {
        Kind::Records => {
            record_tasks(&mut attributes);
            attributes.set_inherit(1);
        }
        Kind::Buffer { pages } => {
            record_tasks(&mut attributes);
            // The thread of the profiler only holds the buffer.
            attributes.set_disabled((pid == CALLING_THREAD).into());
            attributes.set_watermark(1);
            let quarter = pages * rustix::param::page_size() / 4;
            attributes.__bindgen_anon_2.wakeup_watermark = u32::try_from(quarter).unwrap_or(0);
        }
        Kind::Clock => {
            attributes.config = PERF_COUNT_SW_TASK_CLOCK.into();
            attributes.set_inherit(1);
        }
    }
    let flags = PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: the attributes are valid for the call, which copies them.
    let fd = unsafe { perf_event_open(&raw mut attributes, pid, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, owned by nothing else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    resource_limits::unreserved(fd)
}

/// Selects records of forks, execs and exits, with their times.
fn record_tasks(attributes: &mut perf_event_attr) {
    attributes.config = PERF_COUNT_SW_DUMMY.into();
    attributes.sample_type = PERF_SAMPLE_TIME.into();
    attributes.clockid = libc::CLOCK_MONOTONIC;
    attributes.set_task(1);
    attributes.set_comm(1);
    attributes.set_comm_exec(1);
    attributes.set_sample_id_all(1);
    attributes.set_use_clockid(1);
}

/// Size of `struct perf_event_header`.
const HEADER: usize = 8;

/// A record of the ring buffer.
enum Parsed {
    Record(u64, TaskRecord),
    Lost(u64),
}

impl Parsed {
    /// Parses a record with its header; `None` for other kinds.
    fn of(record: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let word = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
        let misc = u32::from(u16::from_ne_bytes([*record.get(4)?, *record.get(5)?]));
        // The sample id, here only the time, ends every record.
        let time = word(record.len().checked_sub(8)?)?;
        let task = |pid: usize, tid: usize| {
            Some(Task {
                pid: half(pid)?,
                tid: half(tid)?,
            })
        };
        let record = match half(0)? {
            // pid, ppid, tid, ptid, time
            PERF_RECORD_FORK => TaskRecord::Fork {
                task: task(8, 16)?,
                parent: task(12, 20)?,
            },
            PERF_RECORD_EXIT => TaskRecord::Exit { task: task(8, 16)? },
            // pid, tid, name
            PERF_RECORD_COMM => {
                let name = record.get(16..record.len() - 8)?;
                TaskRecord::Comm {
                    task: task(8, 12)?,
                    name: name.iter().copied().take_while(|byte| *byte != 0).collect(),
                    is_exec: misc & PERF_RECORD_MISC_COMM_EXEC != 0,
                }
            }
            // id, lost
            PERF_RECORD_LOST => return Some(Self::Lost(word(16)?)),
            _ => return None,
        };
        Some(Self::Record(time, record))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn online() -> Vec<u32> {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/online").expect("a list");
        let cpus = crate::procfs::cpu_list::cpu_list(&text).expect("CPUs");
        cpus.into_iter()
            .map(|cpu| u32::try_from(cpu).expect("small"))
            .collect()
    }

    /// Waits for the end of a child; CPU time of it and its descendants, ns.
    fn wait_for(child: &std::process::Child) -> u64 {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the usage is valid for the call.
        unsafe {
            libc::wait4(
                child.id().cast_signed(),
                std::ptr::null_mut(),
                0,
                usage.as_mut_ptr(),
            )
        };
        // SAFETY: integers, which may be 0.
        let usage = unsafe { usage.assume_init() };
        let ns = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec) * 1000;
        (ns(usage.ru_utime) + ns(usage.ru_stime)).cast_unsigned()
    }

    #[test]
    fn every_descendant_has_a_fork_an_exec_and_an_exit() {
        let own = std::process::id();
        let mut shell = Command::new("sh")
            .args(["-c", "read go; for i in $(seq 100); do /bin/true; done"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut records = PerfRecords::open(&online()).expect("permitted");
        // As for a user without privileges.
        if records.is_system_wide {
            records.rings = open_rings(&online(), CALLING_THREAD).expect("permitted");
            records.is_system_wide = false;
        }
        records.follow(shell.id()).expect("permitted");
        drop(shell.stdin.take());
        let used = wait_for(&shell);
        // It has been waited for.
        let _ = shell.wait();
        let counted = records.cpu_ns().expect("followed threads");
        let all = records.drain();
        // A process is counted until it has released its memory.
        assert!(used.abs_diff(counted) < used / 4, "{used} and {counted} ns");
        assert_eq!(records.lost(), 0);
        assert!(all.is_sorted_by_key(|(time, _)| *time));
        let count = |wanted: fn(&TaskRecord) -> bool| {
            all.iter().filter(|(_, record)| wanted(record)).count()
        };
        // The programs, seq and its subshell; the shell itself only ends.
        assert!(count(|record| matches!(record, TaskRecord::Fork { .. })) >= 101);
        let programs = |record: &TaskRecord| matches!(record, TaskRecord::Comm { is_exec: true, name, .. } if name == b"true");
        assert_eq!(
            all.iter().filter(|(_, record)| programs(record)).count(),
            100
        );
        assert!(count(|record| matches!(record, TaskRecord::Exit { .. })) >= 102);
        assert!(all.iter().all(|(_, record)| match record {
            TaskRecord::Fork { task, .. }
            | TaskRecord::Comm { task, .. }
            | TaskRecord::Exit { task } => task.pid != own,
        }));
    }

    #[test]
    fn damaged_records_are_rejected() {
        assert!(Parsed::of(&[]).is_none());
        assert!(Parsed::of(&[0; 8]).is_none());
        let mut fork = vec![0; 16];
        fork[..4].copy_from_slice(&PERF_RECORD_FORK.to_ne_bytes());
        assert!(Parsed::of(&fork).is_none());
    }
}
