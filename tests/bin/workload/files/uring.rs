//! io_uring.

use io_uring::{IoUring, opcode, squeue::Entry, types::Fd as Target};

use super::syscalls::{BLOCK, Directory, aligned, pipe};

/// Operations per submission.
const BATCH: usize = 32;

/// `user_data` of the operations in flight.
#[derive(Clone, Copy)]
pub enum Data {
    Distinct,
    Same,
}

/// Writes and reads with each of the opcodes, and syncs.
pub fn work(directory: &mut Directory<'_>, calls: usize, flags: i32, data: Data) {
    let mut ring = IoUring::new(64).expect("io_uring");
    let file = directory.create(flags);
    let blocks: Vec<libc::iovec> = aligned(BLOCK * BATCH)
        .chunks_mut(BLOCK)
        .map(|block| libc::iovec {
            iov_base: block.as_mut_ptr().cast(),
            iov_len: BLOCK,
        })
        .collect();
    // SAFETY: the memory is leaked.
    unsafe { ring.submitter().register_buffers(&blocks) }.expect("registered");
    let bytes = u32::try_from(BLOCK).expect("small");
    let target = Target(file.raw());
    let vector = |index: usize| &raw const blocks[index % BATCH];
    let block = |index: usize| blocks[index % BATCH].iov_base.cast::<u8>();
    let number = |index: usize| u16::try_from(index % BATCH).expect("small");
    macro_rules! operation {
        ($plain:ident, $vectored:ident, $fixed:ident) => {
            |index: usize| {
                let at = (index * BLOCK) as u64;
                match index % 3 {
                    0 => opcode::$plain::new(target, block(index), bytes)
                        .offset(at)
                        .build(),
                    1 => opcode::$vectored::new(target, vector(index), 1)
                        .offset(at)
                        .build(),
                    _ => opcode::$fixed::new(target, block(index), bytes, number(index))
                        .offset(at)
                        .build(),
                }
            }
        };
    }
    let mut all = |calls, entry: &dyn Fn(usize) -> Entry, each: &mut dyn FnMut(i64)| {
        all(&mut ring, data, calls, entry, each);
    };
    let write = operation!(Write, Writev, WriteFixed);
    all(calls, &write, &mut |result| {
        directory.counts.write(result);
    });
    // The last read is at the end of the file.
    let read = operation!(Read, Readv, ReadFixed);
    all(calls + 1, &read, &mut |result| {
        directory.counts.read(result);
    });
    let sync = |_| opcode::Fsync::new(target).build();
    all(1, &sync, &mut |result| directory.counts.sync(result));
    // Not file I/O.
    let (end, begin) = pipe();
    let (from, to) = (Target(end.raw()), Target(begin.raw()));
    let write = |index| opcode::Write::new(to, block(index), bytes).build();
    all(3, &write, &mut |result| assert!(result > 0));
    let read = |index| opcode::Read::new(from, block(index), bytes).build();
    all(3, &read, &mut |result| assert!(result > 0));
    directory.remove();
}

fn all(
    ring: &mut IoUring,
    data: Data,
    calls: usize,
    entry: &dyn Fn(usize) -> Entry,
    each: &mut dyn FnMut(i64),
) {
    let indices: Vec<usize> = (0..calls).collect();
    for batch in indices.chunks(BATCH) {
        for index in batch {
            let data = match data {
                Data::Distinct => *index as u64,
                Data::Same => 0,
            };
            let entry = entry(*index).user_data(data);
            // SAFETY: memory and files live until the operation is complete.
            unsafe { ring.submission().push(&entry) }.expect("room");
        }
        ring.submit_and_wait(batch.len()).expect("submitted");
        ring.completion()
            .for_each(|done| each(done.result().into()));
    }
}
