//! A group of events, opened on a thread or a CPU. The first event is the leader; all are on the
//! PMU at the same time or not at all, and one read(2) returns all counts.
//!
//! `perf_event::Group` opens a leader of its own on the calling process, so groups of other
//! processes and of uncore PMUs are opened here, with the attributes of that crate.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use perf_event::Builder;
use perf_event_open_sys::{
    bindings::{
        PERF_FLAG_FD_CLOEXEC, PERF_FORMAT_GROUP, PERF_FORMAT_TOTAL_TIME_ENABLED,
        PERF_FORMAT_TOTAL_TIME_RUNNING, perf_event_attr,
    },
    ioctls, perf_event_open,
};
use perfevents::Encoding;

use crate::support::resource_limits;

/// Parameters of an event for perf_event_open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// PMU type and event code.
    pub encoding: Encoding,
    /// Whether it is counted in user space.
    pub user: bool,
    /// Whether it is counted in the kernel.
    pub kernel: bool,
}

/// Target of an open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterScope {
    /// The calling thread, without its children.
    CallingThread,
    /// A thread, and all threads and processes it creates from now on.
    Thread(u32),
    /// A CPU, or the instance of an uncore PMU that is opened by this CPU.
    Cpu(u32),
}

#[derive(Debug)]
pub struct OpenGroup {
    /// The leader is the first.
    events: Vec<OwnedFd>,
    before: Vec<u64>,
    buffer: Vec<u64>,
}

/// Increases since the previous reading.
#[derive(Debug, PartialEq, Eq)]
pub struct Increase<'a> {
    /// Time for which the group was enabled, ns.
    pub enabled: u64,
    /// Time for which it was on the PMU, ns.
    pub running: u64,
    /// Counts, in the order of the events.
    pub counts: &'a [u64],
}

/// Failure to open an event.
#[derive(Debug)]
pub struct OpenError {
    /// Index of the event.
    pub index: usize,
    /// Error of the kernel.
    pub error: io::Error,
}

/// Time limit for the first turn on the PMU: several times the kernel's multiplexing period of 4 ms
/// (`perf_event_mux_interval_ms`).
const FIRST_TURN: Duration = Duration::from_millis(50);

/// Words of a reading before the counts: their number, time enabled, time running.
const HEAD: usize = 3;

impl OpenGroup {
    /// Opens and enables the events.
    ///
    /// # Errors
    ///
    /// If the kernel refuses an event.
    pub fn open(events: &[Attributes], scope: CounterScope) -> Result<Self, OpenError> {
        let (pid, cpu, inherit) = match scope {
            CounterScope::CallingThread => (0, -1, false),
            CounterScope::Thread(tid) => (tid.cast_signed(), -1, true),
            CounterScope::Cpu(cpu) => (-1, cpu.cast_signed(), false),
        };
        let mut opened: Vec<OwnedFd> = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            let mut builder = builder(event, inherit, index == 0);
            let leader = opened.first().map_or(-1, OwnedFd::as_raw_fd);
            // SAFETY: the attributes are valid for the call, which copies them.
            let fd = unsafe {
                let attributes: *mut perf_event_attr = builder.attrs_mut();
                perf_event_open(attributes, pid, cpu, leader, PERF_FLAG_FD_CLOEXEC.into())
            };
            if fd < 0 {
                let error = io::Error::last_os_error();
                return Err(OpenError { index, error });
            }
            // SAFETY: a new descriptor, owned by nothing else.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let fd = resource_limits::unreserved(fd).map_err(|error| OpenError { index, error })?;
            opened.push(fd);
        }
        if let Some(leader) = opened.first() {
            // SAFETY: the descriptor is open; the argument is a number.
            if unsafe { ioctls::ENABLE(leader.as_raw_fd(), 0) } < 0 {
                let error = io::Error::last_os_error();
                return Err(OpenError { index: 0, error });
            }
        }
        let words = HEAD + opened.len();
        Ok(Self {
            events: opened,
            before: vec![0; words],
            buffer: vec![0; words],
        })
    }

    /// Waits until the events have been on the PMU. Returns `false` after several multiplexing
    /// periods.
    pub fn wait_for_turn(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < FIRST_TURN {
            match self.read() {
                Ok(increase) if increase.running == 0 => {}
                read => return read.is_ok(),
            }
        }
        false
    }

    /// Reads all counts at once.
    ///
    /// # Errors
    ///
    /// If the kernel has stopped counting: the PMU was removed, or an event does not fit any more.
    pub fn read(&mut self) -> io::Result<Increase<'_>> {
        let Some(leader) = self.events.first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        std::mem::swap(&mut self.before, &mut self.buffer);
        let bytes = words_as_bytes(&mut self.buffer);
        let length = bytes.len();
        let read = rustix::io::read(leader.as_fd(), bytes);
        if !matches!(read, Ok(read) if read == length) {
            // The next increase starts at the last successful reading.
            std::mem::swap(&mut self.before, &mut self.buffer);
            read?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (now, before) in self.buffer.iter().zip(&mut self.before) {
            // Software clocks of a CPU can go back slightly.
            *before = now.saturating_sub(*before);
        }
        let [_, enabled, running, counts @ ..] = &self.before[..] else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        Ok(Increase {
            enabled: *enabled,
            running: *running,
            counts,
        })
    }
}

fn words_as_bytes(words: &mut [u64]) -> &mut [u8] {
    let length = size_of_val(words);
    // SAFETY: any bytes are valid for both types, and u8 needs no alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), length) }
}

fn builder(event: &Attributes, inherit: bool, is_leader: bool) -> Builder<'static> {
    let mut builder = Builder::new();
    builder
        .inherit(inherit)
        .enabled(!is_leader)
        .exclude_user(!event.user)
        .exclude_kernel(!event.kernel)
        // Uncore PMUs refuse any exclusion.
        .exclude_hv(false);
    let [config, config1, config2, config3] = event.encoding.config;
    let attributes = builder.attrs_mut();
    attributes.type_ = event.encoding.kind;
    attributes.config = config;
    attributes.__bindgen_anon_3.config1 = config1;
    attributes.__bindgen_anon_4.config2 = config2;
    attributes.config3 = config3;
    attributes.read_format = u64::from(
        PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
    );
    builder
}
