//! Memory that the kernel and the profiler share.

use std::{ffi::c_void, os::fd::AsFd, ptr};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// A shared mapping of a ring buffer, removed when it is dropped.
pub struct SharedMemory {
    address: *mut c_void,
    length: usize,
}

// SAFETY: the address is valid in all threads, and only its owner uses it.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Maps `length` bytes from `offset`, both in whole pages.
    ///
    /// # Errors
    ///
    /// That of mmap(2).
    pub fn map(
        fd: impl AsFd,
        offset: usize,
        length: usize,
        access: ProtFlags,
    ) -> Result<Self, Errno> {
        let none = ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { mmap(none, length, access, MapFlags::SHARED, fd, offset as u64) }?;
        Ok(Self { address, length })
    }

    /// Its first byte, at the start of a page.
    pub fn start<T>(&self) -> *mut T {
        self.address.cast()
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping is left.
        let _ = unsafe { munmap(self.address, self.length) };
    }
}
