//! Accepts clients, and starts a process for each of them.

use std::{
    collections::HashMap,
    fs::{self, Metadata, Permissions},
    io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::net::sockopt::socket_peercred;

use super::{SOCKET, connection::refuse};
use crate::{
    failure::{Failure, Reason},
    report,
    support::runtime_directory,
};

/// Limits of the profiles at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub sessions: usize,
    pub sessions_per_user: usize,
}

/// Profiles per user.
type Sessions = Arc<Mutex<HashMap<u32, usize>>>;

/// The place of one profile among those of the node, which is free again when this is dropped.
struct Place {
    sessions: Sessions,
    uid: u32,
}

/// Accepts clients until the process is ended. `command` starts the process for a client, with the
/// connection as its standard input.
///
/// # Errors
///
/// When the socket cannot be created.
pub fn listen(socket: &Path, quota: Quota, command: &dyn Fn() -> Command) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(Reason::Output, format!("{}: {error}", socket.display()));
    let listener = bind(socket).map_err(failed)?;
    report!("profiler: serving at {}", socket.display());
    let sessions = Sessions::default();
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) => {
                report!("profiler: accept: {error}");
                std::thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
        };
        let Ok(credentials) = socket_peercred(&client) else {
            continue;
        };
        let uid = credentials.uid.as_raw();
        let place = match Place::take(&sessions, quota, uid) {
            Ok(place) => place,
            Err(failure) => {
                refuse(&client, &failure);
                continue;
            }
        };
        let command = command();
        let started = std::thread::Builder::new()
            .name("client".to_owned())
            .spawn(move || {
                if let Err(error) = profile(command, client) {
                    report!("profiler: a process for a client: {error}");
                }
                drop(place);
            });
        if let Err(error) = started {
            report!("profiler: a thread for a client: {error}");
        }
    }
}

impl Place {
    fn take(sessions: &Sessions, quota: Quota, uid: u32) -> Result<Self, Failure> {
        admit(sessions, quota, uid)?;
        Ok(Self {
            sessions: sessions.clone(),
            uid,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = sessions.get_mut(&self.uid) {
            *count -= 1;
        }
        sessions.retain(|_, count| *count != 0);
    }
}

fn admit(sessions: &Sessions, quota: Quota, uid: u32) -> Result<(), Failure> {
    let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
    let all: usize = sessions.values().sum();
    let own = sessions.entry(uid).or_default();
    let why = if *own >= quota.sessions_per_user {
        format!("{own} profiles of this user are running, which is the limit")
    } else if all >= quota.sessions {
        format!("{all} profiles are running, which is the limit of the node")
    } else {
        *own += 1;
        return Ok(());
    };
    sessions.retain(|_, count| *count != 0);
    Err(Failure::new(Reason::Privilege, why))
}

/// Starts the process for a client, and waits for its end.
fn profile(mut command: Command, client: UnixStream) -> io::Result<()> {
    command
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(client)))
        .current_dir("/")
        .spawn()?
        .wait()?;
    Ok(())
}

/// Binds the socket, and replaces that of a service that has ended.
///
/// It gets its name when clients can connect: bind(2) makes the file before listen(2) and chmod(2).
fn bind(socket: &Path) -> io::Result<UnixListener> {
    if let (Some(directory), true) = (socket.parent(), socket == Path::new(SOCKET)) {
        runtime_directory::make(directory)?;
    }
    if UnixStream::connect(socket).is_ok() {
        return Err(io::Error::other("a service is running there"));
    }
    let is_socket = |found: &Metadata| found.file_type().is_socket();
    if fs::symlink_metadata(socket).is_ok_and(|found| !is_socket(&found)) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut new = socket.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o666))?;
    fs::rename(&new, socket)?;
    Ok(listener)
}
