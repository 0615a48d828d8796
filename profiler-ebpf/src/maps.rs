//! Maps that the profiler uses, or in which an entry can be dropped.
//!
//! Maps of [per-key counters](crate::per_key) are declared with their entries.

#[cfg(target_arch = "bpf")]
use aya_ebpf::btf_maps::{Array, HashMap, RingBuf, SkStorage};

#[cfg(not(target_arch = "bpf"))]
pub use self::definition::{Array, HashMap, RingBuf};
#[cfg(target_arch = "bpf")]
use crate::programs::{
    block::Request,
    net::{messages::TaskMessages, socket::Socket},
    task_storage::{TaskState, TaskStorage},
    uring::AsyncOperation,
};
use crate::{config, event::ProcessEntry, per_key, per_key::Owner, record};

/// A map with a name.
pub trait Named {
    /// Name in the BPF object, in the table `overhead`, and for `--map-entries`.
    const NAME: &'static str;
}

/// A map whose keys and values are known to both sides.
pub trait Map: Named {
    /// Its type, as in `aya_ebpf::btf_maps`.
    type Definition: Definition;
}

/// The type of a map.
pub trait Definition {
    /// Type of the keys.
    type Key;
    /// Type of the values.
    type Value;
}

/// Type of the keys of a map.
pub type Key<M> = <<M as Map>::Definition as Definition>::Key;
/// Type of the values of a map.
pub type Value<M> = <<M as Map>::Definition as Definition>::Value;

/// A map in which an entry can be dropped.
pub trait Bounded: Named {
    /// Index of its count in [`ProgramCounters::dropped`].
    const INDEX: usize;
}

/// `BPF_F_NO_PREALLOC`: entries take memory only while they are used.
pub const NO_PREALLOC: usize = 1;
/// Processes that can be named by pid at the same time.
pub const ROOTS_MAX: usize = 4096;
/// Cgroups that can be the target at the same time.
pub const CGROUPS_MAX: usize = 256;
/// Smallest ring buffer of events, bytes.
pub const EVENTS_MIN: usize = 2 << 20;
/// Longest record of a ring buffer, bytes.
pub const RECORD_MAX: usize = 8 << 10;
/// Bytes of the ring buffer of changed keys: 13,000 between two readings.
pub const CHANGED_SIZE: usize = 512 << 10;
/// Bytes of the ring buffer of active processes: 4096 between two readings.
pub const ACTIVE_SIZE: usize = 64 << 10;

maps! {
    /// State of the run, written by the profiler.
    Control: CONTROL = Array<config::Control, 1>;

    /// The last reading of the tasks, by the iterator `sample`.
    Reading: READING = Array<record::Reading, 1>;

    /// Counts of the programs about themselves.
    Counters: COUNTERS = Array<ProgramCounters, 1>;

    /// Processes named by pid, with their start (ns of `CLOCK_BOOTTIME`); 0 matches any start.
    Roots: ROOTS = HashMap<u32, u64, ROOTS_MAX>;

    /// Cgroups of the target, by the inode of their directory.
    Cgroups: CGROUPS = HashMap<u64, u32, CGROUPS_MAX>;

    /// Names of the disks in `BLOCK_IO`, by [`per_key::block::device`].
    Disks: DISKS = HashMap<u64, DiskName, 1024, NO_PREALLOC>;

    /// Ring buffer of the [keys](per_key::ChangedKey) whose counters have changed since the last
    /// reading. If it is full, the profiler reads all counters.
    Changed: CHANGED = RingBuf<per_key::ChangedKey, CHANGED_SIZE>;

    /// Ring buffer of the processes that have run since the last reading: their ids in the profiler's
    /// pid namespace. If it is full, the profiler visits all tasks.
    Active: ACTIVE = RingBuf<u32, ACTIVE_SIZE>;
}

