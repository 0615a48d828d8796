//! Hash maps that are read as a whole. bpf(2) returns many entries per call, for which aya has no
//! function.

use std::os::fd::AsFd as _;

use aya::{
    Pod,
    maps::{self, MapData},
};
use profiler_ebpf::maps::{Definition, Map};

use super::{
    BpfError,
    pod::zeroed,
    syscall::{Command, bpf, number},
};

/// Entries per call at first; it is doubled if a bucket of the hash table has more. The largest take
/// 700 bytes.
const BATCH: usize = 128;

/// A hash map in the kernel.
pub struct KernelMap<K, V> {
    name: &'static str,
    map: MapData,
    keys: Vec<K>,
    values: Vec<V>,
}

/// `union bpf_attr` of the batch commands (include/uapi/linux/bpf.h).
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

/// `union bpf_attr` of the commands for single entries.
#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl<K: Pod, V: Pod> KernelMap<K, V> {
    /// The map declared as `M`.
    pub(super) fn new<M>(map: maps::Map) -> Result<Self, BpfError>
    where
        M: Map,
        M::Definition: Definition<Key = K, Value = V>,
    {
        let checked = maps::HashMap::<_, K, V>::try_from(&map).map(drop);
        checked.map_err(|source| BpfError::MapType {
            map: M::NAME,
            source,
        })?;
        let (maps::Map::HashMap(map) | maps::Map::LruHashMap(map)) = map else {
            return Err(BpfError::NoMap(M::NAME));
        };
        Ok(Self {
            name: M::NAME,
            map,
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Calls `visit` for every entry.
    ///
    /// # Errors
    ///
    /// When the kernel rejects the call.
    pub fn for_each(&mut self, mut visit: impl FnMut(K, &V)) -> Result<(), BpfError> {
        if self.keys.is_empty() {
            self.keys.resize_with(BATCH, zeroed);
            self.values.resize_with(BATCH, zeroed);
        }
        // The number of a bucket.
        let mut position = 0_u32;
        let mut is_first = true;
        loop {
            let mut next = position;
            let mut attr = BatchAttr {
                in_batch: if is_first {
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
            // SAFETY: keys and values have the map's sizes, and the buffers have space for `count`.
            let is_last = match unsafe { bpf(Command::MapLookupBatch, &mut attr) } {
                Ok(()) => false,
                // The end of the map; entries of the last batch are in the buffers.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                // A bucket has more entries than the buffers.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && attr.count == 0 => {
                    let entries = self.keys.len() * 2;
                    self.keys.resize_with(entries, zeroed);
                    self.values.resize_with(entries, zeroed);
                    continue;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => false,
                Err(source) => {
                    return Err(BpfError::ReadEntries {
                        map: self.name,
                        source,
                    });
                }
            };
            for (key, value) in self.keys.iter().zip(&self.values).take(attr.count as usize) {
                visit(*key, value);
            }
            if is_last {
                return Ok(());
            }
            position = next;
            is_first = false;
        }
    }

    /// The value of a key; `None` if it does not exist.
    pub fn get(&self, key: &K) -> Option<V> {
        self.take(Command::MapLookupElem, key)
    }

    /// Inserts an entry, unless its key exists.
    pub fn insert(&mut self, key: &K, value: &V) {
        const NOEXIST: u64 = 1;
        let mut attr = ElemAttr {
            map_fd: number(self.map.fd().as_fd()),
            key: (&raw const *key) as u64,
            value: (&raw const *value) as u64,
            flags: NOEXIST,
            ..ElemAttr::default()
        };
        // SAFETY: key and value have the map's sizes. An existing key is no error.
        let _ = unsafe { bpf(Command::MapUpdateElem, &mut attr) };
    }

    /// Removes an entry; `None` if it does not exist.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.take(Command::MapLookupAndDeleteElem, key)
    }

    fn take(&self, command: Command, key: &K) -> Option<V> {
        let mut value: V = zeroed();
        let mut attr = ElemAttr {
            map_fd: number(self.map.fd().as_fd()),
            key: (&raw const *key) as u64,
            value: (&raw mut value) as u64,
            ..ElemAttr::default()
        };
        // SAFETY: key and value have the map's sizes.
        unsafe { bpf(command, &mut attr) }.is_ok().then_some(value)
    }
}
