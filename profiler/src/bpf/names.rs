//! Arguments and environments of all processes, from one pass of the iterator `names`.
//!
//! The iterator waits for pages of the processes, as `/proc` does. It is therefore read in a helper
//! process, which is killed if one of them blocks it.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
};

use profiler_ebpf::names::Names;

use super::pod::{bytes_mut, split};
use crate::{
    procfs::memory_file::{abandon, answers_in_time},
    support::helper_process::{ANSWERS, HelperProcess, INPUT, end_with_thread, transfer},
};

/// Pages that the kernel reserves for the output of an iterator (kernel/bpf/bpf_iter.c): one read(2)
/// returns whole records.
const PAGES: usize = 8;
/// Words of the length of a part, which comes before it; it is 0 after the last one.
const HEADER: usize = 1;

/// A process with its arguments and its environment.
#[derive(Debug)]
pub struct NamesRecord<'a> {
    pub header: &'a Names,
    /// The beginning of the arguments, each ended by a NUL.
    pub args: &'a [u8],
    /// The beginning of the environment.
    pub environment: &'a [u8],
}

impl NamesRecord<'_> {
    /// Whether it has all arguments and the whole environment.
    pub fn is_whole(&self) -> bool {
        self.args.len() as u64 == self.header.args_total
            && self.environment.len() as u64 == self.header.environment_total
    }
}

/// Reads all records.
///
/// # Errors
///
/// If a process blocks the iterator ([`io::ErrorKind::TimedOut`]), the iterator cannot be read, or there
/// is no further process. Some records can have been received before.
pub fn read_names(iterator: &File, mut receive: impl FnMut(NamesRecord<'_>)) -> io::Result<()> {
    // Of this process's heap, so that the child needs none.
    let mut buffer = vec![0; HEADER + PAGES * rustix::param::page_size() / 8];
    let input = Some(iterator.as_fd());
    // SAFETY: `forward` makes only system calls.
    let mut helper = unsafe { HelperProcess::start(input, || forward(&mut buffer)) }?;
    loop {
        if !answers_in_time(&helper)? {
            abandon(helper);
            return Err(io::ErrorKind::TimedOut.into());
        }
        helper
            .answers
            .read_exact(bytes_mut(&mut buffer[..HEADER]))?;
        let length = usize::try_from(buffer[0]).map_err(io::Error::other)?;
        if length == 0 {
            return Ok(());
        }
        let part = bytes_mut(&mut buffer[HEADER..]).get_mut(..length);
        let part = part.ok_or(io::ErrorKind::InvalidData)?;
        helper.answers.read_exact(part)?;
        records(part).for_each(&mut receive);
    }
}

/// The records of a part. `bytes` must be 8-byte aligned.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = NamesRecord<'_>> {
    std::iter::from_fn(move || {
        let header: &Names = split(&mut bytes)?;
        Some(NamesRecord {
            header,
            args: split_padded(&mut bytes, header.args_len)?,
            environment: split_padded(&mut bytes, header.environment_len)?,
        })
    })
}

/// Splits bytes off that are filled up to whole words.
fn split_padded<'a>(bytes: &mut &'a [u8], length: u32) -> Option<&'a [u8]> {
    let length = length as usize;
    let (padded, rest) = bytes.split_at_checked(length.next_multiple_of(8))?;
    *bytes = rest;
    padded.get(..length)
}

/// The child: writes each part of the iterator's output. It ends without the last length after an error.
fn forward(buffer: &mut [u64]) {
    end_with_thread();
    loop {
        let part = bytes_mut(&mut buffer[HEADER..]);
        // SAFETY: a system call on memory of this process.
        let length = unsafe { libc::read(INPUT, part.as_mut_ptr().cast(), part.len()) };
        let Ok(length) = usize::try_from(length) else {
            if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return;
        };
        buffer[0] = length as u64;
        let answer = &mut bytes_mut(buffer)[..8 * HEADER + length];
        // SAFETY: as above.
        let write = |at: *mut u8, rest| unsafe { libc::write(ANSWERS, at.cast(), rest) };
        if !transfer(answer, write) || length == 0 {
            return;
        }
    }
}
