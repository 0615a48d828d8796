//! The socket that receives marks: its path, permissions and queue length.

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
use tempfile::TempDir;

use crate::{privileges, support::runtime_directory, warning};

/// Length of the socket's queue in marks. The kernel's default (`net.unix.max_dgram_qlen`) is 10.
const QUEUE: u32 = 4096;

/// The kernel's limit on the queue length, of the reader's network namespace.
const LIMIT: &str = "/proc/sys/net/unix/max_dgram_qlen";

/// Minimum age of an unused socket that is removed. Another profiler may be about to bind a younger
/// one.
const STALE: Duration = Duration::from_secs(10);

/// A bound socket, which is removed on drop.
#[derive(Debug)]
pub struct Bound {
    /// Descriptor of the socket.
    pub fd: OwnedFd,
    /// Path of the socket.
    pub path: PathBuf,
    /// Length of its queue in marks.
    pub queue: u32,
    /// A directory for this socket alone, which is removed after it.
    directory: Option<TempDir>,
}

impl Bound {
    /// Creates `<name>.sock` in the first usable [runtime directory](runtime_directory), or in a new
    /// directory whose name no other user can take first. Only its owner can write to it.
    ///
    /// # Errors
    ///
    /// If no directory is usable, or the kernel refuses a socket.
    pub fn new(name: &str) -> io::Result<Self> {
        let mut refused = Vec::new();
        for directory in runtime_directory::candidates() {
            match Self::inside(&directory, name) {
                Ok(bound) => return Ok(bound),
                Err(error) => refused.push(format!("{}: {error}", directory.display())),
            }
        }
        let uid = rustix::process::geteuid().as_raw();
        let private = tempfile::Builder::new()
            .prefix(&format!("profiler-{uid}-"))
            .tempdir_in("/tmp");
        let Ok(private) = private else {
            return Err(io::Error::other(refused.join("; ")));
        };
        let mut bound = Self::inside(private.path(), name)?;
        if let Some(refused) = refused.pop() {
            let path = private.path().display();
            warning!("profiler: {refused}: marks are received in {path} instead");
        }
        bound.directory = Some(private);
        Ok(bound)
    }

    fn inside(directory: &Path, name: &str) -> io::Result<Self> {
        runtime_directory::make(directory)?;
        sweep(directory);
        let (fd, queue) = with_long_queue()?;
        setsockopt(&fd, PassCred, &true)?;
        setsockopt(&fd, ReceiveTimestampns, &true)?;
        // bind(2) creates the file with this mode, so that it is never open to others.
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let path = directory.join(format!("{name}.sock"));
        bind(fd.as_raw_fd(), &UnixAddr::new(&path)?)?;
        Ok(Self {
            fd,
            path,
            queue,
            directory: None,
        })
    }

    /// Permits these users to write to the socket, in addition to its owner.
    ///
    /// # Errors
    ///
    /// If the file system does not support ACLs.
    pub fn allow(&self, users: &[u32]) -> io::Result<()> {
        let list = access_list(users);
        Ok(setxattr(
            &self.path,
            "system.posix_acl_access",
            &list,
            XattrFlags::empty(),
        )?)
    }

    /// Permits all users to write to the socket.
    ///
    /// # Errors
    ///
    /// If the socket has another owner.
    pub fn allow_all(&self) -> io::Result<()> {
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o666))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the sockets of profilers that have ended.
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

/// A socket and the length of its queue.
///
/// The limit belongs to the network namespace. A new namespace, which lives as long as the socket,
/// raises it for this socket alone. Without the privilege to create one, the system's limit holds.
fn with_long_queue() -> io::Result<(OwnedFd, u32)> {
    let create = || {
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
        Ok::<_, io::Error>(create()?)
    })?;
    if let Ok(Ok(fd)) = raised.join() {
        return Ok((fd, QUEUE));
    }
    let limit = fs::read_to_string(LIMIT)?;
    Ok((create()?, limit.trim().parse().unwrap_or(10)))
}

/// `system.posix_acl_access` as in include/uapi/linux/posix_acl_xattr.h: read and write for the
/// owner and these users, nothing for others.
fn access_list(users: &[u32]) -> Vec<u8> {
    const VERSION: u32 = 2;
    const UNDEFINED_ID: u32 = u32::MAX;
    const RW: u16 = 6;
    let mut users = users.to_vec();
    users.sort_unstable();
    let owner = [(0x01, RW, UNDEFINED_ID)];
    let group = (0x04, 0, UNDEFINED_ID);
    let mask = (0x10, RW, UNDEFINED_ID);
    let others = [group, mask, (0x20, 0, UNDEFINED_ID)];
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
