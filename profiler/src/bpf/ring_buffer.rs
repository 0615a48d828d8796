//! Ring buffers from the programs to the profiler.
//!
//! The kernel has the data of a ring buffer twice, one after the other, so that a record that crosses
//! the end is in one piece (kernel/bpf/ringbuf.c). Here, as much of the second is mapped as the longest
//! record needs: all of it would count twice in the profiler's resident memory.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use aya::maps::{MapData, MapError};
use profiler_ebpf::maps::RECORD_MAX;
use rustix::{mm::ProtFlags, param::page_size};

use crate::support::shared_memory::SharedMemory;

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
    consumer: SharedMemory,
    /// The page with the position up to which records are reserved, then the data.
    producer: SharedMemory,
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
        let map_pages = |offset, length, access| {
            SharedMemory::map(fd, offset, length, access).map_err(io::Error::from)
        };
        let consumer = map_pages(0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let repeated = (HEADER + RECORD_MAX).next_multiple_of(page).min(size);
        let producer = map_pages(page, page + size + repeated, ProtFlags::READ)?;
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
                &*self.consumer.start::<AtomicUsize>(),
                &*self.producer.start::<AtomicUsize>(),
            )
        };
        // The kernel reads this position, and only this function writes it.
        let mut position = consumed.load(Ordering::Relaxed);
        // Records that are reserved meanwhile are for the next call, which ends the loop in a storm.
        let end = produced.load(Ordering::Acquire);
        while position != end {
            let offset = data + position % self.size;
            // SAFETY: inside the mapping, and aligned as all positions are.
            let header = unsafe { &*self.producer.start::<AtomicU32>().byte_add(offset) };
            let state = header.load(Ordering::Acquire);
            if state & BUSY != 0 {
                break;
            }
            let length = (state & !DISCARDED) as usize;
            assert!(
                offset + HEADER + length <= self.producer.length(),
                "a record longer than {RECORD_MAX} bytes"
            );
            if state & DISCARDED == 0 {
                // SAFETY: inside the mapping; written, and not overwritten before its space is freed.
                visit(unsafe {
                    let record = self.producer.start::<u8>().byte_add(offset + HEADER);
                    std::slice::from_raw_parts(record, length)
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
