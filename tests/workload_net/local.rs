//! Unix sockets, and sockets that go from one process to another.

use std::{
    io::{Read as _, Write as _, stdin},
    net::TcpStream,
    os::{
        fd::{AsFd as _, FromRawFd as _, OwnedFd},
        unix::net::{UnixDatagram, UnixStream},
    },
    process::{self, Command, Stdio},
    thread::spawn,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::{finish, tcp, tell};

/// So many messages through a pair of stream sockets, and as many through a pair of datagram sockets.
pub fn messages(count: usize, size: usize) {
    let mut message = vec![0; size];
    let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
    for _ in 0..count {
        assert_eq!(ours.write(&message).expect("connected"), size);
        assert_eq!(theirs.read(&mut message).expect("data"), size);
    }
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    for _ in 0..count {
        assert_eq!(ours.send(&message).expect("connected"), size);
        assert_eq!(theirs.recv(&mut message).expect("data"), size);
    }
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("our path"))
}

/// Reads to the end, so that nobody waits.
fn swallow(mut stream: TcpStream) {
    spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
}

fn send(stream: &mut TcpStream, count: usize) {
    for _ in 0..count {
        assert_eq!(stream.write(&[0; 10]).expect("connected"), 10);
    }
}

/// Sends some messages of 10 bytes over a connection, and lets a process send others that got it from us by a message.
pub fn pass(mine: usize, theirs: usize) {
    let (door, inside) = UnixDatagram::pair().expect("sockets");
    let child = this_program()
        .args(["take", &theirs.to_string()])
        .stdin(Stdio::from(OwnedFd::from(inside)))
        .spawn()
        .expect("another of us");
    let (mut ours, other_end) = tcp::pair();
    swallow(other_end);
    send(&mut ours, mine);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = [ours.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sockets)));
    let word = [std::io::IoSlice::new(b"!")];
    sendmsg(&door, &word, &mut ancillary, SendFlags::empty()).expect("it listens");
    finish(child);
    tell("giver", process::id(), &[]);
}

/// The process that gets it.
pub fn take(count: usize) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0];
    let mut words = [std::io::IoSliceMut::new(&mut word)];
    recvmsg(stdin(), &mut words, &mut ancillary, RecvFlags::empty()).expect("a message");
    let socket = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    send(&mut TcpStream::from(socket.expect("a socket")), count);
    tell("taker", process::id(), &[]);
}

/// Sends messages over the connection that is our stdin; without one, lets a child do that with one of ours.
pub fn inherit(count: usize) {
    // SAFETY: nobody else uses it.
    let standard_input = unsafe { OwnedFd::from_raw_fd(0) };
    let inherited = TcpStream::from(standard_input);
    if inherited.peer_addr().is_ok() {
        send(&mut { inherited }, count);
        tell("heir", process::id(), &[]);
        return;
    }
    let (ours, other_end) = tcp::pair();
    swallow(other_end);
    let child = this_program()
        .args(["inherit", &count.to_string()])
        .stdin(Stdio::from(OwnedFd::from(ours)))
        .spawn()
        .expect("another of us");
    finish(child);
    tell("parent", process::id(), &[]);
}
