//! bpf(2) where aya has no function for it.

use std::{io, os::fd::AsRawFd as _, os::fd::BorrowedFd};

/// A command of bpf(2) (`enum bpf_cmd` in include/uapi/linux/bpf.h).
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// An entry of a map, which is put in.
    MapUpdateElem = 2,
    /// Information about a program.
    ObjGetInfoByFd = 15,
    /// An entry of a map, which is taken out.
    MapLookupAndDeleteElem = 21,
    /// Many entries of a map.
    MapLookupBatch = 24,
}

/// A file descriptor as it stands in `union bpf_attr`.
pub fn number(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

/// Calls bpf(2).
///
/// # Safety
///
/// `attr` must be laid out as the command's part of `union bpf_attr`, and its addresses must be of memory as long
/// as the command uses.
pub unsafe fn bpf<T>(command: Command, attr: &mut T) -> io::Result<()> {
    // SAFETY: as the caller promises.
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
        Ok(())
    }
}
