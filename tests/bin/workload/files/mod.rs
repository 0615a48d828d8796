//! `workload files OPERATION DIRECTORY CALLS`: operations on files of a directory, and counts of
//! their results.
//!
//! Operations on anything else (pipes, sockets) are not counted.

pub mod aio;
mod syscalls;
mod uring;

use std::{ops::AddAssign, ptr::null_mut};

use self::{
    syscalls::{BLOCK, Directory, aligned, call, pipe, socket_pair},
    uring::Data,
};

/// Counts of operations, from the return values of the calls.
#[derive(Default)]
pub struct Counts {
    read_ops: u64,
    read_bytes: u64,
    write_ops: u64,
    write_bytes: u64,
    errors: u64,
    fsyncs: u64,
    opens: u64,
    creates: u64,
    unlinks: u64,
    renames: u64,
    mkdirs: u64,
}

impl Counts {
    /// Counts the result of a read; returns whether it was the last.
    fn read(&mut self, result: i64) -> bool {
        let (ops, bytes) = (&mut self.read_ops, &mut self.read_bytes);
        count(result, ops, bytes, &mut self.errors);
        result <= 0
    }

    /// Counts the result of a write; returns whether it failed.
    fn write(&mut self, result: i64) -> bool {
        let (ops, bytes) = (&mut self.write_ops, &mut self.write_bytes);
        count(result, ops, bytes, &mut self.errors);
        result <= 0
    }

    fn sync(&mut self, result: i64) {
        assert_eq!(result, 0, "synced");
        self.fsyncs.add_assign(1);
    }
}

fn count(result: i64, ops: &mut u64, bytes: &mut u64, errors: &mut u64) {
    if let Ok(result) = u64::try_from(result) {
        *ops += 1;
        *bytes += result;
    } else {
        *errors += 1;
    }
}

/// Executes the operation and prints the counts for `tests/kernel/file.rs`.
pub fn main(operation: &str, directory: &str, calls: &str) {
    let calls: usize = calls.parse().expect("a number");
    let mut counts = Counts::default();
    let mut directory = Directory::new(directory, &mut counts);
    match operation {
        "account" => return account(&mut directory, calls),
        "plain" => plain(&mut directory, calls, 0),
        "direct" => plain(&mut directory, calls, libc::O_DIRECT),
        "at" => at(&mut directory, calls),
        "vectors" => vectors(&mut directory, calls),
        "splice" => splice(&mut directory, calls),
        "sendfile" => sendfile(&mut directory, calls),
        "copy" => copy(&mut directory, calls),
        "sync" => sync(&mut directory, calls),
        "msync" => msync(&mut directory),
        "names" => names(&mut directory, calls),
        "errors" => errors(&mut directory, calls),
        "elsewhere" => elsewhere(calls),
        "uring" => uring::work(&mut directory, calls, 0, Data::Distinct),
        "uring-same" => uring::work(&mut directory, calls, 0, Data::Same),
        "uring-direct" => uring::work(&mut directory, calls, libc::O_DIRECT, Data::Distinct),
        "uring-sync" => uring::work(&mut directory, calls, libc::O_SYNC, Data::Distinct),
        "aio" => aio::work(&mut directory, calls, 0),
        "aio-direct" => aio::work(&mut directory, calls, libc::O_DIRECT),
        "aio-sync" => aio::work(&mut directory, calls, libc::O_DSYNC),
        _ => panic!("unknown operation {operation}"),
    }
    let Counts {
        read_ops,
        read_bytes,
        write_ops,
        write_bytes,
        errors,
        fsyncs,
        opens,
        creates,
        unlinks,
        renames,
        mkdirs,
    } = counts;
    let pid = std::process::id();
    println!(
        "did {operation} {pid} {read_ops} {read_bytes} {write_ops} {write_bytes} {errors} {fsyncs} {opens} {creates} \
         {unlinks} {renames} {mkdirs}"
    );
}

/// write(2), then read(2) up to the end.
fn plain(directory: &mut Directory<'_>, calls: usize, flags: i32) {
    let block = aligned(BLOCK);
    let file = directory.create(flags);
    for _ in 0..calls {
        let result = file.write(block);
        directory.counts.write(result);
    }
    file.rewind();
    loop {
        let result = file.read(block);
        if directory.counts.read(result) {
            break;
        }
    }
    directory.remove();
}

/// pwrite(2) and pread(2).
fn at(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    for index in 0..calls {
        let result = file.write_at(block, index * BLOCK);
        directory.counts.write(result);
    }
    for index in 0..calls {
        let result = file.read_at(block, index * BLOCK);
        directory.counts.read(result);
    }
    // A short read: half a block is left.
    let result = file.read_at(block, calls * BLOCK - BLOCK / 2);
    directory.counts.read(result);
    directory.remove();
}

/// writev(2), pwritev(2), pwritev2(2), and the same for reading.
fn vectors(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    for index in 0..calls {
        let result = file.write_vector(block, index, index * BLOCK);
        directory.counts.write(result);
    }
    file.rewind();
    for index in 0..calls {
        let result = file.read_vector(block, index, index * BLOCK);
        directory.counts.read(result);
    }
    directory.remove();
}

