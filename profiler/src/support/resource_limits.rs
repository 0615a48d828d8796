//! Resource limits (getrlimit(2)). The profiler raises its own; its command gets those that the profiler
//! has inherited.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    ptr,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use super::{heap, units::format_bytes};
use crate::failure::{Failure, Reason};

/// Limits that hinder the profiler.
const CHANGED: [Resource; 8] = [
    Resource::Nofile,
    Resource::As,
    Resource::Data,
    Resource::Fsize,
    Resource::Nproc,
    // Of the buffers of perf events.
    Resource::Memlock,
    Resource::Stack,
    Resource::Cpu,
];

/// Stack of the first thread, bytes: as usual, and the least that suffices.
const STACK: u64 = 8 << 20;
const LEAST_STACK: u64 = 1 << 20;
/// Stack of a thread that does nothing, bytes.
const SMALL_STACK: usize = 64 << 10;
/// Address space that the profiler of a small target maps after its start, bytes, with a reserve: stacks,
/// heap, type information of the kernel, buffers of Parquet files.
const MEMORY: usize = 96 << 20;
/// The remedy is a multiple of this, bytes: what is mapped varies a little.
const STEP: u64 = 8 << 20;
/// Threads and processes of a session.
const THREADS: usize = 12;
/// Descriptors that remain open to the end besides those of tables, sources and programs, and those that
/// are opened from the first sample on: pipes, sockets, timers, directories, files that are written.
const DESCRIPTORS: u64 = 40;
const LAST_DESCRIPTORS: u64 = 24;

/// The limits at the start.
static INHERITED: OnceLock<[Rlimit; CHANGED.len()]> = OnceLock::new();
/// Descriptors from this number on are not for events.
static RESERVED_FROM: AtomicU64 = AtomicU64::new(u64::MAX);

/// Notes the limits for the command, and raises that of the stack. Call it first, in the first thread.
///
/// # Errors
///
/// When the stack is too small.
pub fn begin() -> Result<(), Failure> {
    INHERITED.get_or_init(|| CHANGED.map(getrlimit));
    let limit = getrlimit(Resource::Stack);
    if limit.current.is_some_and(|current| current < STACK) {
        let current = limit.maximum.map_or(STACK, |maximum| maximum.min(STACK));
        let _ = set(Resource::Stack, Some(current), limit.maximum);
    }
    match getrlimit(Resource::Stack).current {
        Some(current) if current < LEAST_STACK => Err(too_low(&format!(
            "the stack can have {}, {} are needed (remedy: ulimit -s 8192)",
            format_bytes(current),
            format_bytes(LEAST_STACK)
        ))),
        _ => Ok(()),
    }
}

/// Raises the limits to the hard limits. Hard limits that are `for_command` do not apply to the profiler
/// if it may raise them.
pub fn raise(for_command: bool) {
    for resource in CHANGED {
        let limit = getrlimit(resource);
        match resource {
            // Has been raised as far as needed.
            Resource::Stack => {}
            // At the hard limit, the kernel kills without a warning.
            Resource::Cpu => {
                if let (Some(current), Some(maximum)) = (limit.current, limit.maximum)
                    && current == maximum
                    && maximum > 1
                {
                    let _ = set(resource, Some(maximum - 1), limit.maximum);
                }
            }
            _ => {
                let unlimited = for_command && set_most(resource).is_ok();
                if !unlimited && limit.current != limit.maximum {
                    let _ = set(resource, limit.maximum, limit.maximum);
                }
            }
        }
    }
    let is_limited = [Resource::As, Resource::Data]
        .map(|resource| getrlimit(resource).current)
        .iter()
        .any(Option::is_some);
    if is_limited {
        // Each further heap reserves 64 MiB.
        heap::share(1);
    }
}

/// Removes a limit, which needs `CAP_SYS_RESOURCE`.
fn set_most(resource: Resource) -> io::Result<()> {
    let most = match resource {
        Resource::Nofile => {
            let text = fs::read_to_string("/proc/sys/fs/nr_open")?;
            Some(text.trim().parse().map_err(io::Error::other)?)
        }
        _ => None,
    };
    set(resource, most, most)
}

fn set(resource: Resource, current: Option<u64>, maximum: Option<u64>) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current, maximum })?)
}

/// Gives this process, which becomes another program, the limits at the start. Makes only system calls.
pub fn restore() {
    for (resource, limit) in CHANGED
        .into_iter()
        .zip(INHERITED.get().into_iter().flatten())
    {
        let _ = setrlimit(resource, *limit);
    }
}

