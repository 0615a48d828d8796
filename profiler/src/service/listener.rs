//! Accepts clients, and starts a process for each of them.

use std::{
    fs::{self, Metadata, Permissions},
    io,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    ptr,
    time::{Duration, Instant},
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::sockopt::socket_peercred,
};
use tokio::task::JoinSet;

use super::{
    SOCKET, client,
    client_log::{self, ClientLog},
    connection::refuse,
    protocol::Request,
    request,
    users::{Quota, Users},
};
use crate::{
    failure::{Failure, Reason},
    output::status_file::{Status, StatusFile},
    report,
    support::{
        runtime_directory,
        service_manager::ServiceManager,
        signals::{self, Received, Signals, Wanted},
    },
    warning,
};

/// Time until the next attempt when accepting a client fails.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until a signal ends it; SIGHUP reads the limits again. `command` starts the process for a request,
/// with the connection as its standard input.
///
/// # Errors
///
/// When the socket cannot be created, or the limits are invalid.
pub fn listen(
    socket: &Path,
    read_quota: &dyn Fn() -> Result<Quota, Failure>,
    command: &dyn Fn(&Request) -> Command,
) -> Result<(), Failure> {
    let mut quota = read_quota()?;
    let failed =
        |error: io::Error| Failure::new(Reason::Output, format!("{}: {error}", socket.display()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let mut signals = Signals::new(Wanted::Ending).map_err(failed)?;
        let manager = ServiceManager::from_environment();
        let mut watchdog = manager.watchdog();
        let (listener, _socket_file) = bind(socket).map_err(|error| {
            let message = format!(
                "cannot listen at {}: {error}; use --socket PATH",
                socket.display()
            );
            Failure::new(Reason::Output, message)
        })?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        let serving = format!("serving at {}", socket.display());
        report!("profiler: {serving}");
        manager.ready(&serving);
        let users = Users::default();
        let log = ClientLog::default();
        let mut log_period = tokio::time::interval(client_log::PERIOD);
        let mut requests = JoinSet::new();
        let status = Status::of_service(socket).map_err(failed)?;
        // `profiler status` lists the service if it has a runtime directory.
        let _file = StatusFile::create(&status).map_err(failed)?;
        loop {
            tokio::select! {
                biased;
                Received { signal, .. } = signals.next() => {
                    if !signals::ends(signal) {
                        continue;
                    }
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
                    let status = format!("{serving}: {} profiles", users.sessions());
                    manager.alive(&status);
                }
                _ = log_period.tick() => log.report_ended(),
                Some(received) = requests.join_next() => {
                    if let Ok(Some(asked)) = received {
                        admit(&users, quota, &log, asked, command);
                    }
                }
                client = listener.accept() => match client {
                    Ok((client, _)) => greet(&users, &log, client, &mut requests),
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

/// A client whose request has arrived.
struct Asked {
    client: UnixStream,
    uid: u32,
    request: Request,
}

/// Waits for the request of a client, or refuses.
fn greet(
    users: &Users,
    log: &ClientLog,
    client: tokio::net::UnixStream,
    requests: &mut JoinSet<Option<Asked>>,
) {
    let Ok(credentials) = socket_peercred(&client) else {
        return;
    };
    let uid = credentials.uid.as_raw();
    let place = users.silent(uid);
    let log = log.clone();
    requests.spawn(async move {
        let received = match place {
            // Held until the request is there.
            Ok(_place) => request::receive(&client).await,
            Err(failure) => Err(failure),
        };
        let client = client.into_std().ok()?;
        match received {
            Ok(request) => Some(Asked {
                client,
                uid,
                request: request?,
            }),
            Err(failure) => {
                refuse(&client, &failure);
                log.say(uid, &failure.message);
                None
            }
        }
    });
}

/// Starts a process for a client, or refuses.
fn admit(
    users: &Users,
    quota: Quota,
    log: &ClientLog,
    asked: Asked,
    command: &dyn Fn(&Request) -> Command,
) {
    let Asked {
        client,
        uid,
        request,
    } = asked;
    let place = match users.session(uid, quota) {
        Ok(place) => place,
        Err(failure) => {
            refuse(&client, &failure);
            log.say(uid, &failure.message);
            return;
        }
    };
    let command = command(&request);
    let log = log.clone();
    let started = std::thread::Builder::new()
        .name("client".to_owned())
        .spawn(move || {
            let began = Instant::now();
            match profile(command, client, uid, &log) {
                Ok(cpu) => place.charge(cpu, began.elapsed()),
                Err(error) => warning!("profiler: a process for a client: {error}"),
            }
            drop(place);
        });
    if let Err(error) = started {
        warning!("profiler: a thread for a client: {error}");
    }
}

/// Starts the process for a client, passes its messages on, and waits for its end. Returns the CPU time
/// of the process and its descendants.
fn profile(
    mut command: Command,
    client: UnixStream,
    uid: u32,
    log: &ClientLog,
) -> io::Result<Duration> {
    client.set_nonblocking(false)?;
    command
        .stdin(Stdio::from(OwnedFd::from(client)))
        .stderr(Stdio::piped())
        .current_dir("/");
    let mut child = command.spawn()?;
    // The connection ends with the process.
    drop(command);
    if let Some(stderr) = child.stderr.take() {
        log.pass_on(uid, stderr);
    }
    wait(&child)
}

/// Waits for the end of a process. Returns its CPU time, and that of all descendants it has waited for.
fn wait(child: &Child) -> io::Result<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let waited = retry_on_intr(|| {
        // SAFETY: the usage is valid for the call.
        let pid = unsafe {
            libc::wait4(
                child.id().cast_signed(),
                ptr::null_mut(),
                0,
                usage.as_mut_ptr(),
            )
        };
        match pid {
            -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::CHILD)),
            _ => Ok(()),
        }
    });
    waited?;
    // SAFETY: integers, which may be 0.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        let us = time.tv_sec * 1_000_000 + time.tv_usec;
        Duration::from_micros(us.cast_unsigned())
    };
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

/// The file of the socket, removed when this is dropped unless another service has replaced it.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds the socket, and replaces that of a service that was killed.
///
/// It gets its name when clients can connect: bind(2) makes the file before listen(2) and chmod(2).
fn bind(socket: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let (Some(directory), true) = (socket.parent(), socket == Path::new(SOCKET)) {
        runtime_directory::make(directory)?;
    }
    if matches!(client::connect(socket), Ok(_) | Err(Errno::AGAIN)) {
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
    let made = fs::symlink_metadata(&new)?;
    fs::rename(&new, socket)?;
    let file = SocketFile {
        path: socket.to_owned(),
        id: (made.dev(), made.ino()),
    };
    Ok((listener, file))
}
