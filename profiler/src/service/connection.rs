//! The connection of one client, as the process that profiles for it sees it.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::socket_peercred,
};

use super::protocol::{
    Accepted, Frame, FrameReader, Kind, MAX_PROCESSES, Refused, Request, RequestedTarget, send_json,
};
use crate::{
    failure::{Failure, Reason},
    support::log::harmless_message,
};

/// Time from the connection to the end of the request, and from the answer to the end of the processes
/// to profile, however slowly the bytes come.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the profile of a client that does not read ends. It can be stopped for a while.
const STALLED: Duration = Duration::from_secs(60);

/// A client whose request has arrived.
#[derive(Debug)]
pub struct Client {
    pub socket: UnixStream,
    /// Its user, from the kernel.
    pub uid: u32,
    pub request: Request,
}

impl Client {
    /// The client at `socket`, whose request has been received.
    ///
    /// # Errors
    ///
    /// When the socket has no user.
    pub fn new(socket: UnixStream, request: Request) -> Result<Self, Failure> {
        let credentials = socket_peercred(&socket).map_err(|error| failed(error.into()))?;
        socket.set_write_timeout(Some(STALLED)).map_err(failed)?;
        Ok(Self {
            socket,
            uid: credentials.uid.as_raw(),
            request,
        })
    }

    /// Tells the client the path of the socket for marks. Returns the requested processes, in the
    /// pid namespace of the service; all are of the client's user.
    ///
    /// # Errors
    ///
    /// When the client has gone, or may not profile a process.
    pub fn attach(&self, marks: Option<&Path>) -> Result<Vec<u32>, Failure> {
        let accepted = Accepted {
            socket: marks.map(|path| path.to_string_lossy().into_owned()),
        };
        send_json(&mut &self.socket, Kind::Accepted, &accepted).map_err(failed)?;
        if self.request.target != RequestedTarget::Processes {
            return Ok(Vec::new());
        }
        let (frame, pidfds) = message(&self.socket)?;
        if frame.kind != Kind::Attach || pidfds.is_empty() {
            return Err(usage("no processes"));
        }
        pidfds
            .iter()
            .map(|pidfd| process_of(pidfd, self.uid))
            .collect()
    }
}

/// The connection fails, or a message is late.
#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
pub fn failed(error: io::Error) -> Failure {
    let message = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("client: no message within {} s", TIMEOUT.as_secs())
        }
        _ => format!("client: {error}"),
    };
    Failure::new(Reason::Output, message)
}

/// The next message, with the descriptors that come with it. All of it must come in time.
fn message(socket: &UnixStream) -> Result<(Frame, Vec<OwnedFd>), Failure> {
    let deadline = Instant::now() + TIMEOUT;
    let mut received = Received::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        socket.set_read_timeout(Some(left)).map_err(failed)?;
        received.read(socket).map_err(failed)?;
        if let Some(frame) = received.frames.next_frame().map_err(usage)? {
            return Ok((frame, received.descriptors));
        }
    }
}

/// Tells the client why there is no profile.
pub fn refuse(mut socket: &UnixStream, failure: &Failure) {
    let refused = Refused {
        code: failure.reason as u8,
        why: harmless_message(&failure.message),
    };
    // A client that has gone needs no answer.
    let _ = send_json(&mut socket, Kind::Refused, &refused);
}

/// A message is not what was to come.
#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
pub fn usage(error: impl ToString) -> Failure {
    Failure::new(Reason::Usage, format!("request: {}", error.to_string()))
}

/// Bytes and descriptors.
#[derive(Default)]
struct Received {
    frames: FrameReader,
    descriptors: Vec<OwnedFd>,
}

impl Received {
    fn read(&mut self, socket: &UnixStream) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PROCESSES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let mut buffers = [io::IoSliceMut::new(&mut bytes)];
        let message = recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                self.descriptors.extend(descriptors);
            }
        }
        if self.descriptors.len() > MAX_PROCESSES {
            return Err(io::Error::other("too many processes"));
        }
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.frames.read_from(&mut &bytes[..message.bytes])?;
        Ok(())
    }
}

/// The process of a pidfd, if the user may profile it.
fn process_of(pidfd: &OwnedFd, uid: u32) -> Result<u32, Failure> {
    let gone = || Failure::new(Reason::Target, "the process has ended");
    let pid = pid_of(pidfd).ok_or_else(gone)?;
    let owner = fs::metadata(format!("/proc/{pid}"))
        .map_err(|_| gone())?
        .uid();
    // The number has not been given to another process meanwhile.
    if pid_of(pidfd) != Some(pid) {
        return Err(gone());
    }
    if owner != uid && uid != 0 {
        let message = format!("process {pid} belongs to user {owner}");
        return Err(Failure::new(Reason::Privilege, message));
    }
    Ok(pid)
}

/// The process id in this pid namespace; `None` for a process that has ended, or is not in it.
fn pid_of(pidfd: &OwnedFd) -> Option<u32> {
    let path = Path::new("/proc/self/fdinfo").join(pidfd.as_fd().as_raw_fd().to_string());
    let text = fs::read_to_string(path).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid != 0)
}
