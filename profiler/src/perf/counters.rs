//! One bundle of events, opened on a thread or a CPU as a group of the kernel: the first is the leader, all are on the PMU
//! at the same time or not at all, and one read(2) tells all counts.
//!
//! `perf_event::Group` opens a leader of its own on the calling process, so groups of other processes and of uncore PMUs
//! are opened here; the attributes are the crate's.

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

/// An event as it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Type and code.
    pub encoding: Encoding,
    /// Whether to count in user space.
    pub user: bool,
    /// Whether to count in the kernel.
    pub kernel: bool,
}

/// Of whom events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The calling thread, without its children.
    Caller,
    /// A thread, and all threads and processes that it makes from now on.
    Thread(u32),
    /// Whatever runs on a CPU, or the part of the node that the PMU counts for it.
    Cpu(u32),
}

/// Events that are counted together.
#[derive(Debug)]
pub struct Counters {
    /// The leader first.
    events: Vec<OwnedFd>,
    before: Vec<u64>,
    buffer: Vec<u64>,
}

/// What was added since the reading before.
#[derive(Debug, PartialEq, Eq)]
pub struct Increase<'a> {
    /// Time that the events wanted to count, ns.
    pub enabled: u64,
    /// Time that they were on the PMU, ns.
    pub running: u64,
    /// Counts, in the order in which the events were opened.
    pub counts: &'a [u64],
}

/// An event that cannot be opened.
#[derive(Debug)]
pub struct Refused {
    /// Which one.
    pub index: usize,
    /// Why.
    pub error: io::Error,
}

/// The kernel takes turns every 4 ms (`perf_event_mux_interval_ms`).
const TURNS: Duration = Duration::from_millis(50);

/// Words of a reading before the counts: how many there are, time enabled, time running.
const HEAD: usize = 3;

impl Counters {
    /// Opens the events and lets them count.
    ///
    /// # Errors
    ///
    /// At the first event that the kernel refuses.
    pub fn open(events: &[Attributes], of: Of) -> Result<Self, Refused> {
        let (pid, cpu, inherit) = match of {
            Of::Caller => (0, -1, false),
            Of::Thread(tid) => (tid.cast_signed(), -1, true),
            Of::Cpu(cpu) => (-1, cpu.cast_signed(), false),
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
                return Err(Refused { index, error });
            }
            // SAFETY: a new descriptor that nobody else has.
            opened.push(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        if let Some(leader) = opened.first() {
            // SAFETY: the descriptor is open; the argument is a number.
            if unsafe { ioctls::ENABLE(leader.as_raw_fd(), 0) } < 0 {
                let error = io::Error::last_os_error();
                return Err(Refused { index: 0, error });
            }
        }
        let words = HEAD + opened.len();
        Ok(Self {
            events: opened,
            before: vec![0; words],
            buffer: vec![0; words],
        })
    }

    /// Waits until the events have been on the PMU; false when that takes longer than some rounds of all who take turns.
    pub fn get_a_turn(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < TURNS {
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
    /// When the kernel has given them up: the PMU went away, or an event does not fit any more.
    pub fn read(&mut self) -> io::Result<Increase<'_>> {
        let Some(leader) = self.events.first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        std::mem::swap(&mut self.before, &mut self.buffer);
        let bytes = words_as_bytes(&mut self.buffer);
        let wanted = bytes.len();
        let read = rustix::io::read(leader.as_fd(), bytes);
        if !matches!(read, Ok(read) if read == wanted) {
            // The next reading is compared with the last one that succeeded.
            std::mem::swap(&mut self.before, &mut self.buffer);
            read?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (now, before) in self.buffer.iter().zip(&mut self.before) {
            // Software clocks of a CPU may be taken back a little.
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
    // SAFETY: any bytes are valid for both, and u8 needs no alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), length) }
}

fn builder(event: &Attributes, inherit: bool, leads: bool) -> Builder<'static> {
    let mut builder = Builder::new();
    builder
        .inherit(inherit)
        .enabled(!leads)
        .exclude_user(!event.user)
        .exclude_kernel(!event.kernel)
        // Uncore PMUs refuse to leave anything out.
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