/// splice(2) from a pipe to a file and back.
fn splice(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    let (end, begin) = pipe();
    for _ in 0..calls {
        begin.write(block);
        let result = file.splice_from(&end);
        directory.counts.write(result);
    }
    file.rewind();
    for _ in 0..calls {
        let result = begin.splice_from(&file);
        directory.counts.read(result);
        end.read(block);
    }
    directory.remove();
}

/// sendfile(2) from a file to a file, a socket and a pipe.
fn sendfile(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let from = directory.create(0);
    let to = directory.create(0);
    for _ in 0..calls {
        let result = from.write(block);
        directory.counts.write(result);
    }
    from.rewind();
    for _ in 0..calls {
        let result = to.send_from(&from);
        directory.counts.read(result);
        directory.counts.write(result);
    }
    let (here, there) = socket_pair();
    let (end, begin) = pipe();
    for (into, out) in [(here, there), (begin, end)] {
        from.rewind();
        for _ in 0..calls {
            let result = into.send_from(&from);
            directory.counts.read(result);
            out.read(block);
        }
    }
    directory.remove();
}

/// copy_file_range(2).
fn copy(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let from = directory.create(0);
    let to = directory.create(0);
    for _ in 0..calls {
        let result = from.write(block);
        directory.counts.write(result);
    }
    from.rewind();
    for _ in 0..calls {
        let result = to.copy_from(&from);
        directory.counts.read(result);
        directory.counts.write(result);
    }
    directory.remove();
}

/// Synchronous writes, which count as one write each; fsync(2) of files and of the directory;
/// fdatasync(2).
fn sync(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    for flags in [0, libc::O_SYNC, libc::O_DSYNC] {
        let file = directory.create(flags);
        for _ in 0..calls {
            let result = file.write(block);
            directory.counts.write(result);
        }
        directory.counts.sync(file.sync());
        directory.counts.sync(file.sync_data());
    }
    let itself = directory.open_itself();
    directory.counts.sync(itself.sync());
    directory.remove();
}

/// msync(2) of a mapped file.
fn msync(directory: &mut Directory<'_>) {
    let file = directory.create(0);
    let result = file.write(aligned(BLOCK));
    directory.counts.write(result);
    directory.counts.sync(file.map_and_sync());
    directory.remove();
}

fn names(directory: &mut Directory<'_>, calls: usize) {
    for _ in 0..calls {
        directory.names();
    }
}

/// Failed and short calls.
fn errors(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    let write_only = directory.open_again(libc::O_WRONLY);
    let result = file.write(&block[..1000]);
    directory.counts.write(result);
    for _ in 0..calls {
        // EBADF: not open for reading.
        let result = write_only.read(block);
        assert_eq!(result, -i64::from(libc::EBADF));
        directory.counts.read(result);
        // EFAULT
        let result = file.write_from_nowhere();
        assert_eq!(result, -i64::from(libc::EFAULT));
        directory.counts.write(result);
        // A short read.
        let result = file.read_at(block, 900);
        assert_eq!(result, 100);
        directory.counts.read(result);
        // At the end of the file.
        let result = file.read_at(block, 5000);
        assert_eq!(result, 0);
        directory.counts.read(result);
    }
    directory.remove();
}

/// Descriptors that are not files: pipes, sockets, devices, closed descriptors.
fn elsewhere(calls: usize) {
    let block = aligned(BLOCK);
    let (here, there) = socket_pair();
    let (end, begin) = pipe();
    let zero = syscalls::open("/dev/zero", libc::O_RDWR);
    end.set_nonblocking();
    for _ in 0..calls {
        // EAGAIN
        assert_eq!(end.read(block), -i64::from(libc::EAGAIN));
        begin.write(block);
        end.read(block);
        here.write(block);
        there.read(block);
        zero.read(block);
        zero.write(block);
        assert_eq!(syscalls::read_closed(block), -i64::from(libc::EBADF));
    }
}

/// Reads and writes in a child process; prints the child's own counts of its I/O after its end.
///
/// The kernel's record of an ended process (acct(2)) is a write of the process itself.
fn account(directory: &mut Directory<'_>, calls: usize) {
    let child = call!(fork());
    if child == 0 {
        plain(directory, calls, 0);
        elsewhere(calls);
        copy(directory, calls);
        std::process::exit(0);
    }
    let id = u32::try_from(child).expect("forked");
    let state = libc::WEXITED | libc::WNOWAIT;
    assert_eq!(call!(waitid(libc::P_PID, id, null_mut(), state)), 0);
    let text = std::fs::read_to_string(format!("/proc/{child}/io")).expect("readable");
    let number = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim().parse().expect("a number")
    };
    let numbers = ["rchar:", "wchar:", "syscr:", "syscw:"].map(number);
    println!(
        "account {child} {}",
        numbers.map(|number| number.to_string()).join(" ")
    );
}
