//! Linux AIO (`io_submit`).

use std::{
    fs::OpenOptions,
    io::{Seek as _, SeekFrom},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    time::{Duration, Instant},
};

use super::syscalls::{BLOCK, Directory, aligned, call};

/// Operations per submission.
const BATCH: usize = 32;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// `struct iocb` (include/uapi/linux/aio_abi.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    more: i64,
}

/// Writes and reads.
pub fn work(directory: &mut Directory<'_>, calls: usize, flags: i32) {
    let file = directory.create(flags);
    let memory = aligned(BLOCK * BATCH);
    let mut context = 0_u64;
    let made = call!(syscall(libc::SYS_io_setup, BATCH, &raw mut context));
    assert_eq!(made, 0);
    // The last read is at the end of the file.
    for (opcode, calls) in [(WRITE, calls), (READ, calls + 1)] {
        let indices: Vec<usize> = (0..calls).collect();
        for batch in indices.chunks(BATCH) {
            let iocbs: Vec<Iocb> = batch
                .iter()
                .map(|index| Iocb {
                    opcode,
                    fd: u32::try_from(file.raw()).expect("a descriptor"),
                    buffer: memory[index % BATCH * BLOCK..].as_mut_ptr() as u64,
                    bytes: BLOCK as u64,
                    offset: i64::try_from(index * BLOCK).expect("small"),
                    ..Iocb::default()
                })
                .collect();
            for result in submit(context, &iocbs) {
                if opcode == WRITE {
                    directory.counts.write(result);
                } else {
                    directory.counts.read(result);
                }
            }
        }
    }
    call!(syscall(libc::SYS_io_destroy, context));
    directory.remove();
}

/// Reads blocks of a disk in random order, for this time.
pub fn read_randomly(disk: &str, milliseconds: u64) {
    let end = Instant::now() + Duration::from_millis(milliseconds);
    let mut random = 1_u64;
    let blocks = std::iter::repeat_with(|| {
        // Of the MMIX computer.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        random >> 33
    });
    read_disk(disk, blocks, |_| Instant::now() < end);
}

/// Reads every other block of a disk, so that the kernel does not merge the requests, in this many
/// batches of 32.
pub fn read_every_other(disk: &str, batches: u64) {
    read_disk(disk, (0..).step_by(2), |batch| batch < batches);
}

/// Reads blocks in batches, without the page cache, while there is a next batch.
fn read_disk(disk: &str, mut order: impl Iterator<Item = u64>, has_next: impl Fn(u64) -> bool) {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    let disk = options.open(disk).expect("a disk");
    let blocks = (&disk).seek(SeekFrom::End(0)).expect("a size") / BLOCK as u64;
    let memory = aligned(BLOCK * BATCH);
    let mut context = 0_u64;
    let made = call!(syscall(libc::SYS_io_setup, BATCH, &raw mut context));
    assert_eq!(made, 0);
    for _ in (0..).take_while(|batch| has_next(*batch)) {
        let iocbs: Vec<Iocb> = order
            .by_ref()
            .take(BATCH)
            .enumerate()
            .map(|(index, block)| Iocb {
                opcode: READ,
                fd: disk.as_raw_fd().cast_unsigned(),
                buffer: memory[index * BLOCK..].as_mut_ptr() as u64,
                bytes: BLOCK as u64,
                offset: (block % blocks * BLOCK as u64).cast_signed(),
                ..Iocb::default()
            })
            .collect();
        let results = submit(context, &iocbs);
        assert!(
            results
                .iter()
                .all(|result| usize::try_from(*result) == Ok(BLOCK))
        );
    }
    call!(syscall(libc::SYS_io_destroy, context));
}

/// Submits all operations and waits for their results.
fn submit(context: u64, iocbs: &[Iocb]) -> Vec<i64> {
    let pointers: Vec<_> = iocbs.iter().map(std::ptr::from_ref).collect();
    let (first, length) = (pointers.as_ptr(), iocbs.len());
    let submitted = call!(syscall(libc::SYS_io_submit, context, length, first));
    assert_eq!(usize::try_from(submitted), Ok(length));
    let mut events = vec![Event::default(); length];
    let (into, forever) = (events.as_mut_ptr(), std::ptr::null::<u8>());
    let get = libc::SYS_io_getevents;
    let done = call!(syscall(get, context, length, length, into, forever));
    assert_eq!(done, submitted);
    events.iter().map(|event| event.result).collect()
}
