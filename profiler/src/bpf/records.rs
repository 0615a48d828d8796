//! Bytes from the kernel, as the structs of `profiler_ebpf::wire`.

use profiler_ebpf::wire::{
    Birth, ENVIRONMENT_HEADER, Environment, Exec, Histogram, HistogramHeader, Process,
    ProcessRecord, Thread, ThreadEnd, Totals, Unchanged, VARIABLE_MAX, VARIABLES, event, record,
};

/// One record of a reading.
#[derive(Debug)]
pub enum Record<'a> {
    /// A process, before its first thread.
    Process(&'a ProcessRecord),
    /// A process whose counters have not changed.
    Unchanged(&'a Unchanged),
    /// A live thread.
    Thread(&'a Thread),
    /// Run-queue latency of the thread before.
    Runqueue(&'a Histogram),
    /// Counters and run-queue latency of the ended threads of the process before.
    Ended(&'a Totals, &'a Histogram),
}

/// What happened since the events were last drained.
#[derive(Debug)]
pub enum Event {
    /// A process of the target was born.
    Birth(Birth),
    /// While arming: a process was born outside the target.
    OutOfScopeFork(Birth),
    /// A process runs another program; with the bytes of its command line.
    Exec(Box<Exec>, Vec<u8>),
    /// It does so with these variables of [`profiler_ebpf::wire::VARIABLES`].
    Environment(Box<Environment>),
    /// A process has ended.
    Exit(Box<Process>),
    /// A thread has ended.
    ThreadEnd(Box<ThreadEnd>),
    /// A task was moved between cgroups.
    CgroupMove,
}

/// A wire struct: `repr(C)`, no padding, every bit pattern valid.
///
/// # Safety
///
/// Only for such structs.
unsafe trait Wire: Sized {}

// SAFETY: as the trait demands; see `profiler_ebpf::wire`.
unsafe impl Wire for ProcessRecord {}
// SAFETY: as above.
unsafe impl Wire for Unchanged {}
// SAFETY: as above.
unsafe impl Wire for Thread {}
// SAFETY: as above.
unsafe impl Wire for Totals {}
// SAFETY: as above.
unsafe impl Wire for Histogram {}
// SAFETY: as above.
unsafe impl Wire for HistogramHeader {}
// SAFETY: as above.
unsafe impl Wire for Birth {}
// SAFETY: as above.
unsafe impl Wire for Exec {}
// SAFETY: as above.
unsafe impl Wire for Process {}
// SAFETY: as above.
unsafe impl Wire for ThreadEnd {}

/// Takes a struct from the front of `bytes`; `None` when they are too few or not aligned.
fn take<'a, T: Wire>(bytes: &mut &'a [u8]) -> Option<&'a T> {
    let (front, rest) = bytes.split_at_checked(size_of::<T>())?;
    let value = front.as_ptr().cast::<T>();
    if !value.is_aligned() {
        return None;
    }
    *bytes = rest;
    // SAFETY: long enough, aligned, and any bytes are a valid `T`.
    Some(unsafe { &*value })
}

fn first_word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The records of a reading, in order; `bytes` must be 8-byte aligned.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        Some(match first_word(bytes)? {
            record::PROCESS => Record::Process(take(&mut bytes)?),
            record::THREAD => Record::Thread(take(&mut bytes)?),
            record::UNCHANGED => Record::Unchanged(take(&mut bytes)?),
            record::HISTOGRAM => {
                take::<HistogramHeader>(&mut bytes)?;
                Record::Runqueue(take(&mut bytes)?)
            }
            record::ENDED => {
                take::<HistogramHeader>(&mut bytes)?;
                Record::Ended(take(&mut bytes)?, take(&mut bytes)?)
            }
            _ => return None,
        })
    })
}

/// One event of the ring buffer, whose items are 8-byte aligned.
pub fn event(mut bytes: &[u8]) -> Option<Event> {
    Some(match first_word(bytes)? {
        event::BIRTH => Event::Birth(*take(&mut bytes)?),
        event::OUT_OF_SCOPE_FORK => Event::OutOfScopeFork(*take(&mut bytes)?),
        event::EXEC => {
            let header: &Exec = take(&mut bytes)?;
            let args = bytes.get(..header.args_len as usize)?;
            Event::Exec(Box::new(*header), args.to_vec())
        }
        event::ENVIRONMENT => Event::Environment(environment(bytes)?),
        event::EXIT => Event::Exit(Box::new(*take(&mut bytes)?)),
        event::THREAD_END => Event::ThreadEnd(Box::new(*take(&mut bytes)?)),
        event::CGROUP_MOVE => Event::CgroupMove,
        _ => return None,
    })
}

/// As long as its count says; the rest is empty.
fn environment(bytes: &[u8]) -> Option<Box<Environment>> {
    let (header, places) = bytes.split_at_checked(ENVIRONMENT_HEADER)?;
    let word = |at: usize| first_word(header.get(at..)?);
    let mut environment = Box::new(Environment {
        event: event::ENVIRONMENT,
        pid: word(4)?,
        start_boottime: u64::from_ne_bytes(header[8..16].try_into().ok()?),
        count: word(16)?,
        torn: word(20)?,
        variables: [[0; VARIABLE_MAX]; VARIABLES.len()],
    });
    let count = environment.count as usize;
    let places = places.chunks_exact(VARIABLE_MAX).take(count);
    for (to, from) in environment.variables.iter_mut().zip(places) {
        to.copy_from_slice(from);
    }
    Some(environment)
}
