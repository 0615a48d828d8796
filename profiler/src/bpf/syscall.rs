//! bpf(2), for commands for which aya has no function.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

/// A command of bpf(2) (`enum bpf_cmd` in include/uapi/linux/bpf.h).
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Reads an entry of a map.
    MapLookupElem = 1,
    /// Inserts an entry into a map.
    MapUpdateElem = 2,
    /// Reads information about a program.
    ObjGetInfoByFd = 15,
    /// Removes an entry from a map and returns it.
    MapLookupAndDeleteElem = 21,
    /// Reads many entries of a map.
    MapLookupBatch = 24,
    /// Attaches a program.
    LinkCreate = 28,
    /// Opens an iterator.
    IterCreate = 33,
}

/// A file descriptor as a member of `union bpf_attr`.
pub fn number(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

/// Calls bpf(2).
///
/// # Safety
///
/// `attr` must have the layout of the command's part of `union bpf_attr`. Its addresses must point
/// to memory of the lengths that the command uses.
pub unsafe fn bpf<T>(command: Command, attr: &mut T) -> io::Result<()> {
    // SAFETY: as the caller guarantees.
    unsafe { call(command, attr) }.map(drop)
}

/// Calls bpf(2) with a command that returns a file descriptor.
///
/// # Safety
///
/// As for [`bpf`].
pub unsafe fn bpf_fd<T>(command: Command, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller guarantees; a new descriptor, which nothing else owns.
    unsafe {
        let fd = call(command, attr)?;
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

unsafe fn call<T>(command: Command, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: as the caller guarantees.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            &raw mut *attr,
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
