//! System calls that return a result or a negative errno.

use std::{
    ffi::CString,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr::null_mut,
};

use super::Counts;

/// Bytes per call.
pub const BLOCK: usize = 4096;

pub fn result<T: TryInto<i64>>(value: T) -> i64 {
    let value = value.try_into().ok().expect("64 bits");
    if value < 0 {
        let error = std::io::Error::last_os_error().raw_os_error();
        -i64::from(error.expect("an error of the system"))
    } else {
        value
    }
}

/// Calls a function of libc.
macro_rules! call {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: descriptors and numbers may have any value; pointers are to memory of the given
        // length.
        let value = unsafe { libc::$call($($argument),*) };
        $crate::files::syscalls::result(value)
    }};
}
pub(super) use call;

/// Memory aligned for direct I/O.
pub fn aligned(length: usize) -> &'static mut [u8] {
    let memory = vec![7_u8; length + BLOCK].leak();
    let begin = memory.as_ptr().align_offset(BLOCK);
    &mut memory[begin..begin + length]
}

/// An open descriptor.
pub struct Fd(OwnedFd);

impl Fd {
    fn new(fd: i64) -> Self {
        let fd = i32::try_from(fd).expect("a descriptor");
        assert!(fd >= 0, "errno {}", -fd);
        // SAFETY: just opened and not used elsewhere.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub fn write(&self, block: &[u8]) -> i64 {
        call!(write(self.raw(), block.as_ptr().cast(), block.len()))
    }

    pub fn write_from_nowhere(&self) -> i64 {
        call!(write(self.raw(), std::ptr::without_provenance(1), BLOCK))
    }

    pub fn read(&self, block: &mut [u8]) -> i64 {
        call!(read(self.raw(), block.as_mut_ptr().cast(), block.len()))
    }

    pub fn write_at(&self, block: &[u8], at: usize) -> i64 {
        let (start, length) = (block.as_ptr().cast(), block.len());
        call!(pwrite(self.raw(), start, length, number(at)))
    }

    pub fn read_at(&self, block: &mut [u8], at: usize) -> i64 {
        let (start, length) = (block.as_mut_ptr().cast(), block.len());
        call!(pread(self.raw(), start, length, number(at)))
    }

    /// writev, pwritev or pwritev2, depending on `turn`.
    pub fn write_vector(&self, block: &[u8], turn: usize, at: usize) -> i64 {
        let halves = halves(block.as_ptr());
        let (fd, vector, at) = (self.raw(), halves.as_ptr(), number(at));
        match turn % 3 {
            0 => {
                self.seek(at);
                call!(writev(fd, vector, 2))
            }
            1 => call!(pwritev(fd, vector, 2, at)),
            _ => call!(pwritev2(fd, vector, 2, at, 0)),
        }
    }

    /// readv, preadv or preadv2, depending on `turn`.
    pub fn read_vector(&self, block: &mut [u8], turn: usize, at: usize) -> i64 {
        let halves = halves(block.as_mut_ptr());
        let (fd, vector, at) = (self.raw(), halves.as_ptr(), number(at));
        match turn % 3 {
            0 => {
                self.seek(at);
                call!(readv(fd, vector, 2))
            }
            1 => call!(preadv(fd, vector, 2, at)),
            _ => call!(preadv2(fd, vector, 2, at, 0)),
        }
    }

    fn seek(&self, at: i64) {
        assert_eq!(call!(lseek(self.raw(), at, libc::SEEK_SET)), at);
    }

    pub fn rewind(&self) {
        self.seek(0);
    }

    /// splice(2) from another descriptor.
    pub fn splice_from(&self, from: &Self) -> i64 {
        let (from, to) = (from.raw(), self.raw());
        call!(splice(from, null_mut(), to, null_mut(), BLOCK, 0))
    }

    /// sendfile(2) from another descriptor.
    pub fn send_from(&self, from: &Self) -> i64 {
        call!(sendfile(self.raw(), from.raw(), null_mut(), BLOCK))
    }

    /// copy_file_range(2) from another descriptor.
    pub fn copy_from(&self, from: &Self) -> i64 {
        let (from, to) = (from.raw(), self.raw());
        call!(copy_file_range(from, null_mut(), to, null_mut(), BLOCK, 0))
    }

    pub fn sync(&self) -> i64 {
        call!(fsync(self.raw()))
    }

    pub fn sync_data(&self) -> i64 {
        call!(fdatasync(self.raw()))
    }

