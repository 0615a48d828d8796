//! Iterators over tasks.

use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
    os::fd::{AsFd as _, BorrowedFd},
};

use super::{
    pod::{bytes, bytes_mut},
    syscall::{Command, bpf_fd, number},
};

/// `BPF_TRACE_ITER` (`enum bpf_attach_type` in include/uapi/linux/bpf.h).
const TRACE_ITER: u32 = 28;

/// `union bpf_attr`, for `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    /// Address of a [`TaskInfo`]; 0 for all tasks.
    iter_info: u64,
    iter_info_len: u32,
    padding: u32,
}

/// `union bpf_iter_link_info`, for tasks. Of its members, one can be set.
#[repr(C)]
struct TaskInfo {
    tid: u32,
    pid: u32,
    pid_fd: u32,
}

impl TaskInfo {
    const LENGTH: u32 = 12;
}

const _: () = assert!(size_of::<TaskInfo>() == TaskInfo::LENGTH as usize);

/// `union bpf_attr`, for `BPF_ITER_CREATE`.
#[repr(C)]
struct IterAttr {
    link_fd: u32,
    flags: u32,
}

/// Opens an iterator, which runs the program once for each task, or for each thread of the process `pid`.
///
/// # Errors
///
/// If the kernel refuses it. Before Linux 6.1, it ignores `pid`.
pub fn open(program: BorrowedFd<'_>, pid: Option<u32>) -> io::Result<File> {
    let info = pid.map(|pid| TaskInfo {
        tid: 0,
        pid,
        pid_fd: 0,
    });
    let mut link = LinkAttr {
        prog_fd: number(program),
        target_fd: 0,
        attach_type: TRACE_ITER,
        flags: 0,
        iter_info: info.as_ref().map_or(0, |info| &raw const *info as u64),
        iter_info_len: info.as_ref().map_or(0, |_| TaskInfo::LENGTH),
        padding: 0,
    };
    // SAFETY: the attributes of the command, with the address and length of `info`.
    let link = unsafe { bpf_fd(Command::LinkCreate, &mut link) }?;
    let mut iterator = IterAttr {
        link_fd: number(link.as_fd()),
        flags: 0,
    };
    // SAFETY: the attributes of the command.
    let iterator = unsafe { bpf_fd(Command::IterCreate, &mut iterator) }?;
    Ok(iterator.into())
}

/// Words of the smallest buffer.
const WORDS_MIN: usize = 16 << 10;

/// The output of iterators: records of whole words.
pub struct Output {
    buffer: Vec<u64>,
    /// Bytes that are used.
    length: usize,
    /// Bytes that the reading before has used.
    previous: usize,
}

impl Output {
    /// No output.
    pub fn new() -> Self {
        Self {
            buffer: vec![0; WORDS_MIN],
            length: 0,
            previous: 0,
        }
    }

    /// Removes all records. The buffer is kept if this reading and the one before have needed a quarter of
    /// it: the first has a record of every process, and later ones few.
    pub fn clear(&mut self) {
        let previous = std::mem::replace(&mut self.previous, self.length);
        let needed = self.length.min(previous) / 8;
        if self.buffer.len() > WORDS_MIN && self.buffer.len() > 4 * needed {
            self.buffer = vec![0; WORDS_MIN];
        }
        self.length = 0;
    }

    /// The records.
    pub fn bytes(&self) -> &[u8] {
        &bytes(&self.buffer)[..self.length]
    }

    /// Runs the program of an iterator to the end and appends its records.
    ///
    /// # Errors
    ///
    /// If the iterator cannot be read.
    pub fn append(&mut self, mut iterator: File) -> io::Result<()> {
        loop {
            if self.buffer.len() * 8 - self.length < 64 << 10 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
            match iterator.read(&mut bytes_mut(&mut self.buffer)[self.length..]) {
                Ok(0) => return Ok(()),
                Ok(count) => self.length += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
