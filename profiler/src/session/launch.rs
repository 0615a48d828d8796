//! Starts the profiled command such that its row contains only its own figures.
//!
//! The kernel's peak memory of a process (`ru_maxrss`) includes the image from which it was forked,
//! and the process starts at the fork. So a launcher is forked while the profiler is still small.
//! When everything else is ready, the launcher forks the process of the command as a child of the
//! profiler, and ends.

use std::{
    ffi::{CString, OsStr, OsString},
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, process::ExitStatusExt as _},
    },
    path::Path,
    process::ExitStatus,
};

use nix::unistd::getgrouplist;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{
        Gid, Pid, PidfdFlags, Signal, Uid, WaitId, WaitIdOptions, WaitOptions, pidfd_open,
        pidfd_send_signal, waitid, waitpid,
    },
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};

use crate::{
    failure::{Failure, Reason},
    support::invoking_user,
};

/// A process that waits for the order to fork the command.
pub struct Launcher {
    name: String,
    pid: Pid,
    channel: Channel,
}

/// A command whose process exists but has not executed the program.
pub struct Stopped {
    /// The process id.
    pub pid: u32,
    name: String,
    channel: Channel,
}

/// One end of the connection between the profiler and the new process. It consists of pipes,
/// because bytes over a socket would count as traffic of the process.
struct Channel {
    reader: PipeReader,
    writer: PipeWriter,
}

/// A running command.
pub struct Running {
    /// Becomes readable when the command ends.
    pub pidfd: OwnedFd,
    pid: Pid,
}

impl Channel {
    /// Creates both ends.
    fn pair() -> io::Result<(Self, Self)> {
        let (orders, order) = io::pipe()?;
        let (answers, answer) = io::pipe()?;
        let ours = Self {
            reader: answers,
            writer: order,
        };
        let theirs = Self {
            reader: orders,
            writer: answer,
        };
        Ok((ours, theirs))
    }
}

impl Launcher {
    /// Forks the launcher of `command`. Call it before anything that needs memory or threads.
    ///
    /// # Errors
    ///
    /// When the process cannot be created.
    pub fn new(command: &[OsString]) -> Result<Self, Failure> {
        let name = command
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let (ours, theirs) = Channel::pair().map_err(|error| cannot_start(&name, &error))?;
        let user = invoking_user();
        // SAFETY: the profiler has no other thread yet, so the child may do whatever the parent
        // may.
        match unsafe { libc::fork() } {
            -1 => Err(cannot_start(&name, &io::Error::last_os_error())),
            0 => {
                drop(ours);
                let served = serve(theirs, command, user.as_ref());
                // SAFETY: ends this process without running what the profiler has registered for
                // its own end.
                unsafe { libc::_exit(i32::from(served.is_err())) }
            }
            pid => Ok(Self {
                pid: Pid::from_raw(pid).ok_or_else(|| {
                    cannot_start(&name, &io::Error::other("fork returned no process id"))
                })?,
                name,
                channel: ours,
            }),
        }
    }

    /// Creates the process of the command, which waits before it executes the program. Its
    /// environment names the socket for marks.
    ///
    /// # Errors
    ///
    /// When the process cannot be created.
    pub fn spawn(mut self, marks: Option<&Path>) -> Result<Stopped, Failure> {
        let marks = marks.map_or(&b""[..], |path| path.as_os_str().as_bytes());
        let pid = self
            .ask(marks)
            .map_err(|error| cannot_start(&self.name, &error))?;
        // Until the launcher has ended, its copy of the pipe keeps the pipe open.
        let _ = retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
        Ok(Stopped {
            pid,
            name: self.name,
            channel: self.channel,
        })
    }

    fn ask(&mut self, marks: &[u8]) -> io::Result<u32> {
        let length = u32::try_from(marks.len()).map_err(io::Error::other)?;
        self.channel.writer.write_all(&length.to_ne_bytes())?;
        self.channel.writer.write_all(marks)?;
        match read_number(&mut self.channel.reader)? {
            Some(pid) if pid > 0 => Ok(pid.cast_unsigned()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Err(io::Error::other("interrupted")),
        }
    }
}

/// The launcher: waits for the order, forks the process of the command and reports its id.
fn serve(mut channel: Channel, command: &[OsString], user: Option<&User>) -> io::Result<()> {
    let Some(length) = read_number(&mut channel.reader)? else {
        return Ok(());
    };
    let mut marks = vec![0; length.cast_unsigned() as usize];
    channel.reader.read_exact(&mut marks)?;
    let image = Image::new(command, &marks)?;
    // The Rust runtime ignores SIGPIPE; a command expects the default.
    // SAFETY: sets no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // A sibling, so that the profiler is the parent. glibc has no function for that; the other work
    // of its fork() is not needed by a process that only executes another program.
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and CLONE_SETTLS this is fork(2); the launcher has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    match i32::try_from(pid).unwrap_or(-1) {
        0 => {
            // The pipe is closed if the command is cancelled or the profiler has died.
            channel.reader.read_exact(&mut [0])?;
            let error = match user.map_or(Ok(()), User::become_it) {
                Ok(()) => image.execute(),
                Err(error) => error,
            };
            channel
                .writer
                .write_all(&error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes())
        }
        -1 => {
            let error = io::Error::last_os_error().raw_os_error();
            channel
                .writer
                .write_all(&(-error.unwrap_or(libc::EAGAIN)).to_ne_bytes())
        }
        pid => channel.writer.write_all(&pid.to_ne_bytes()),
    }
}

/// Arguments of exec(3). They are created before the fork, because each page that the new process
/// touches is part of its peak memory.
struct Image {
    words: Vec<CString>,
    variables: Vec<CString>,
}

impl Image {
    fn new(command: &[OsString], marks: &[u8]) -> io::Result<Self> {
        let words = command.iter().map(|word| CString::new(word.as_bytes()));
        let of_marks = OsStr::new(crate::marks::VARIABLE);
        let inherited =
            std::env::vars_os().filter(|(name, _)| marks.is_empty() || name != of_marks);
        let added = (!marks.is_empty()).then(|| {
            let path = OsStr::from_bytes(marks).to_owned();
            (of_marks.to_owned(), path)
        });
        let variables = inherited
            .chain(added)
            .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        Ok(Self {
            words: words.collect::<Result<_, _>>()?,
            variables: variables.collect::<Result<_, _>>()?,
        })
    }

