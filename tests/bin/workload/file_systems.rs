//! File systems that this process serves while a command runs: `sized`, whose blocks are smaller than
//! its transfers, and `silent-0`, `silent-1`, …, whose sizes the server tells only while there is a file
//! `answer` in the directory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

use super::fuse::{self, INIT, Request, STATFS};

const DEVICE: &str = "/dev/fuse";
const MODE: u32 = libc::S_IFDIR | 0o755;

/// Size in blocks of `sized`; free, available; limit and free number of files.
const COUNTS: [u64; 5] = [120_699_413, 60_000_000, 50_000_000, 1_000_000, 900_000];
/// Bytes of a transfer and of a block; the longest name.
const TRANSFER: u32 = 1 << 20;
const BLOCK: u32 = 4096;
const NAME: u32 = 255;

/// Mounts `sized` and this many silent file systems below a directory, and returns the code of the
/// command.
pub fn main(directory: &Path, silent: usize, command: &[&str]) -> ExitCode {
    serve(&directory.join("sized"), None);
    for number in 0..silent {
        let point = directory.join(format!("silent-{number}"));
        serve(&point, Some(directory.join("answer")));
    }
    let status = Command::new(command[0]).args(&command[1..]).status();
    let code = status.expect("it starts").code();
    ExitCode::from(code.map_or(1, |code| u8::try_from(code).expect("a code")))
}

/// Serves a file system, whose size is told when there is a file of this name.
fn serve(point: &Path, needed: Option<PathBuf>) {
    fs::create_dir_all(point).expect("made");
    let mut device = fuse::mount(DEVICE.as_ref(), point, MODE);
    thread::spawn(move || {
        while let Some(request) = Request::next(&mut device) {
            match request.opcode {
                INIT => request.answer(&mut device, 0, &fuse::initial()),
                STATFS => {
                    while needed.as_ref().is_some_and(|needed| !needed.exists()) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    request.answer(&mut device, 0, &size());
                }
                _ => request.answer(&mut device, libc::ENOSYS, &[]),
            }
        }
    });
}

fn size() -> Vec<u32> {
    let halves = |count: u64| count.to_ne_bytes().as_chunks::<4>().0.to_vec();
    let mut words: Vec<u32> = COUNTS
        .into_iter()
        .flat_map(halves)
        .map(u32::from_ne_bytes)
        .collect();
    words.extend([TRANSFER, NAME, BLOCK]);
    // Padding and spare words.
    words.resize(20, 0);
    words
}
