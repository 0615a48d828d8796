//! Ring buffers from the programs to the profiler.
//!
//! The kernel has the data of a ring buffer twice, one after the other, so that a record that crosses
//! the end is in one piece (kernel/bpf/ringbuf.c). Here, as much of the second is mapped as the longest
//! record needs: all of it would count twice in the profiler's resident memory.

use std::{
    ffi::c_void,
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use aya::maps::{MapData, MapError};
use profiler_ebpf::maps::RECORD_MAX;
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    param::page_size,
};

/// `BPF_RINGBUF_BUSY_BIT`: the record is being written.
const BUSY: u32 = 1 << 31;
/// `BPF_RINGBUF_DISCARD_BIT`: the record was given up.
const DISCARDED: u32 = 1 << 30;
/// `BPF_RINGBUF_HDR_SZ`: bytes before each record, of which the first word is its length and state.
const HEADER: usize = 8;

/// The reader of a ring buffer.
pub struct RingBuffer {
    map: MapData,
    /// The page with the position up to which records are read.
    consumer: Mapping,
    /// The page with the position up to which records are reserved, then the data.
    producer: Mapping,
    /// Bytes of data, a power of two.
    size: usize,
}

impl RingBuffer {
    /// Maps a ring buffer, which nothing else may read.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the mapping.
    pub fn new(map: MapData) -> Result<Self, MapError> {
        let size = map.info()?.max_entries() as usize;
        let page = page_size();
        let fd = map.fd().as_fd();
        let consumer = Mapping::new(fd, 0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let repeated = (HEADER + RECORD_MAX).next_multiple_of(page).min(size);
        let producer = Mapping::new(fd, page, page + size + repeated, ProtFlags::READ)?;
        Ok(Self {
            map,
            consumer,
            producer,
            size,
        })
    }

    /// Passes each record to `visit`, and frees its space. A record that is being written, and those
    /// after it, are left for the next call.
    pub fn drain(&mut self, mut visit: impl FnMut(&[u8])) {
        let data = page_size();
        // SAFETY: both are at the start of their page, and only accessed as atomic words.
        let (consumed, produced) = unsafe {
            (
                &*self.consumer.address.cast::<AtomicUsize>(),
                &*self.producer.address.cast::<AtomicUsize>(),
            )
        };
        // The kernel reads this position, and only this function writes it.
        let mut position = consumed.load(Ordering::Relaxed);
        // Records that are reserved meanwhile are for the next call, which ends the loop in a storm.
        let end = produced.load(Ordering::Acquire);
        while position != end {
            let offset = data + position % self.size;
            // SAFETY: inside the mapping, and aligned as all positions are.
            let header = unsafe { &*self.producer.address.byte_add(offset).cast::<AtomicU32>() };
            let state = header.load(Ordering::Acquire);
            if state & BUSY != 0 {
                break;
            }
            let length = (state & !DISCARDED) as usize;
            assert!(
                offset + HEADER + length <= self.producer.length,
                "a record longer than {RECORD_MAX} bytes"
            );
            if state & DISCARDED == 0 {
                // SAFETY: inside the mapping; written, and not overwritten before its space is freed.
                visit(unsafe {
                    let record = self.producer.address.byte_add(offset + HEADER);
                    std::slice::from_raw_parts(record.cast(), length)
                });
            }
            position = position.wrapping_add((HEADER + length).next_multiple_of(HEADER));
            consumed.store(position, Ordering::Release);
        }
    }
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.fd().as_fd()
    }
}

/// Shared memory of a map.
struct Mapping {
    address: *mut c_void,
    length: usize,
}

// SAFETY: the address is valid in all threads, and only its owner uses it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(
        fd: BorrowedFd<'_>,
        offset: usize,
        length: usize,
        access: ProtFlags,
    ) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                fd,
                offset as u64,
            )
        }?;
        Ok(Self { address, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping is left.
        let _ = unsafe { munmap(self.address, self.length) };
    }
}
