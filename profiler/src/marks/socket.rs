//! Making the socket that marks are sent to: where it is, who may write to it, how many marks it holds.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::UnixDatagram,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::socket::{
        AddressFamily, SockFlag, SockType, UnixAddr, bind, setsockopt, socket,
        sockopt::{PassCred, ReceiveTimestampns},
    },
};
use rustix::fs::{Mode, XattrFlags, fchmod, setxattr};

use crate::{privileges, support::runtime_directory};

/// Marks that wait to be read. The kernel's own limit (`net.unix.max_dgram_qlen`) is 10 if nobody has raised it.
const QUEUE: u32 = 4096;

/// Path of the kernel's limit, for the network namespace of who asks.
const LIMIT: &str = "/proc/sys/net/unix/max_dgram_qlen";

/// A socket of nobody is removed when it is older: a younger one may be about to be bound.
const STALE: Duration = Duration::from_secs(10);

/// A socket that is bound.
#[derive(Debug)]
pub struct Bound {
    /// The socket.
    pub fd: OwnedFd,
    /// Where it is.
    pub path: PathBuf,
    /// Marks that it holds.
    pub queue: u32,
}

impl Bound {
    /// Makes `<name>.sock` in the first [runtime directory](runtime_directory) that can be had. Only its owner can write to it.
    ///
    /// # Errors
    ///
    /// When there is none, or the kernel refuses a socket.
    pub fn new(name: &str) -> io::Result<Self> {
        let mut refused = Vec::new();
        for directory in runtime_directory::candidates() {
            match Self::inside(&directory, name) {
                Ok(bound) => return Ok(bound),
                Err(error) => refused.push(format!("{}: {error}", directory.display())),
            }
        }
        Err(io::Error::other(refused.join("; ")))
    }

    fn inside(directory: &Path, name: &str) -> io::Result<Self> {
        runtime_directory::make(directory)?;
        sweep(directory);
        let (fd, queue) = with_long_queue()?;
        setsockopt(&fd, PassCred, &true)?;
        setsockopt(&fd, ReceiveTimestampns, &true)?;
        // bind(2) takes the mode from here, so that it is never open to others.
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let path = directory.join(format!("{name}.sock"));
        bind(fd.as_raw_fd(), &UnixAddr::new(&path)?)?;
        Ok(Self { fd, path, queue })
    }

    /// Lets these users write to the socket besides its owner.
    ///
    /// # Errors
    ///
    /// When the file system has no access lists.
    pub fn allow(&self, users: &[u32]) -> io::Result<()> {
        let list = access_list(users);
        Ok(setxattr(
            &self.path,
            "system.posix_acl_access",
            &list,
            XattrFlags::empty(),
        )?)
    }

    /// Lets everybody write to it.
    ///
    /// # Errors
    ///
    /// When it is not ours.
    pub fn allow_all(&self) -> io::Result<()> {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o666))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes sockets that no profiler reads any more.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let age = metadata
            .modified()
            .ok()
            .and_then(|time| time.elapsed().ok());
        if metadata.file_type().is_socket() && age > Some(STALE) {
            let probe = UnixDatagram::unbound().and_then(|probe| probe.connect(entry.path()));
            if probe.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A socket, and how many marks it holds. The limit belongs to a network namespace: in one of its own, which lives as
/// long as the socket, it is raised for this socket alone. Who may not make one gets the system's.
fn with_long_queue() -> io::Result<(OwnedFd, u32)> {
    let ordinary = || {
        socket(
            AddressFamily::Unix,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )
    };
    let raised = std::thread::Builder::new().spawn(move || {
        let _raised = privileges::raise();
        unshare(CloneFlags::CLONE_NEWNET)?;
        fs::write(LIMIT, QUEUE.to_string())?;
        Ok::<_, io::Error>(ordinary()?)
    })?;
    if let Ok(Ok(fd)) = raised.join() {
        return Ok((fd, QUEUE));
    }
    let limit = fs::read_to_string(LIMIT)?;
    Ok((ordinary()?, limit.trim().parse().unwrap_or(10)))
}

/// `system.posix_acl_access` as in include/uapi/linux/posix_acl_xattr.h: the owner and these users read and write, the
/// others do nothing.
fn access_list(users: &[u32]) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    const RW: u16 = 6;
    let mut users = users.to_vec();
    users.sort_unstable();
    let owner = [(0x01, RW, NOBODY)];
    let others = [(0x04, 0, NOBODY), (0x10, RW, NOBODY), (0x20, 0, NOBODY)];
    let named = users.into_iter().map(|user| (0x02, RW, user));
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in owner.into_iter().chain(named).chain(others) {
        let tag: u16 = tag;
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}
