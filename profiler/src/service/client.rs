//! The connection to the service, as the client sees it.

use std::{
    fs,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::FileTypeExt as _, net::UnixStream},
    },
    path::Path,
};

use rustix::{
    io::Errno,
    net::{
        self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType, UCred, sendmsg, socket_with, sockopt::socket_peercred,
    },
};
use thiserror::Error;

use super::protocol::{Frame, FrameReader, Kind, MAX_PROCESSES, Request, send, send_json};

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// There is no file.
    #[error("no service")]
    Absent,
    /// Nobody listens.
    #[error("ended without removing its socket, which the next `profiler serve` replaces")]
    Stale,
    /// Another file.
    #[error("not a socket; remove the file, or start `profiler serve` with another --socket")]
    NotASocket,
    /// All places for connections are taken.
    #[error("accepts no connections; restart it if that lasts")]
    Stuck,
    /// A program of neither root nor this user, with its user.
    #[error("not used: it is a program of user {0}")]
    Foreign(u32),
    /// The socket cannot be reached.
    #[error("cannot connect: {}", io::Error::from(*.0).kind())]
    Unreachable(Errno),
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    peer: UCred,
    frames: FrameReader,
}

/// Connects a socket that does not block. Requests are smaller than its buffer, so sending does not wait
/// either.
pub(super) fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

impl Connection {
    /// Connects. Does not wait.
    ///
    /// # Errors
    ///
    /// When no service is there, or it is not one of root or of this user.
    pub fn open(path: &Path) -> Result<Self, Unavailable> {
        let socket = connect(path).map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => Unavailable::Absent,
            Errno::CONNREFUSED => {
                let found = fs::metadata(path);
                if found.is_ok_and(|found| found.file_type().is_socket()) {
                    Unavailable::Stale
                } else {
                    Unavailable::NotASocket
                }
            }
            Errno::AGAIN => Unavailable::Stuck,
            error => Unavailable::Unreachable(error),
        })?;
        let peer = socket_peercred(&socket).map_err(Unavailable::Unreachable)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return Err(Unavailable::Foreign(peer.uid.as_raw()));
        }
        Ok(Self {
            socket,
            peer,
            frames: FrameReader::default(),
        })
    }

    /// The process that has opened the socket, and its user.
    pub fn peer(&self) -> UCred {
        self.peer
    }

    /// Sends the request.
    ///
    /// # Errors
    ///
    /// When the service has gone.
    pub fn request(&mut self, request: &Request) -> io::Result<()> {
        send_json(&mut self.socket, Kind::Request, request)
    }

    /// Sends the processes.
    ///
    /// # Errors
    ///
    /// When the service has gone, or there are too many.
    pub fn attach(&mut self, pidfds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut header = Vec::new();
        send(&mut header, Kind::Attach, b"")?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PROCESSES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(pidfds)) {
            let message = format!("more than {MAX_PROCESSES} processes");
            return Err(io::Error::other(message));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(&header)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Ends the profile; the service answers with the last rows and the end.
    pub fn stop(&mut self) {
        // If the service has gone, so is the profile.
        let _ = send(&mut self.socket, Kind::Stop, b"");
    }

    /// A descriptor that is readable when messages arrive.
    ///
    /// # Errors
    ///
    /// When there are too many descriptors.
    pub fn fd(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Reads all that has arrived. Returns `false` if the service has gone.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    pub fn receive(&mut self) -> io::Result<bool> {
        loop {
            match self.frames.read_from(&mut self.socket) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    return match error.kind() {
                        io::ErrorKind::WouldBlock => Ok(true),
                        io::ErrorKind::ConnectionReset => Ok(false),
                        _ => Err(error),
                    };
                }
            }
        }
    }

    /// The next message that has arrived.
    ///
    /// # Errors
    ///
    /// When it is malformed.
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        self.frames.next_frame().map_err(io::Error::other)
    }
}
