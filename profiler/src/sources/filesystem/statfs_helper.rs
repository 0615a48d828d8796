//! A helper process that calls `statfs(2)`. The call does not return while a file server hangs, not
//! even for SIGKILL: a thread in it would prevent the profiler from ending.

use std::{
    ffi::CString,
    io::{self, Read as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::Duration,
};

use crate::support::helper_process::HelperProcess;

/// Size and free space of a file system, in bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub inodes_total: u64,
    pub inodes_free: u64,
}

/// Longest path with its terminating NUL (`PATH_MAX`).
const LONGEST: usize = 4096;
/// Numbers in an answer: errno, bytes of a block, blocks, free, available, inodes, free inodes.
const WORDS: usize = 7;

/// The helper process, which ends when this is dropped.
pub struct StatfsHelper(HelperProcess);

impl StatfsHelper {
    /// Forks the helper process.
    pub fn start() -> io::Result<Self> {
        // SAFETY: `serve` makes only system calls.
        unsafe { HelperProcess::start(|| serve()) }.map(Self)
    }

    /// Requests the size of the file system at a path.
    pub fn ask(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref().as_os_str().as_bytes();
        let path = CString::new(path).map_err(io::Error::other)?;
        let path = path.as_bytes_with_nul();
        if path.len() > LONGEST {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        self.0.requests.write_all(path)
    }

    /// The answer, if it comes within `timeout`.
    pub fn answer(&mut self, timeout: Duration) -> io::Result<Option<Size>> {
        if !self.0.has_answer(timeout)? {
            return Ok(None);
        }
        let mut bytes = [0; WORDS * 8];
        self.0.answers.read_exact(&mut bytes)?;
        let mut words = [0u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let [
            errno,
            block,
            blocks,
            free,
            available,
            inodes_total,
            inodes_free,
        ] = words;
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(
                i32::try_from(errno).unwrap_or(libc::EIO),
            ));
        }
        let bytes = |blocks: u64| blocks.checked_mul(block);
        let (total, free, available) = bytes(blocks)
            .zip(bytes(free))
            .zip(bytes(available))
            .map(|((total, free), available)| (total, free, available))
            .ok_or_else(|| io::Error::other("larger than 16 EiB"))?;
        Ok(Some(Size {
            total,
            free,
            available,
            inodes_total,
            inodes_free,
        }))
    }
}

/// The child: reads NUL-terminated paths and answers each, until the pipe is closed.
///
/// # Safety
///
/// Must be called in a process that was just forked.
unsafe fn serve() -> ! {
    // SAFETY: system calls on memory of this function.
    unsafe {
        let mut path = [0u8; LONGEST];
        let mut length = 0;
        loop {
            let room = path.len() - length;
            let count = libc::read(0, path.as_mut_ptr().add(length).cast(), room);
            let Ok(count @ 1..) = usize::try_from(count) else {
                libc::_exit(0);
            };
            length += count;
            // The parent sends one path at a time.
            if path[length - 1] != 0 {
                if length == path.len() {
                    libc::_exit(1);
                }
                continue;
            }
            length = 0;
            let mut found: libc::statfs = std::mem::zeroed();
            let result = libc::statfs(path.as_ptr().cast(), &raw mut found);
            let errno = if result == 0 {
                0
            } else {
                u64::from((*libc::__errno_location()).unsigned_abs())
            };
            // `f_bsize` is the best length of a transfer, which is longer in file systems of a
            // network. Old kernels leave `f_frsize` at 0 if they are equal.
            let block = match found.f_frsize {
                0 => found.f_bsize,
                block => block,
            };
            let words: [u64; WORDS] = [
                errno,
                // Signed in glibc, unsigned in musl.
                u64::try_from(block).unwrap_or(0),
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
            ];
            libc::write(1, words.as_ptr().cast(), size_of_val(&words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_statvfs() {
        let mut helper = StatfsHelper::start().expect("forks");
        let wait = Duration::from_secs(10);
        for _ in 0..2 {
            helper.ask("/proc").expect("writes");
            assert_eq!(
                helper.answer(wait).expect("answers").expect("soon").total,
                0
            );
            helper.ask("/dev").expect("writes");
            let size = helper.answer(wait).expect("answers").expect("soon");
            let ours = rustix::fs::statvfs("/dev").expect("statvfs");
            assert_eq!(size.total, ours.f_blocks * ours.f_frsize);
            assert_eq!(size.inodes_total, ours.f_files);
            helper.ask("/none").expect("writes");
            let error = helper.answer(wait).expect_err("there is none");
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        }
        assert!(helper.ask("x".repeat(LONGEST)).is_err());
        assert!(helper.ask("a\0b").is_err());
        assert_eq!(helper.answer(Duration::ZERO).expect("no answer"), None);
    }
}
