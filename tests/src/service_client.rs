//! A client of `profiler serve` that sends whatever it wants.

use std::{
    io::{IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{PidfdFlags, Uid, pidfd_open},
    thread::set_thread_res_uid,
};

use crate::runs::{TIMEOUT, pid_of};

/// Kinds of messages.
pub const ATTACH: u32 = 3;
pub const ACCEPTED: u8 = 15;
pub const READY: u8 = 16;
pub const END: u8 = 20;
pub const REFUSED: u8 = 21;

/// A request for a profile of processes.
pub const REQUEST: &str = concat!(
    r#"{"protocol":1,"schema_version":4,"target":"processes","interval_ns":1000000000,"#,
    r#""source":null,"groups":null,"events":null,"threads":false,"strict":false,"#,
    r#""hostname":null}"#
);

/// [`REQUEST`] with a change.
#[must_use]
pub fn request(part: &str, replacement: &str) -> String {
    assert!(REQUEST.contains(part), "{part}");
    REQUEST.replace(part, replacement)
}

/// A message.
#[must_use]
pub fn frame(kind: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short");
    [&length.to_le_bytes()[..], &kind.to_le_bytes(), content].concat()
}

/// A connection.
pub struct Client(pub UnixStream);

impl Client {
    /// Connects as root.
    pub fn of_root(socket: &Path) -> Self {
        let socket = UnixStream::connect(socket).expect("connects");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        Self(socket)
    }

    /// Connects as a user: that of the thread which does.
    pub fn of_user(socket: &Path, uid: u32) -> Self {
        let connect = || {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(uid, uid, uid).expect("root becomes another user");
            Self::of_root(socket)
        };
        std::thread::scope(|scope| scope.spawn(connect).join().expect("no panic"))
    }

    /// Sends bytes. The service can close the connection before it has read everything.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// Names a process.
    pub fn attach(&mut self, pid: u32) {
        let pidfd: OwnedFd = pidfd_open(pid_of(pid), PidfdFlags::empty()).expect("it is alive");
        let pidfds = [pidfd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&pidfds)));
        let bytes = frame(ATTACH, b"");
        let bytes = [IoSlice::new(&bytes)];
        let _ = sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL);
    }

    /// Kind and content of the next message; `None` at the end of the connection.
    pub fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 8];
        self.0.read_exact(&mut header).ok()?;
        let [a, b, c, d, kind, ..] = header;
        let mut content = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        self.0.read_exact(&mut content).ok()?;
        Some((kind, content))
    }

    /// The reason of a refusal, which is the next message.
    #[track_caller]
    pub fn refusal(&mut self) -> String {
        let (kind, content) = self.message().expect("an answer");
        let text = String::from_utf8_lossy(&content).into_owned();
        assert_eq!(kind, REFUSED, "{text}");
        text
    }

    /// Kind of the first message that is not about the acceptance.
    pub fn outcome(&mut self) -> Option<u8> {
        loop {
            let (kind, _) = self.message()?;
            if kind != ACCEPTED {
                return Some(kind);
            }
        }
    }
}
