//! io_uring.

use io_uring::{IoUring, opcode, squeue::Entry, types::Fd as Target};

use super::syscalls::{BLOCK, Directory, aligned, pipe};

/// Operations per submission.
const BATCH: usize = 32;

/// Writes and reads with each of the opcodes, and syncs.
pub fn work(directory: &mut Directory<'_>, calls: usize, flags: i32) {
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
    all(
        &mut ring,
        calls,
        operation!(Write, Writev, WriteFixed),
        |result| {
            directory.counts.write(result);
        },
    );
    // The last read is at the end of the file.
    all(
        &mut ring,
        calls + 1,
        operation!(Read, Readv, ReadFixed),
        |result| {
            directory.counts.read(result);
        },
    );
    let sync = |_| opcode::Fsync::new(target).build();
    all(&mut ring, 1, sync, |result| directory.counts.sync(result));
    // Not file I/O.
    let (end, begin) = pipe();
    let (from, to) = (Target(end.raw()), Target(begin.raw()));
    let write = |index| opcode::Write::new(to, block(index), bytes).build();
    all(&mut ring, 3, write, |result| assert!(result > 0));
    let read = |index| opcode::Read::new(from, block(index), bytes).build();
    all(&mut ring, 3, read, |result| assert!(result > 0));
    directory.remove();
}

fn all(
    ring: &mut IoUring,
    calls: usize,
    entry: impl Fn(usize) -> Entry,
    mut each: impl FnMut(i64),
) {
    let distinct = needs_distinct_data();
    let indices: Vec<usize> = (0..calls).collect();
    for batch in indices.chunks(BATCH) {
        for index in batch {
            let data = if distinct { *index } else { 0 };
            let entry = entry(*index).user_data(data as u64);
            // SAFETY: memory and files live until the operation is complete.
            unsafe { ring.submission().push(&entry) }.expect("room");
        }
        ring.submit_and_wait(batch.len()).expect("submitted");
        ring.completion()
            .for_each(|done| each(done.result().into()));
    }
}

/// Whether the kernel is older than 5.18, where only `user_data` tells operations in flight apart.
fn needs_distinct_data() -> bool {
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy();
    let mut numbers = release.split('.').map_while(|number| number.parse().ok());
    (numbers.next(), numbers.next()) < (Some(5_u32), Some(18_u32))
}
