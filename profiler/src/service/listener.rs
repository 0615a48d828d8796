//! Accepts clients, and starts a process for each of them.

use std::{
    collections::HashMap,
    fmt,
    fs::{self, Metadata, Permissions},
    io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::net::sockopt::socket_peercred;

use super::{SOCKET, connection::refuse};
use crate::{
    failure::{Failure, Reason},
    output::status_file::{Status, StatusFile},
    report,
    support::{runtime_directory, service_manager::ServiceManager, signals::Signals},
    warning,
};

/// Limits of the profiles at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub sessions: usize,
    pub sessions_per_user: usize,
}

/// Time until the next attempt when accepting a client fails.
const PAUSE: Duration = Duration::from_millis(100);

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sessions,
            sessions_per_user,
        } = self;
        write!(f, "{sessions} profiles, {sessions_per_user} per user")
    }
}

/// Profiles per user.
type Sessions = Arc<Mutex<HashMap<u32, usize>>>;

/// The place of one profile among those of the node, which is free again when this is dropped.
struct Place {
    sessions: Sessions,
    uid: u32,
}

/// Accepts clients until SIGINT or SIGTERM; SIGHUP reads the limits again. `command` starts the process for a client, with the
/// connection as its standard input.
///
/// # Errors
///
/// When the socket cannot be created, or the limits are invalid.
pub fn listen(
    socket: &Path,
    read_quota: &dyn Fn() -> Result<Quota, Failure>,
    command: &dyn Fn() -> Command,
) -> Result<(), Failure> {
    let mut quota = read_quota()?;
    let failed =
        |error: io::Error| Failure::new(Reason::Output, format!("{}: {error}", socket.display()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let mut signals = Signals::new().map_err(failed)?;
        let manager = ServiceManager::from_environment();
        let mut watchdog = manager.watchdog();
        let listener = bind(socket)
            .and_then(tokio::net::UnixListener::from_std)
            .map_err(failed)?;
        let serving = format!("serving at {}", socket.display());
        report!("profiler: {serving}");
        manager.ready(&serving);
        let sessions = Sessions::default();
        let status = Status::of_service(socket).map_err(failed)?;
        // `profiler status` lists the service if it has a runtime directory.
        let _file = StatusFile::create(&status).map_err(failed)?;
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => {
                    if !signals.reloads(signal) {
                        break;
                    }
                    manager.reloading();
                    match read_quota() {
                        Ok(new) => {
                            quota = new;
                            report!("profiler: limits reloaded: {quota}");
                        }
                        Err(failure) => warning!(
                            "profiler: the configuration is invalid and was not reloaded: {failure}"
                        ),
                    }
                    manager.ready(&serving);
                }
                () = watchdog.due() => {
                    let status = format!("{serving}: {} profiles", count(&sessions));
                    manager.alive(&status);
                }
                client = listener.accept() => match client.and_then(|(client, _)| blocking(client)) {
                    Ok(client) => admit(&sessions, quota, client, command),
                    Err(error) => {
                        warning!("profiler: accept: {error}");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
        manager.stopping("");
        Ok(())
    })
}

fn blocking(client: tokio::net::UnixStream) -> io::Result<UnixStream> {
    let client = client.into_std()?;
    client.set_nonblocking(false)?;
    Ok(client)
}

/// Starts a process for a client, or refuses.
fn admit(sessions: &Sessions, quota: Quota, client: UnixStream, command: &dyn Fn() -> Command) {
    let Ok(credentials) = socket_peercred(&client) else {
        return;
    };
    let uid = credentials.uid.as_raw();
    let place = match Place::take(sessions, quota, uid) {
        Ok(place) => place,
        Err(failure) => {
            refuse(&client, &failure);
            return;
        }
    };
    let command = command();
    let started = std::thread::Builder::new()
        .name("client".to_owned())
        .spawn(move || {
            if let Err(error) = profile(command, client) {
                warning!("profiler: a process for a client: {error}");
            }
            drop(place);
        });
    if let Err(error) = started {
        warning!("profiler: a thread for a client: {error}");
    }
}

/// Number of profiles.
fn count(sessions: &Sessions) -> usize {
    let sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.values().sum()
}

impl Place {
    fn take(sessions: &Sessions, quota: Quota, uid: u32) -> Result<Self, Failure> {
        take(sessions, quota, uid)?;
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

fn take(sessions: &Sessions, quota: Quota, uid: u32) -> Result<(), Failure> {
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
    listener.set_nonblocking(true)?;
    fs::set_permissions(&new, Permissions::from_mode(0o666))?;
    fs::rename(&new, socket)?;
    Ok(listener)
}
