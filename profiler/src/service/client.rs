//! The connection to the service, as the client sees it.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt::socket_peercred,
};

use super::protocol::{Frame, FrameReader, Kind, MAX_PROCESSES, Request, send, send_json};

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    frames: FrameReader,
}

impl Connection {
    /// Connects; `None` if no service is there.
    ///
    /// # Errors
    ///
    /// When the service is not one of root or of this user.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let Ok(socket) = UnixStream::connect(path) else {
            return Ok(None);
        };
        let uid = socket_peercred(&socket)?.uid;
        if !uid.is_root() && uid != rustix::process::geteuid() {
            let message = format!("the service there is a program of user {}", uid.as_raw());
            return Err(io::Error::other(message));
        }
        // Requests are smaller than the buffer of the socket, so sending does not wait either.
        socket.set_nonblocking(true)?;
        Ok(Some(Self {
            socket,
            frames: FrameReader::default(),
        }))
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
