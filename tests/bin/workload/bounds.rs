//! Workloads that one resource bounds.

use std::{
    fs,
    hint::black_box,
    io::Write as _,
    path::Path,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Time for which a thread holds the lock.
const HELD: Duration = Duration::from_micros(50);

/// Threads that do all their work while they hold one lock.
pub fn fight(threads: usize, milliseconds: u64) {
    let lock = Mutex::new(());
    let end = Instant::now() + Duration::from_millis(milliseconds);
    let work = || {
        while Instant::now() < end {
            let _held = lock.lock().expect("no thread panics");
            let until = Instant::now() + HELD;
            while Instant::now() < until {}
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
}

/// Writes to each page of this much memory, again and again.
pub fn sweep(bytes: usize, milliseconds: u64) {
    const PAGE: usize = 4096;
    let mut memory = vec![0_u8; bytes];
    let end = Instant::now() + Duration::from_millis(milliseconds);
    while Instant::now() < end {
        for page in memory.chunks_mut(PAGE) {
            page[0] = page[0].wrapping_add(1);
        }
        black_box(&mut memory);
    }
}

/// Appends blocks to a file in this directory, and forces each of them to the device.
pub fn fsync(directory: &Path, milliseconds: u64) {
    let path = directory.join("fsync");
    let mut file = fs::File::create(&path).expect("a file");
    let end = Instant::now() + Duration::from_millis(milliseconds);
    while Instant::now() < end {
        file.write_all(&[1; 4096]).expect("written");
        file.sync_all().expect("synced");
    }
    fs::remove_file(path).expect("our file");
}