    pub fn map_and_sync(&self) -> i64 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of this length, used only here.
        unsafe {
            let map = libc::mmap(null_mut(), BLOCK, access, libc::MAP_SHARED, self.raw(), 0);
            assert_ne!(map, libc::MAP_FAILED, "mapped");
            map.cast::<u8>().write_volatile(1);
            let synced = result(libc::msync(map, BLOCK, libc::MS_SYNC));
            libc::munmap(map, BLOCK);
            synced
        }
    }

    pub fn set_nonblocking(&self) {
        call!(fcntl(self.raw(), libc::F_SETFL, libc::O_NONBLOCK));
    }
}

fn number(at: usize) -> i64 {
    i64::try_from(at).expect("small")
}

fn halves(block: *const u8) -> [libc::iovec; 2] {
    [0, BLOCK / 2].map(|offset| libc::iovec {
        iov_base: block.wrapping_add(offset).cast_mut().cast(),
        iov_len: BLOCK / 2,
    })
}

fn text(path: &str) -> CString {
    CString::new(path).expect("a path")
}

pub fn open(path: &str, flags: i32) -> Fd {
    let path = text(path);
    Fd::new(call!(open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600)))
}

/// A pipe: read end and write end.
pub fn pipe() -> (Fd, Fd) {
    let mut fds = [0; 2];
    call!(pipe(fds.as_mut_ptr()));
    (Fd::new(fds[0].into()), Fd::new(fds[1].into()))
}

pub fn socket_pair() -> (Fd, Fd) {
    let mut fds = [0; 2];
    let (family, kind) = (libc::AF_UNIX, libc::SOCK_STREAM);
    call!(socketpair(family, kind, 0, fds.as_mut_ptr()));
    (Fd::new(fds[0].into()), Fd::new(fds[1].into()))
}

/// Reads from a descriptor that is not open.
pub fn read_closed(block: &mut [u8]) -> i64 {
    call!(read(-1, block.as_mut_ptr().cast(), block.len()))
}

/// The directory of the workload, and the counts of the operations in it.
pub struct Directory<'a> {
    pub counts: &'a mut Counts,
    path: String,
    files: usize,
}

impl<'a> Directory<'a> {
    pub fn new(path: &str, counts: &'a mut Counts) -> Self {
        Self {
            counts,
            path: path.to_owned(),
            files: 0,
        }
    }

    fn name(&self, index: usize) -> String {
        format!("{}/{}-{index}", self.path, std::process::id())
    }

    /// Creates a file for reading and writing.
    pub fn create(&mut self, flags: i32) -> Fd {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | flags;
        let file = open(&self.name(self.files), flags);
        self.files += 1;
        self.counts.opens += 1;
        self.counts.creates += 1;
        file
    }

    /// Opens the last created file again.
    pub fn open_again(&mut self, flags: i32) -> Fd {
        self.counts.opens += 1;
        open(&self.name(self.files - 1), flags)
    }

    /// Opens the directory.
    pub fn open_itself(&mut self) -> Fd {
        self.counts.opens += 1;
        open(&self.path, libc::O_RDONLY | libc::O_DIRECTORY)
    }

    /// Removes all created files.
    pub fn remove(&mut self) {
        for index in 0..self.files {
            let path = text(&self.name(index));
            assert_eq!(call!(unlink(path.as_ptr())), 0, "removed");
            self.counts.unlinks += 1;
        }
        self.files = 0;
    }

    /// All operations on paths, successful and failed.
    pub fn names(&mut self) {
        let [one, other] = [0, 1].map(|index| text(&self.name(index)));
        let (a, b) = (one.as_ptr(), other.as_ptr());
        let here = libc::AT_FDCWD;
        let (exists, missing) = (-i64::from(libc::EEXIST), -i64::from(libc::ENOENT));
        assert_eq!(call!(mkdir(a, 0o700)), 0);
        assert_eq!(call!(mkdir(a, 0o700)), exists);
        assert_eq!(call!(rename(a, b)), 0);
        assert_eq!(call!(rename(a, b)), missing);
        assert_eq!(call!(renameat2(here, b, here, a, 0)), 0);
        assert_eq!(call!(rmdir(a)), 0);
        assert_eq!(call!(rmdir(a)), missing);
        assert_eq!(call!(mkdirat(here, b, 0o700)), 0);
        assert_eq!(call!(unlinkat(here, b, libc::AT_REMOVEDIR)), 0);
        assert_eq!(call!(unlink(b)), missing);
        self.counts.mkdirs += 2;
        self.counts.renames += 2;
        self.counts.unlinks += 2;
        // O_PATH does not count as an open.
        open(&self.path, libc::O_PATH);
    }
}
