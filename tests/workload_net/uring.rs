//! io_uring: sends and receives that no system call of their own begins.

use std::{
    net::TcpStream,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr::null_mut,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::tcp;

const IORING_OP_SEND: u8 = 26;
const IORING_OP_RECV: u8 = 27;
const IORING_ENTER_GETEVENTS: libc::c_long = 1;
/// Let a worker of the kernel do it.
const IOSQE_ASYNC: u8 = 1 << 4;
const OFF_SQES: i64 = 0x1000_0000;
const ENTRIES: u32 = 4;

/// `struct io_uring_params` (include/uapi/linux/io_uring.h).
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    other: [u32; 8],
    sq: Offsets,
    cq: Offsets,
}

/// `struct io_sqring_offsets`, `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// Of the one ring; of the other: overflow, and where its entries are.
    flags: u32,
    fifth: u32,
    array: u32,
    rest: [u32; 3],
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    message_flags: u32,
    rest: [u64; 4],
}

/// One request at a time.
struct Ring {
    fd: OwnedFd,
    params: Params,
    rings: *mut u8,
    entries: *mut Entry,
}

impl Ring {
    fn new() -> Self {
        let mut params = Params::default();
        // SAFETY: the kernel fills the parameters.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut params) };
        let fd = i32::try_from(fd).expect("a descriptor");
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let map = |bytes: usize, offset| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping.
            let place =
                unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, fd, offset) };
            assert_ne!(place, libc::MAP_FAILED);
            place.cast::<u8>()
        };
        let completions = params.cq.fifth + params.cq_entries * 16;
        let submissions = params.sq.array + params.sq_entries * 4;
        let rings = map(completions.max(submissions) as usize, 0);
        let entries = map(params.sq_entries as usize * size_of::<Entry>(), OFF_SQES);
        Self {
            // SAFETY: ours.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            params,
            rings,
            entries: entries.cast(),
        }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and shared with the kernel in this way.
        unsafe { AtomicU32::from_ptr(self.rings.add(offset as usize).cast()) }
    }

    /// Has it done, and returns its result.
    fn call(&mut self, entry: Entry) -> i32 {
        let tail = self.word(self.params.sq.tail).load(Ordering::Acquire);
        let index = tail & self.word(self.params.sq.mask).load(Ordering::Relaxed);
        // SAFETY: one of the entries that there are.
        unsafe { self.entries.add(index as usize).write_volatile(entry) };
        self.word(self.params.sq.array + index * 4)
            .store(index, Ordering::Relaxed);
        self.word(self.params.sq.tail)
            .store(tail.wrapping_add(1), Ordering::Release);
        let fd = self.fd.as_raw_fd();
        // SAFETY: the entry points to memory that lives until its completion.
        let submitted = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                fd,
                1,
                1,
                IORING_ENTER_GETEVENTS,
                0,
                0,
            )
        };
        assert_eq!(submitted, 1);
        let head = self.word(self.params.cq.head).load(Ordering::Acquire);
        let index = head & self.word(self.params.cq.mask).load(Ordering::Relaxed);
        let result = self.word(self.params.cq.fifth + index * 16 + 8);
        let result = result.load(Ordering::Acquire).cast_signed();
        self.word(self.params.cq.head)
            .store(head.wrapping_add(1), Ordering::Release);
        result
    }

    fn transfer(&mut self, opcode: u8, flags: u8, socket: &TcpStream, message: &mut [u8]) {
        let size = message.len();
        let result = self.call(Entry {
            opcode,
            flags,
            fd: socket.as_raw_fd(),
            address: message.as_mut_ptr() as u64,
            length: u32::try_from(size).expect("small"),
            ..Entry::default()
        });
        assert_eq!(usize::try_from(result), Ok(size));
    }
}

/// So many messages over a connection; every second by a worker.
pub fn messages(count: usize, size: usize) {
    let (ours, theirs) = tcp::pair();
    let mut ring = Ring::new();
    let mut message = vec![0; size];
    for number in 0..count {
        let flags = if number % 2 == 0 { 0 } else { IOSQE_ASYNC };
        ring.transfer(IORING_OP_SEND, flags, &ours, &mut message);
        ring.transfer(IORING_OP_RECV, flags, &theirs, &mut message);
    }
}
