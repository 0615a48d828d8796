//! A helper process that calls `statfs(2)`. The call does not return while a file server hangs, not
//! even for SIGKILL: a thread in it would prevent the profiler from ending.

use std::{
    ffi::{CStr, CString},
    io::{self, Read as _, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatFs, StatxFlags, fstatfs, openat, statx},
    io::Errno,
    path::DecInt,
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
/// Length of what precedes the path in a request: length of the path with its NUL, mount id.
const HEADER: usize = 8;
/// Numbers in an answer: errno, bytes of a block, blocks, free, available, inodes, free inodes.
const WORDS: usize = 7;

/// The helper process, which ends when this is dropped.
pub struct StatfsHelper(HelperProcess);

impl StatfsHelper {
    /// Forks the helper process.
    pub fn start() -> io::Result<Self> {
        // SAFETY: `serve` makes only system calls.
        unsafe { HelperProcess::start(None, serve) }.map(Self)
    }

    /// Requests the size of the file system that is mounted at a path with this mount id.
    pub fn ask(&mut self, path: impl AsRef<Path>, id: u32) -> io::Result<()> {
        let path = path.as_ref().as_os_str().as_bytes();
        let path = CString::new(path).map_err(io::Error::other)?;
        let path = path.as_bytes_with_nul();
        if path.len() > LONGEST {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let length = u32::try_from(path.len()).map_err(io::Error::other)?;
        let header = [length.to_ne_bytes(), id.to_ne_bytes()];
        self.0
            .requests
            .write_all(&[header.as_flattened(), path].concat())
    }

    /// Whether one of these has an answer, or has ended, within `timeout`.
    pub fn wait_for_any<'a>(
        helpers: impl Iterator<Item = &'a Self>,
        timeout: Duration,
    ) -> io::Result<bool> {
        HelperProcess::has_any_answer(helpers.map(|helper| &helper.0), timeout)
    }

    /// The answer, if it comes within `timeout`: the size or the error of the system call, which is
    /// [`NotFound`](io::ErrorKind::NotFound) if another file system, or none, is mounted there.
    ///
    /// # Errors
    ///
    /// When the process has ended.
    pub fn answer(&mut self, timeout: Duration) -> io::Result<Option<io::Result<Size>>> {
        if !self.0.has_answer(timeout)? {
            return Ok(None);
        }
        let mut bytes = [0; WORDS * 8];
        self.0.answers.read_exact(&mut bytes)?;
        let mut words = [0u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(Some(size_of(words)))
    }
}

fn size_of(words: [u64; WORDS]) -> io::Result<Size> {
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
    let bytes = |blocks: u64| {
        let bytes = blocks.checked_mul(block);
        bytes.ok_or_else(|| io::Error::other("larger than 16 EiB"))
    };
    Ok(Size {
        total: bytes(blocks)?,
        free: bytes(free)?,
        available: bytes(available)?,
        inodes_total,
        inodes_free,
    })
}

/// The child: answers each request, until the pipe is closed.
fn serve() {
    let mut request = [0; HEADER + LONGEST];
    loop {
        let (header, path) = request.split_at_mut(HEADER);
        if !is_filled(header) {
            return;
        }
        let [length, id] = [0, 4].map(|at| {
            let bytes = header[at..].first_chunk().copied();
            u32::from_ne_bytes(bytes.unwrap_or_default())
        });
        let Some(path) = path.get_mut(..length as usize) else {
            return;
        };
        if !is_filled(path) {
            return;
        }
        let words = match CStr::from_bytes_with_nul(path) {
            Ok(path) => size(path, id).map_or_else(failed, |found| words(&found)),
            Err(_) => failed(Errno::INVAL),
        };
        // SAFETY: the words are initialized. A pipe takes or refuses as few as these in one piece.
        if unsafe { libc::write(1, words.as_ptr().cast(), size_of_val(&words)) } < 0 {
            return;
        }
    }
}

/// Reads until the buffer is full; `false` at the end of the pipe.
fn is_filled(buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        // SAFETY: the buffer has room for what is read.
        let count = unsafe { libc::read(0, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(count) {
            Ok(count @ 1..) => filled += count,
            _ => return false,
        }
    }
    true
}

/// Asks through a descriptor of the mount, so that all answers are of the same one. `O_PATH` asks no server.
fn size(path: &CStr, id: u32) -> rustix::io::Result<StatFs> {
    let mount = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if mount_id(&mount)? != u64::from(id) {
        return Err(Errno::NOENT);
    }
    fstatfs(&mount)
}

/// Id in `mountinfo` of the mount that a descriptor leads to. No server is asked.
fn mount_id(mount: &OwnedFd) -> rustix::io::Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    match statx(mount, c"", flags, StatxFlags::MNT_ID) {
        Ok(found) if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) => {
            return Ok(found.stx_mnt_id);
        }
        // Linux before 5.8, or the seccomp filter of an old container runtime, which does not know the call.
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    mount_id_of_fdinfo(mount).ok_or(Errno::NOSYS)
}

/// The line `mnt_id:` of `/proc/self/fdinfo/FD`.
fn mount_id_of_fdinfo(mount: &OwnedFd) -> Option<u64> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, c"/proc/self/fdinfo", flags, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(directory, DecInt::from_fd(mount), flags, Mode::empty()).ok()?;
    let mut text = [0; 256];
    let length = rustix::io::read(file, &mut text).ok()?;
    let mut lines = text[..length].split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| line.strip_prefix(b"mnt_id:"))?;
    str::from_utf8(id).ok()?.trim().parse().ok()
}

