//! io_uring: messages sent and received without send and receive calls.

use std::{net::TcpStream, os::fd::AsRawFd as _};

use io_uring::{
    IoUring, opcode,
    squeue::{Entry, Flags},
    types::Fd,
};

use crate::tcp;

/// Sends `count` messages over a connection; every second operation is executed by a kernel worker.
pub fn messages(count: usize, size: usize) {
    let (sender, receiver) = tcp::pair();
    let mut ring = IoUring::new(4).expect("io_uring");
    let mut message = vec![0; size];
    let length = u32::try_from(size).expect("small");
    for number in 0..count {
        let flags = if number % 2 == 0 {
            Flags::empty()
        } else {
            Flags::ASYNC
        };
        let buffer = message.as_mut_ptr();
        let send = opcode::Send::new(fd(&sender), buffer, length).build();
        let receive = opcode::Recv::new(fd(&receiver), buffer, length).build();
        for entry in [send, receive] {
            let result = execute(&mut ring, &entry.flags(flags));
            assert_eq!(usize::try_from(result), Ok(size));
        }
    }
}

fn fd(socket: &TcpStream) -> Fd {
    Fd(socket.as_raw_fd())
}

/// Submits one operation and waits for its result.
fn execute(ring: &mut IoUring, entry: &Entry) -> i32 {
    // SAFETY: the socket and the buffer outlive the operation, which completes below.
    unsafe { ring.submission().push(entry) }.expect("the queue is empty");
    ring.submit_and_wait(1).expect("submitted");
    ring.completion().next().expect("a completion").result()
}
