//! A process whose memory cannot be read: one thread waits, with the lock of the address space, for a
//! page of a file system that the process serves itself, and another one waits to change the address
//! space, so that all readers wait behind it. Needs no privileges. Also the protocol of the kernel
//! with a server (`linux/fuse.h`).

use std::{
    ffi::CString,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::ffi::OsStrExt as _},
    path::Path,
    ptr, thread,
    time::Duration,
};

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
pub const STATFS: u32 = 17;
pub const INIT: u32 = 26;
const FOPEN_DIRECT_IO: u32 = 1;
const FUSE_ASYNC_READ: u32 = 1;

const PAGE: u32 = 4096;
const MODE: u32 = libc::S_IFREG | 0o444;

/// Mounts the file system over a file, through a device `/dev/fuse`, and waits for the end of stdin.
pub fn main(device: &Path, file: &Path) {
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    // SAFETY: only this process, which has one thread, gets new namespaces.
    let result = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) };
    check(result == 0);
    fs::write("/proc/self/setgroups", "deny").expect("a new namespace");
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).expect("our own");
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).expect("our own");
    let device = mount(device, file, MODE);
    thread::spawn(move || serve(device));
    let file = File::open(file).expect("served");
    assert_eq!(file.metadata().expect("served").len(), u64::from(PAGE));
    // SAFETY: a new private mapping.
    let page = unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        libc::mmap(
            ptr::null_mut(),
            PAGE as usize,
            protection,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    check(page != libc::MAP_FAILED);
    // Closed at exit, it would wait for an answer of the server that has gone.
    drop(file);
    // A change of the address space waits for the reader of the page, and all others for the change.
    thread::spawn(|| {
        loop {
            // SAFETY: a new mapping, which nothing uses.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let new = libc::mmap(
                    ptr::null_mut(),
                    PAGE as usize,
                    libc::PROT_READ,
                    flags,
                    -1,
                    0,
                );
                libc::munmap(new, PAGE as usize);
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    super::acknowledge();
    let address = page.expose_provenance();
    thread::spawn(move || {
        // SAFETY: a mapped page. Reading it never ends.
        unsafe { ptr::with_exposed_provenance::<u8>(address).read_volatile() }
    });
    let _ = std::io::stdin().read(&mut [0]);
    // The memory cannot be given back while a reader waits.
    std::process::exit(0);
}

/// Mounts a file system, whose root has this mode, for the user of this process. Returns the
/// connection to the kernel.
pub fn mount(device: &Path, point: &Path, mode: u32) -> File {
    let device = File::options().read(true).write(true).open(device);
    let device = device.expect("a device");
    let fd = device.as_raw_fd();
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let options = format!("fd={fd},rootmode={mode:o},user_id={uid},group_id={gid}");
    let options = CString::new(options).expect("no NUL");
    let path = CString::new(point.as_os_str().as_bytes()).expect("no NUL");
    let kind = c"fuse".as_ptr();
    // SAFETY: strings that NUL ends.
    let result = unsafe {
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        libc::mount(kind, path.as_ptr(), kind, flags, options.as_ptr().cast())
    };
    check(result == 0);
    device
}

/// A request of the kernel.
#[derive(Clone, Copy)]
pub struct Request {
    pub opcode: u32,
    unique: [u32; 2],
}

impl Request {
    /// Waits for the next one; `None` at the end of the connection.
    pub fn next(device: &mut File) -> Option<Self> {
        let mut request = vec![0; 1 << 17];
        let length = device.read(&mut request).ok()?;
        let word = |at: usize| {
            let bytes = request[..length][at..].first_chunk().expect("a header");
            u32::from_ne_bytes(*bytes)
        };
        Some(Self {
            opcode: word(4),
            unique: [word(8), word(12)],
        })
    }

    /// Answers with an errno, or 0 and these words.
    pub fn answer(self, device: &mut File, errno: i32, words: &[u32]) {
        let length = 16 + words.len() * 4;
        let length = u32::try_from(length).expect("short");
        let [low, high] = self.unique;
        let header = [length, (-errno).cast_unsigned(), low, high];
        let words = header.iter().chain(words);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        // Some requests expect no answer.
        let _ = device.write(&bytes);
    }
}

/// The answer to [`INIT`].
pub fn initial() -> Vec<u32> {
    // Version, readahead, flags, requests in the background, longest write.
    let mut answer = vec![7, 31, 0, FUSE_ASYNC_READ, 0, PAGE];
    answer.resize(16, 0);
    answer
}

fn check(succeeded: bool) {
    assert!(succeeded, "{}", std::io::Error::last_os_error());
}

/// Answers all requests until the first one to read, which fails. The kernel then asks again, now with
/// the lock of the address space, and waits.
fn serve(mut device: File) {
    while let Some(request) = Request::next(&mut device) {
        let (errno, words) = match request.opcode {
            INIT => (0, initial()),
            OPEN => (0, vec![0, 0, FOPEN_DIRECT_IO, 0]),
            GETATTR => {
                // Valid for 1000 s; inode, size.
                let mut answer = vec![1000, 0, 0, 0, 1, 0, PAGE, 0];
                answer.resize(4 + 15, 0);
                answer.push(MODE);
                answer.resize(4 + 22, 0);
                (0, answer)
            }
            READ => (libc::EIO, Vec::new()),
            _ => (libc::ENOSYS, Vec::new()),
        };
        request.answer(&mut device, errno, &words);
        if request.opcode == READ {
            break;
        }
    }
    // A request that no one has taken ends with the thread that waits for it.
    std::mem::forget(device);
}
