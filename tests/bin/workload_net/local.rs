//! Unix sockets, and sockets that are passed to other processes.

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

use crate::{finish, report, tcp};

/// Sends `count` messages over a pair of stream sockets and over a pair of datagram sockets.
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

/// Reads until the end in a thread, so that the sender does not block.
fn drain(mut stream: TcpStream) {
    spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
}

fn send(stream: &mut TcpStream, count: usize) {
    for _ in 0..count {
        assert_eq!(stream.write(&[0; 10]).expect("connected"), 10);
    }
}

/// Sends messages of 10 bytes over a connection, and passes the socket to a process that sends
/// more.
pub fn pass(own: usize, other: usize) {
    let (outside, inside) = UnixDatagram::pair().expect("sockets");
    let child = this_program()
        .args(["take", &other.to_string()])
        .stdin(Stdio::from(OwnedFd::from(inside)))
        .spawn()
        .expect("this program starts");
    let (mut ours, other_end) = tcp::pair();
    drain(other_end);
    send(&mut ours, own);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = [ours.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sockets)));
    let word = [std::io::IoSlice::new(b"!")];
    sendmsg(&outside, &word, &mut ancillary, SendFlags::empty()).expect("the child receives");
    finish(child);
    report("giver", process::id(), &[]);
}

/// The process that receives the socket.
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
    report("taker", process::id(), &[]);
}

/// Sends messages over a connection inherited as stdin. Without one, starts a child with one.
pub fn inherit(count: usize) {
    // SAFETY: the descriptor is not used elsewhere.
    let standard_input = unsafe { OwnedFd::from_raw_fd(0) };
    let inherited = TcpStream::from(standard_input);
    if inherited.peer_addr().is_ok() {
        send(&mut { inherited }, count);
        report("heir", process::id(), &[]);
        return;
    }
    let (ours, other_end) = tcp::pair();
    drain(other_end);
    let child = this_program()
        .args(["inherit", &count.to_string()])
        .stdin(Stdio::from(OwnedFd::from(ours)))
        .spawn()
        .expect("this program starts");
    finish(child);
    report("parent", process::id(), &[]);
}