    /// Executes the command; returns only when that fails.
    fn execute(&self) -> io::Error {
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            let all = strings.iter().map(|string| string.as_ptr());
            all.chain([std::ptr::null()]).collect()
        };
        let (words, variables) = (pointers(&self.words), pointers(&self.variables));
        // SAFETY: both lists end with a null pointer, and their strings live as long as `self`.
        unsafe { libc::execvpe(words[0], words.as_ptr(), variables.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// Reads a number from the other end of the pipe; `None` when that end is closed.
fn read_number(reader: &mut PipeReader) -> io::Result<Option<i32>> {
    let mut number = [0; 4];
    match reader.read_exact(&mut number) {
        Ok(()) => Ok(Some(i32::from_ne_bytes(number))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn cannot_start(name: &str, error: &io::Error) -> Failure {
    Failure::new(Reason::CannotRun, format!("cannot start `{name}`: {error}"))
}

impl Stopped {
    /// Lets the command run.
    ///
    /// # Errors
    ///
    /// When the program does not exist or cannot be executed.
    pub fn release(mut self) -> Result<Running, Failure> {
        self.run().map_err(|error| {
            let reason = if error.kind() == io::ErrorKind::NotFound {
                Reason::NotFound
            } else {
                Reason::CannotRun
            };
            Failure::new(reason, format!("cannot run `{}`: {error}", self.name))
        })
    }

    fn run(&mut self) -> io::Result<Running> {
        let pid = self.id().ok_or(io::ErrorKind::InvalidInput)?;
        let running = Running {
            pidfd: pidfd_open(pid, PidfdFlags::NONBLOCK)?,
            pid,
        };
        self.channel.writer.write_all(b"!")?;
        // exec(2) closes the pipe.
        match read_number(&mut self.channel.reader)? {
            None => Ok(running),
            Some(error) => {
                running.wait()?;
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }

    fn id(&self) -> Option<Pid> {
        Pid::from_raw(self.pid.cast_signed())
    }

    /// Ends the process without executing the program.
    pub fn cancel(self) {
        let pid = self.id();
        drop(self.channel);
        let _ = retry_on_intr(|| waitpid(pid, WaitOptions::empty()));
    }
}

impl Running {
    /// Passes a signal on to the command. A command that has ended is not an error.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.pidfd.as_fd(), signal);
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Whether the command has ended.
    pub fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready != 0)
    }

    /// Exit code of the command; `None` if it has not ended.
    pub fn exit_code(&self) -> Option<u8> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options));
        let status = ended.ok().flatten()?;
        let code = status.exit_status().or_else(|| {
            let signal = status.terminating_signal()?;
            Some(128 + signal)
        })?;
        u8::try_from(code & 0xff).ok()
    }

    /// Waits for the end of the command.
    ///
    /// # Errors
    ///
    /// When the process is not a child.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        let ended = retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))?;
        let (_, status) = ended.ok_or(io::ErrorKind::NotFound)?;
        Ok(ExitStatus::from_raw(status.as_raw()))
    }
}

/// The exit code that sh(1) would report.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}

/// The user of `cargo xtask run`, which starts the profiler as root.
struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Gives the process, which has one thread, the identity of the user.
    fn become_it(&self) -> io::Result<()> {
        set_thread_groups(&self.groups)?;
        set_thread_gid(self.gid)?;
        set_thread_uid(self.uid)?;
        Ok(())
    }
}

fn invoking_user() -> Option<User> {
    std::env::var_os("PROFILER_RAISED")?;
    let (uid, gid) = invoking_user::sudo_ids()?;
    let groups = std::env::var("SUDO_USER")
        .ok()
        .and_then(|name| CString::new(name).ok())
        .and_then(|name| getgrouplist(&name, nix::unistd::Gid::from_raw(gid)).ok())
        .unwrap_or_default();
    Some(User {
        uid: Uid::from_raw(uid),
        gid: Gid::from_raw(gid),
        groups: groups
            .into_iter()
            .map(|group| Gid::from_raw(group.as_raw()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn(command: &[&str]) -> Stopped {
        let command: Vec<OsString> = command.iter().map(Into::into).collect();
        let launcher = Launcher::new(&command).expect("forks");
        launcher.spawn(None).expect("forks")
    }

    #[test]
    fn cancelled_command_does_not_run() {
        let directory = std::env::temp_dir().join(format!("stopped-{}", std::process::id()));
        spawn(&["touch", directory.to_str().expect("UTF-8")]).cancel();
        assert!(!directory.exists());
    }

    #[test]
    fn released_command_is_a_child() {
        let script = format!("test $PPID = {} && exit 7", std::process::id());
        let running = spawn(&["sh", "-c", &script]).release().expect("runs");
        assert_eq!(exit_code(running.wait().expect("ends")), 7);
    }

    #[test]
    fn missing_program_is_reported() {
        let error = spawn(&["/no/such/program"]).release().err();
        assert_eq!(error.expect("fails").reason, Reason::NotFound);
    }
}
