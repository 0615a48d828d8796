//! Starts the profiled command such that its row contains only its own figures.
//!
//! The kernel's peak memory of a process (`ru_maxrss`) includes the image from which it was forked,
//! and the process starts at the fork. So a launcher is forked while the profiler is still small.
//! When everything else is ready, the launcher forks the process of the command as a child of the
//! profiler, and ends.

use std::{
    ffi::{CString, OsStr, OsString},
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    mem::MaybeUninit,
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
        Gid, Pid, PidfdFlags, Uid, WaitId, WaitIdOptions, WaitOptions, pidfd_open, waitid, waitpid,
    },
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};

use super::witness::{self, Witness, WitnessEnd};
use crate::{
    failure::{Failure, Reason},
    support::{invoking_user, resource_limits},
};

/// A process that waits for the order to fork the command.
pub struct Launcher {
    name: String,
    pid: Pid,
    channel: Channel,
    witness: Witness,
}

/// A command whose process exists but has not executed the program.
pub struct Stopped {
    /// The process id.
    pub pid: u32,
    name: String,
    channel: Channel,
    witness: Option<Witness>,
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
    pub pid: Pid,
    /// Knows the signals to its process group.
    pub witness: Option<Witness>,
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
        let (witness, of_witness) = witness::pair().map_err(|error| cannot_start(&name, &error))?;
        let user = invoking_user();
        // Signals wait for the command. Those to the profiler alone still end it.
        let mask = block_signals();
        // SAFETY: the profiler has no other thread yet, so the child may do whatever the parent
        // may.
        let forked = unsafe { libc::fork() };
        if forked != 0 {
            restore_mask(&mask);
        }
        match forked {
            -1 => Err(cannot_start(&name, &io::Error::last_os_error())),
            0 => {
                drop((ours, witness));
                let order = Order {
                    command,
                    user: user.as_ref(),
                    mask,
                };
                let served = serve(theirs, &order, &of_witness);
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
                witness,
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
            witness: Some(self.witness),
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

/// What the launcher is to start, and how.
struct Order<'a> {
    command: &'a [OsString],
    user: Option<&'a User>,
    /// Signals that the command inherits as blocked.
    mask: libc::sigset_t,
}

/// The launcher: waits for the order, forks the process of the command and reports its id.
fn serve(mut channel: Channel, order: &Order, of_witness: &WitnessEnd) -> io::Result<()> {
    let Some(length) = read_number(&mut channel.reader)? else {
        return Ok(());
    };
    let mut marks = vec![0; length.cast_unsigned() as usize];
    channel.reader.read_exact(&mut marks)?;
    let image = Image::new(order.command, &marks)?;
    // The Rust runtime ignores SIGPIPE; a command expects the default.
    // SAFETY: sets no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let pid = match fork_sibling() {
        Ok(0) => {
            // The pipe is closed if the command is cancelled or the profiler has died.
            channel.reader.read_exact(&mut [0])?;
            let error = match order.user.map_or(Ok(()), User::become_it) {
                Ok(()) => {
                    restore_mask(&order.mask);
                    image.execute()
                }
                Err(error) => error,
            };
            let error = error.raw_os_error().unwrap_or(libc::EIO);
            return channel.writer.write_all(&error.to_ne_bytes());
        }
        Ok(pid) => pid,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EAGAIN),
    };
    // After the command, which is the first child of the profiler. Without a witness, the profiler passes
    // all signals on.
    let witness = fork_sibling().unwrap_or(-1);
    if witness == 0 {
        drop(channel);
        of_witness.serve();
        return Ok(());
    }
    if pid > 0 {
        pass_pending_on(&[pid, witness]);
    }
    channel.writer.write_all(&pid.to_ne_bytes())
}

/// Forks a child of the profiler; returns 0 in it. glibc has no function for that; the other work of its
/// fork() is not needed by a process that only executes another program or makes system calls.
fn fork_sibling() -> io::Result<i32> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and CLONE_SETTLS this is fork(2); the launcher has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(pid).map_err(io::Error::other)
}

/// Sends signals that the group got before these processes existed.
fn pass_pending_on(pids: &[i32]) {
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is valid for the calls, and initialized by the first.
    unsafe {
        libc::sigpending(pending.as_mut_ptr());
        for signal in 1..=libc::SIGRTMAX() {
            if libc::sigismember(pending.as_ptr(), signal) == 1 {
                for pid in pids.iter().filter(|pid| **pid > 0) {
                    libc::kill(*pid, signal);
                }
            }
        }
    }
}

/// Blocks all signals in this thread. Returns those that were blocked.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the sets are valid for the calls, which initialize them; an empty set is valid, too.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is valid for the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *mask, std::ptr::null_mut()) };
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
        // Last: the command may have less memory than this process has.
        resource_limits::restore();
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
    let message = format!("cannot start `{name}`");
    if error.kind() == io::ErrorKind::WouldBlock {
        return resource_limits::no_task(&message, error);
    }
    Failure::new(Reason::CannotRun, format!("{message}: {error}"))
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
            witness: self.witness.take(),
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
