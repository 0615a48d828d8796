//! `workload files HOW DIRECTORY CALLS`: works on files of a directory, and prints what the calls returned.
//!
//! Whatever is not on a file of the directory (pipes, sockets) is done and not told.

mod aio;
mod calls;
mod uring;

use std::ops::AddAssign;

use self::calls::{BLOCK, Directory, aligned, pipe, socket_pair};

/// What was done with files, by what the calls returned.
#[derive(Default)]
pub struct Tally {
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

impl Tally {
    /// A read, with its result; whether that was the end.
    fn read(&mut self, result: i64) -> bool {
        let (ops, bytes) = (&mut self.read_ops, &mut self.read_bytes);
        count(result, ops, bytes, &mut self.errors);
        result <= 0
    }

    /// A write, with its result.
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

/// Does it, and prints the line that `tests/kernel/file.rs` reads.
pub fn main(how: &str, directory: &str, calls: &str) {
    let calls: usize = calls.parse().expect("a number");
    let mut tally = Tally::default();
    let mut directory = Directory::new(directory, &mut tally);
    match how {
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
        "uring" => uring::work(&mut directory, calls, 0),
        "uring-direct" => uring::work(&mut directory, calls, libc::O_DIRECT),
        "uring-sync" => uring::work(&mut directory, calls, libc::O_SYNC),
        "aio" => aio::work(&mut directory, calls, 0),
        "aio-direct" => aio::work(&mut directory, calls, libc::O_DIRECT),
        "aio-sync" => aio::work(&mut directory, calls, libc::O_DSYNC),
        _ => panic!("{how}: what is that?"),
    }
    let Tally {
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
    } = tally;
    let pid = std::process::id();
    println!(
        "did {how} {pid} {read_ops} {read_bytes} {write_ops} {write_bytes} {errors} {fsyncs} {opens} {creates} \
         {unlinks} {renames} {mkdirs}"
    );
}

/// write, then read to the end.
fn plain(directory: &mut Directory<'_>, calls: usize, flags: i32) {
    let block = aligned(BLOCK);
    let file = directory.create(flags);
    for _ in 0..calls {
        let result = file.write(block);
        directory.tally.write(result);
    }
    file.rewind();
    loop {
        let result = file.read(block);
        if directory.tally.read(result) {
            break;
        }
    }
    directory.remove();
}

/// pwrite and pread.
fn at(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    for index in 0..calls {
        let result = file.write_at(block, index * BLOCK);
        directory.tally.write(result);
    }
    for index in 0..calls {
        let result = file.read_at(block, index * BLOCK);
        directory.tally.read(result);
    }
    // The last one is short: half a block is left.
    let result = file.read_at(block, calls * BLOCK - BLOCK / 2);
    directory.tally.read(result);
    directory.remove();
}

/// writev, pwritev, pwritev2, and the same for reading.
fn vectors(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    for index in 0..calls {
        let result = file.write_vector(block, index, index * BLOCK);
        directory.tally.write(result);
    }
    file.rewind();
    for index in 0..calls {
        let result = file.read_vector(block, index, index * BLOCK);
        directory.tally.read(result);
    }
    directory.remove();
}

/// From a pipe to a file and back.
fn splice(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    let (end, begin) = pipe();
    for _ in 0..calls {
        begin.write(block);
        let result = file.splice_from(&end);
        directory.tally.write(result);
    }
    file.rewind();
    for _ in 0..calls {
        let result = begin.splice_from(&file);
        directory.tally.read(result);
        end.read(block);
    }
    directory.remove();
}

/// From a file to a file, to a socket and to a pipe.
fn sendfile(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let from = directory.create(0);
    let to = directory.create(0);
    for _ in 0..calls {
        let result = from.write(block);
        directory.tally.write(result);
    }
    from.rewind();
    for _ in 0..calls {
        let result = to.send_from(&from);
        directory.tally.read(result);
        directory.tally.write(result);
    }
    let (here, there) = socket_pair();
    let (end, begin) = pipe();
    for (into, out) in [(here, there), (begin, end)] {
        from.rewind();
        for _ in 0..calls {
            let result = into.send_from(&from);
            directory.tally.read(result);
            out.read(block);
        }
    }
    directory.remove();
}

/// `copy_file_range`.
fn copy(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let from = directory.create(0);
    let to = directory.create(0);
    for _ in 0..calls {
        let result = from.write(block);
        directory.tally.write(result);
    }
    from.rewind();
    for _ in 0..calls {
        let result = to.copy_from(&from);
        directory.tally.read(result);
        directory.tally.write(result);
    }
    directory.remove();
}

/// Writes that sync are one write each; fsync of files and of the directory, and fdatasync.
fn sync(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    for flags in [0, libc::O_SYNC, libc::O_DSYNC] {
        let file = directory.create(flags);
        for _ in 0..calls {
            let result = file.write(block);
            directory.tally.write(result);
        }
        directory.tally.sync(file.sync());
        directory.tally.sync(file.sync_data());
    }
    let itself = directory.open_itself();
    directory.tally.sync(itself.sync());
    directory.remove();
}

/// A sync of memory that is a file.
fn msync(directory: &mut Directory<'_>) {
    let file = directory.create(0);
    let result = file.write(aligned(BLOCK));
    directory.tally.write(result);
    directory.tally.sync(file.map_and_sync());
    directory.remove();
}

fn names(directory: &mut Directory<'_>, calls: usize) {
    for _ in 0..calls {
        directory.names();
    }
}

/// What fails, and what returns less than it was asked for.
fn errors(directory: &mut Directory<'_>, calls: usize) {
    let block = aligned(BLOCK);
    let file = directory.create(0);
    let blind = directory.open_again(libc::O_WRONLY);
    let result = file.write(&block[..1000]);
    directory.tally.write(result);
    for _ in 0..calls {
        // EBADF: not open for that.
        let result = blind.read(block);
        assert_eq!(result, -i64::from(libc::EBADF));
        directory.tally.read(result);
        // EFAULT
        let result = file.write_from_nowhere();
        assert_eq!(result, -i64::from(libc::EFAULT));
        directory.tally.write(result);
        // Short.
        let result = file.read_at(block, 900);
        assert_eq!(result, 100);
        directory.tally.read(result);
        // The end.
        let result = file.read_at(block, 5000);
        assert_eq!(result, 0);
        directory.tally.read(result);
    }
    directory.remove();
}

/// No file at all: pipes, sockets, devices, descriptors that are not open.
fn elsewhere(calls: usize) {
    let block = aligned(BLOCK);
    let (here, there) = socket_pair();
    let (end, begin) = pipe();
    let zero = calls::open("/dev/zero", libc::O_RDWR);
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
        assert_eq!(calls::read_nothing(block), -i64::from(libc::EBADF));
    }
}

/// All kinds of reads and writes, and at last what the kernel says of them, with what it takes to tell that.
fn account(directory: &mut Directory<'_>, calls: usize) {
    const LENGTH: usize = 128;
    plain(directory, calls, 0);
    elsewhere(calls);
    copy(directory, calls);
    let io = calls::open("/proc/self/io", libc::O_RDONLY);
    let mut text = [0; 1000];
    let length = io.read(&mut text);
    let text =
        String::from_utf8_lossy(&text[..usize::try_from(length).expect("read")]).into_owned();
    let number = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim().parse().expect("a number")
    };
    let line = format!(
        "account {} {} {} {} {}",
        std::process::id(),
        number("rchar:") + text.len() as u64,
        number("wchar:") + LENGTH as u64,
        number("syscr:") + 1,
        number("syscw:") + 1,
    );
    calls::say(format!("{line:<0$}\n", LENGTH - 1).as_bytes());
}
