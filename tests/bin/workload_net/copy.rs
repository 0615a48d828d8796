//! Data transfer on sockets without send and receive calls.

use std::{
    fs::File,
    io::{Read as _, Write as _, pipe},
    net::{Shutdown, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    thread::spawn,
};

use rustix::{
    fs::sendfile,
    pipe::{SpliceFlags, splice},
};

use crate::tcp;

/// Bytes per read and write.
const PIECE: usize = 1 << 14;

/// A temporary file of this size.
fn file(bytes: usize) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&vec![1; bytes]).expect("space");
    file
}

/// sendfile(2) from a file to a TCP and a Unix socket.
pub fn send_file(bytes: usize) {
    let file = file(bytes);
    let (ours, mut theirs) = tcp::pair();
    let reader = spawn(move || std::io::copy(&mut theirs, &mut std::io::sink()));
    all(&file, &ours, bytes);
    ours.shutdown(Shutdown::Write).expect("connected");
    let read = reader.join().expect("no panic").expect("an end");
    assert_eq!(read, bytes as u64);
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let reader = spawn(move || std::io::copy(&mut theirs, &mut std::io::sink()));
    all(&file, &ours, bytes);
    drop(ours);
    let read = reader.join().expect("no panic").expect("an end");
    assert_eq!(read, bytes as u64);
}

fn all(file: &File, socket: impl AsFd, bytes: usize) {
    let mut offset = 0;
    while offset < bytes as u64 {
        let left = bytes - usize::try_from(offset).expect("small");
        sendfile(&socket, file, Some(&mut offset), left).expect("connected");
    }
}

/// splice(2) from a TCP socket up to the end of the stream, alternating with read(2).
pub fn splice_out(bytes: usize) {
    let (mut ours, mut theirs) = tcp::pair();
    let writer = spawn(move || {
        let piece = vec![0; PIECE];
        for _ in 0..bytes / PIECE {
            ours.write_all(&piece).expect("connected");
        }
    });
    let (mut reader, pipe) = pipe().expect("a pipe");
    let mut left = bytes;
    let mut buffer = vec![0; PIECE];
    while left != 0 {
        theirs.read_exact(&mut buffer[..100]).expect("data");
        let spliced = splice_once(&theirs, &pipe, PIECE - 100);
        reader.read_exact(&mut buffer[..spliced]).expect("data");
        left -= 100 + spliced;
        left = left.min(bytes);
        if left < 100 {
            theirs.read_exact(&mut buffer[..left]).expect("data");
            left = 0;
        }
    }
    writer.join().expect("no panic");
    assert_eq!(splice_once(&theirs, &pipe, PIECE), 0, "the end");
}

fn splice_once(from: &TcpStream, to: impl AsFd, bytes: usize) -> usize {
    splice(from, None, to, None, bytes, SpliceFlags::empty()).expect("connected")
}

/// splice(2) from a Unix socket.
pub fn unix_splice(bytes: usize) {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let writer = spawn(move || ours.write_all(&vec![0; bytes]).expect("connected"));
    let (mut reader, pipe) = pipe().expect("a pipe");
    let mut left = bytes;
    let mut buffer = vec![0; PIECE];
    while left != 0 {
        let spliced = splice(&theirs, None, &pipe, None, PIECE, SpliceFlags::empty());
        let spliced = spliced.expect("connected");
        reader.read_exact(&mut buffer[..spliced]).expect("data");
        left -= spliced;
    }
    writer.join().expect("no panic");
}