fn failed(errno: Errno) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = u64::from(errno.raw_os_error().unsigned_abs());
    words
}

fn words(found: &StatFs) -> [u64; WORDS] {
    // `f_bsize` is the best length of a transfer, which is longer in file systems of a network. Old
    // kernels leave `f_frsize` at 0 if they are equal.
    let block = match found.f_frsize {
        0 => found.f_bsize,
        block => block,
    };
    [
        0,
        u64::try_from(block).unwrap_or(0),
        found.f_blocks,
        found.f_bfree,
        found.f_bavail,
        found.f_files,
        found.f_ffree,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::mounts::{mounts_of, visible};

    #[test]
    fn both_sources_know_the_same_mount() {
        for path in ["/", "/proc", "/dev"] {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let mount = openat(CWD, path, flags, Mode::empty()).expect("there");
            assert_eq!(mount_id_of_fdinfo(&mount), Some(id(path).into()), "{path}");
            assert_eq!(mount_id(&mount), Ok(id(path).into()), "{path}");
        }
    }

    /// Id of the mount at a path.
    fn id(path: &str) -> u32 {
        let all = visible(mounts_of(Path::new("/proc"), std::process::id()));
        let mut all = all.into_iter();
        all.find(|found| found.mount.mount_point == Path::new(path))
            .expect("mounted")
            .id
    }

    #[test]
    fn answers_are_those_of_statvfs() {
        let mut helper = StatfsHelper::start().expect("forks");
        let answer = |helper: &mut StatfsHelper| {
            let answer = helper.answer(Duration::from_secs(10)).expect("it is alive");
            answer.expect("soon")
        };
        let (proc, dev) = (id("/proc"), id("/dev"));
        for _ in 0..2 {
            helper.ask("/proc", proc).expect("writes");
            assert_eq!(answer(&mut helper).expect("mounted").total, 0);
            helper.ask("/dev", dev).expect("writes");
            let size = answer(&mut helper).expect("mounted");
            let ours = rustix::fs::statvfs("/dev").expect("statvfs");
            assert_eq!(size.total, ours.f_blocks * ours.f_frsize);
            assert_eq!(size.inodes_total, ours.f_files);
            // None, and another one.
            for (path, id) in [("/none", dev), ("/dev", proc)] {
                helper.ask(path, id).expect("writes");
                let error = answer(&mut helper).expect_err("it is not mounted there");
                assert_eq!(error.kind(), io::ErrorKind::NotFound);
            }
        }
        assert!(helper.ask("x".repeat(LONGEST), dev).is_err());
        assert!(helper.ask("a\0b", dev).is_err());
        let answer = helper.answer(Duration::ZERO).expect("it is alive");
        assert!(answer.is_none());
    }
}