/// Descriptors that a session with these numbers of sources and BPF objects opens before its first sample.
pub fn first_descriptors(sources: usize, objects: usize) -> u64 {
    DESCRIPTORS + count(sources + objects)
}

/// Descriptors that a session opens from its first sample on. A table holds its directory and its journal.
pub fn last_descriptors(tables: usize) -> u64 {
    LAST_DESCRIPTORS + 2 * count(tables)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Keeps this many descriptors free of events, which are many and which a run can lack.
pub fn reserve(descriptors: u64) {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    RESERVED_FROM.store(limit.saturating_sub(descriptors), Ordering::Relaxed);
}

/// Takes the new descriptor of an event.
///
/// # Errors
///
/// `EMFILE` if it is one of those that are reserved. The kernel gives the lowest number that is free.
pub fn unreserved(event: OwnedFd) -> io::Result<OwnedFd> {
    let number = u64::try_from(event.as_raw_fd()).unwrap_or(u64::MAX);
    if number < RESERVED_FROM.load(Ordering::Relaxed) {
        Ok(event)
    } else {
        Err(Errno::MFILE.into())
    }
}

/// Checks that this many further descriptors can be opened.
///
/// # Errors
///
/// With the limit, and what is needed.
pub fn check_descriptors(further: u64) -> Result<(), Failure> {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return Ok(());
    };
    // The lowest number that is free.
    let open = eventfd(0, EventfdFlags::CLOEXEC)
        .ok()
        .and_then(|next| u64::try_from(next.as_raw_fd()).ok())
        .unwrap_or(limit);
    let needed = open + further;
    if needed <= limit {
        return Ok(());
    }
    Err(too_low(&format!(
        "{limit} files can be open, {needed} are needed (remedy: ulimit -n {needed}, or LimitNOFILE= of \
         the service)"
    )))
}

/// Checks that a session has address space.
///
/// # Errors
///
/// With the limit, and what is needed.
pub fn check_memory() -> Result<(), Failure> {
    let data = ProtFlags::READ | ProtFlags::WRITE;
    for (resource, access, what, option, field) in [
        (Resource::As, ProtFlags::empty(), "address space", "v", 0),
        (Resource::Data, data, "memory for data", "d", 5),
    ] {
        let Some(limit) = getrlimit(resource).current else {
            continue;
        };
        if !can_map(access) {
            let needed = (mapped(field) + MEMORY as u64 + STEP).next_multiple_of(STEP);
            return Err(too_low(&format!(
                "{} of {what} can be used, {} are needed (remedy: ulimit -{option} {})",
                format_bytes(limit),
                format_bytes(needed),
                needed.div_ceil(1024)
            )));
        }
    }
    Ok(())
}

/// Memory of this process by a field of `/proc/self/statm`, bytes.
fn mapped(field: usize) -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(field);
    let pages: u64 = pages.and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Whether [`MEMORY`] can be mapped. Nothing is touched.
fn can_map(access: ProtFlags) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, which nothing uses.
    unsafe {
        match mmap_anonymous(ptr::null_mut(), MEMORY, access, flags) {
            Ok(address) => munmap(address, MEMORY).is_ok(),
            Err(_) => false,
        }
    }
}

/// Checks that a session can have its threads.
///
/// # Errors
///
/// With the limit.
pub fn check_threads() -> Result<(), Failure> {
    let gate = Mutex::new(());
    let started = thread::scope(|scope| {
        let _closed = gate.lock();
        (0..THREADS).try_for_each(|_| {
            let wait = || drop(gate.lock());
            // glibc keeps the stacks of ended threads.
            let thread = thread::Builder::new().stack_size(SMALL_STACK);
            thread.spawn_scoped(scope, wait).map(drop)
        })
    });
    started.map_err(|error| no_task(&format!("{THREADS} threads are needed"), &error))
}

/// A thread or process cannot be created.
pub fn no_task(what: &str, error: &io::Error) -> Failure {
    let limit = match getrlimit(Resource::Nproc).current {
        Some(limit) => format!("ulimit -u, now {limit}"),
        None => "ulimit -u".to_owned(),
    };
    too_low(&format!(
        "{what}: {error} (remedy: raise {limit}, or pids.max of the cgroup)"
    ))
}

fn too_low(message: &str) -> Failure {
    Failure::new(Reason::Privilege, format!("resource limit: {message}"))
}
