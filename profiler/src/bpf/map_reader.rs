//! Reading whole hash maps: many entries per system call, which aya does not offer.

use std::os::fd::AsFd as _;

use aya::maps::{Map, MapData};

use super::{
    LoadError,
    syscall::{Command, bpf, number},
};

/// Entries asked for at once, at first.
const BATCH: usize = 1024;

/// A struct that is valid with any bytes: `repr(C)`, integers only, no padding.
///
/// # Safety
///
/// Only for such structs.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: as the trait demands; see `profiler_ebpf`.
unsafe impl Plain for profiler_ebpf::per_key::CounterKey {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::per_key::NetCounters {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::per_key::BlockCounters {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::per_key::DiskName {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::per_key::FileCounters {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::per_key::SyscallCounters {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::wire::Histogram {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::wire::FileKey {}
// SAFETY: as above.
unsafe impl Plain for profiler_ebpf::wire::Dirtier {}

/// A hash map in the kernel.
pub struct Table<K, V> {
    map: MapData,
    keys: Vec<K>,
    values: Vec<V>,
}

/// `union bpf_attr`, for the batch commands (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `union bpf_attr`, for single elements.
#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Takes over a hash map with keys and values of these types; `None` when it has others.
    pub fn new(map: Map) -> Option<Self> {
        let Map::HashMap(map) = map else {
            return None;
        };
        let info = map.info().ok()?;
        let fits = info.key_size() as usize == size_of::<K>()
            && info.value_size() as usize == size_of::<V>();
        fits.then_some(Self {
            map,
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Calls `visit` for every entry.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn for_each(&mut self, mut visit: impl FnMut(K, &V)) -> Result<(), LoadError> {
        let fail = |source| LoadError::Read {
            what: "map of flows",
            source,
        };
        if self.keys.is_empty() {
            self.keys.resize(BATCH, K::default());
            self.values.resize(BATCH, V::default());
        }
        // The kernel's position: a bucket's number.
        let mut position = 0_u32;
        let mut first = true;
        loop {
            let mut next = position;
            let mut attr = BatchAttr {
                in_batch: if first {
                    0
                } else {
                    (&raw const position) as u64
                },
                out_batch: (&raw mut next) as u64,
                keys: self.keys.as_mut_ptr() as u64,
                values: self.values.as_mut_ptr() as u64,
                count: u32::try_from(self.keys.len()).unwrap_or(u32::MAX),
                map_fd: number(self.map.fd().as_fd()),
                ..BatchAttr::default()
            };
            // SAFETY: keys and values are of the map's sizes, and there is room for `count` of them.
            let end = match unsafe { bpf(Command::MapLookupBatch, &mut attr) } {
                Ok(()) => false,
                // Nothing more; what was found before is there.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                // A bucket has more entries than there is room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && attr.count == 0 => {
                    let room = self.keys.len() * 2;
                    self.keys.resize(room, K::default());
                    self.values.resize(room, V::default());
                    continue;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => false,
                Err(error) => return Err(fail(error)),
            };
            for (key, value) in self.keys.iter().zip(&self.values).take(attr.count as usize) {
                visit(*key, value);
            }
            if end {
                return Ok(());
            }
            position = next;
            first = false;
        }
    }

    /// Puts an entry in, unless there is one.
    pub fn insert(&mut self, key: &K, value: &V) {
        const NOEXIST: u64 = 1;
        let mut attr = ElemAttr {
            map_fd: number(self.map.fd().as_fd()),
            key: (&raw const *key) as u64,
            value: (&raw const *value) as u64,
            flags: NOEXIST,
            ..ElemAttr::default()
        };
        // SAFETY: key and value are of the map's sizes. That there is one is as good.
        let _ = unsafe { bpf(Command::MapUpdateElem, &mut attr) };
    }

    /// Takes an entry out; `None` when it is not there.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let mut value = V::default();
        let mut attr = ElemAttr {
            map_fd: number(self.map.fd().as_fd()),
            key: (&raw const *key) as u64,
            value: (&raw mut value) as u64,
            ..ElemAttr::default()
        };
        // SAFETY: key and value are of the map's sizes.
        unsafe { bpf(Command::MapLookupAndDeleteElem, &mut attr) }
            .is_ok()
            .then_some(value)
    }
}