bounded_maps! {
    first: 0;
    shared {
        /// Followed processes that have live threads, by thread group id. Sized by the profiler.
        Processes: PROCESSES = HashMap<u32, ProcessEntry, 16384, NO_PREALLOC>;

        /// Ring buffer of [events](crate::event). Sized by the profiler.
        Events: EVENTS = RingBuf<u8, EVENTS_MIN>;

        /// Processes that have dirtied pages of a file, until the pages are written back. Sized by
        /// the profiler, which removes clean files.
        Dirtiers: DIRTIERS = HashMap<FileKey, Dirtier, 1, NO_PREALLOC>;
    }
    programs {
        /// Followed tasks.
        Tasks: TASKS = TaskStorage<TaskState>;

        /// Followed tasks that have sent or received on IP sockets.
        Messages: MESSAGES = TaskStorage<TaskMessages>;

        /// TCP sockets, whose storage the kernel frees with them.
        Sockets: SOCKETS = SkStorage<Socket>;

        /// Block requests in flight, and bios that ask for a flush, by their address. Preallocated,
        /// because an entry comes and goes with every request, on different CPUs. Sized by the
        /// profiler.
        Requests: REQUESTS = HashMap<u64, Request, 1>;

        /// Asynchronous file I/O in flight, by the address of the request, or for io_uring before Linux
        /// 5.18 by ring and `user_data`. Sized by the profiler.
        FileAsync: FILE_ASYNC = HashMap<u64, AsyncOperation, 1, NO_PREALLOC>;
    }
}

shared! {
    /// The single entry of the map `COUNTERS`.
    #[derive(Default)]
    pub struct ProgramCounters {
        /// Live processes of the target.
        pub live: u64,
        /// Tasks that `mark` has followed.
        pub marked: u64,
        /// Operations of io_uring submitted while another one was in flight whose end looks the same.
        pub indistinct: u64,
        /// Changed keys for which `CHANGED` had no space.
        pub unlisted: u64,
        /// Active processes for which `ACTIVE` had no space.
        pub unlisted_active: u64,
        /// Dropped entries of each map in [`BOUNDED`] and [`per_key::BOUNDED`].
        pub dropped: [u64; BOUNDED.len() + per_key::BOUNDED.len()],
    }

    /// A file as long as it exists: the number of its inode can be reused after it was removed.
    #[derive(Default, PartialEq, Eq, Hash)]
    pub struct FileKey {
        /// Number of the inode.
        pub ino: u64,
        /// Device of the file system.
        pub dev: u32,
        /// Generation of the inode.
        pub generation: u32,
    }

    /// The process that has dirtied pages of a file. Times are 0 if they do not apply.
    #[derive(Default)]
    pub struct Dirtier {
        /// Pid 0 if the process is outside the target or unknown.
        pub owner: Owner,
        /// Whether several processes have dirtied pages.
        pub shared: u64,
        /// Time at which dirty pages were last noted.
        pub noted: u64,
        /// Start of the writeback, unless pages were dirtied since.
        pub started: u64,
        /// Time at which the file was found clean, unless pages were dirtied since.
        pub clean: u64,
    }

    /// `gendisk.disk_name`, ended by a NUL.
    #[derive(Default)]
    pub struct DiskName {
        /// The 32 bytes as words, as they are in memory.
        pub name: [u64; 4],
    }
}

impl ProgramCounters {
    /// Dropped entries of each map, by its name.
    #[cfg(not(target_arch = "bpf"))]
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = BOUNDED.iter().chain(per_key::BOUNDED).copied();
        names.zip(self.dropped)
    }
}

impl<V, const ENTRIES: usize, const FLAGS: usize> Definition for Array<V, ENTRIES, FLAGS> {
    type Key = u32;
    type Value = V;
}

impl<K, V, const ENTRIES: usize, const FLAGS: usize> Definition for HashMap<K, V, ENTRIES, FLAGS> {
    type Key = K;
    type Value = V;
}

impl<T, const BYTES: usize, const FLAGS: usize> Definition for RingBuf<T, BYTES, FLAGS> {
    type Key = ();
    type Value = T;
}

/// The types of maps for the profiler, which only needs their parameters.
#[cfg(not(target_arch = "bpf"))]
mod definition {
    use core::marker::PhantomData;

    /// `BPF_MAP_TYPE_ARRAY`
    #[derive(Debug)]
    pub struct Array<V, const ENTRIES: usize, const FLAGS: usize = 0>(PhantomData<V>);

    /// `BPF_MAP_TYPE_HASH`
    #[derive(Debug)]
    pub struct HashMap<K, V, const ENTRIES: usize, const FLAGS: usize = 0>(PhantomData<(K, V)>);

    /// `BPF_MAP_TYPE_RINGBUF`
    #[derive(Debug)]
    pub struct RingBuf<T, const BYTES: usize, const FLAGS: usize = 0>(PhantomData<T>);
}
