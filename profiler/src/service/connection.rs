//! The connection of one client, as the process that profiles for it sees it.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    path::Path,
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::socket_peercred,
};

use super::protocol::{
    Accepted, Frame, FrameReader, Kind, MAX_PROCESSES, Refused, Request, RequestedTarget, VERSION,
    send_json,
};
use crate::{
    failure::{Failure, Reason},
    schema::SCHEMA_VERSION,
};

/// Time in which the request must arrive.
const TIMEOUT: Duration = Duration::from_secs(5);
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
    /// Receives the request.
    ///
    /// # Errors
    ///
    /// When there is none, or it is not allowed. The client has been told then.
    pub fn accept(socket: UnixStream) -> Result<Self, Failure> {
        let received = Self::receive(&socket);
        match received {
            Ok((uid, request)) => Ok(Self {
                socket,
                uid,
                request,
            }),
            Err(failure) => {
                refuse(&socket, &failure);
                Err(failure)
            }
        }
    }

    fn receive(socket: &UnixStream) -> Result<(u32, Request), Failure> {
        let uid = socket_peercred(socket)
            .map_err(|error| failed(error.into()))?
            .uid
            .as_raw();
        socket.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        socket.set_write_timeout(Some(STALLED)).map_err(failed)?;
        let (frame, _) = message(socket)?;
        let request = frame.json(Kind::Request).map_err(usage)?;
        check_versions(&request)?;
        Ok((uid, request))
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

#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
fn failed(error: io::Error) -> Failure {
    let message = match error.kind() {
        io::ErrorKind::WouldBlock => format!("client: no message within {} s", TIMEOUT.as_secs()),
        _ => format!("client: {error}"),
    };
    Failure::new(Reason::Output, message)
}

/// The next message, with the descriptors that come with it.
fn message(socket: &UnixStream) -> Result<(Frame, Vec<OwnedFd>), Failure> {
    let mut received = Received::default();
    loop {
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
        why: failure.message.clone(),
    };
    // A client that has gone needs no answer.
    let _ = send_json(&mut socket, Kind::Refused, &refused);
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
fn usage(error: impl ToString) -> Failure {
    Failure::new(Reason::Usage, format!("request: {}", error.to_string()))
}

fn check_versions(request: &Request) -> Result<(), Failure> {
    let versions = (request.protocol, request.schema_version);
    if versions == (VERSION, SCHEMA_VERSION) {
        return Ok(());
    }
    Err(Failure::new(
        Reason::Usage,
        format!(
            "the service has protocol {VERSION} and schema {SCHEMA_VERSION}, this program {} and {}: \
             use the program that is installed with the service",
            versions.0, versions.1
        ),
    ))
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
