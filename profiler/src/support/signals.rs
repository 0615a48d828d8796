//! Signals that end a program or make it reload its configuration, and those for a command that it
//! has started.

use std::{
    fs::OpenOptions,
    io,
    mem::MaybeUninit,
    os::{
        fd::{IntoRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Signal,
};
use tokio::io::{Interest, unix::AsyncFd};

/// Signals whose default action ends a process.
const ENDING: [Signal; 12] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::XCPU,
];
/// Signals that stop a process and let it continue, and those that are ignored by default. Only for a
/// command.
const OTHERS: [Signal; 6] = [
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::CONT,
    Signal::WINCH,
    Signal::URG,
];

/// Where the handler writes; -1 before there is a pipe.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Which signals are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those that end a program.
    Ending,
    /// All that a command can be sent.
    ForCommand,
}

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub signal: Signal,
    /// Whether the kernel sent it: a terminal, a timer or a limit.
    pub by_kernel: bool,
}

impl Received {
    /// Bytes in the pipe.
    const SIZE: usize = 2;

    fn from_bytes([signal, by_kernel]: [u8; Self::SIZE]) -> Self {
        Self {
            // SAFETY: the number of a signal that the kernel has delivered.
            signal: unsafe { Signal::from_raw_unchecked(signal.into()) },
            by_kernel: by_kernel != 0,
        }
    }
}

/// Whether a signal stops a process.
pub fn stops(signal: Signal) -> bool {
    is_stop(signal.as_raw())
}

fn is_stop(signal: i32) -> bool {
    [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

/// Whether the kernel counts how often the signal is sent.
pub fn is_queued(signal: Signal) -> bool {
    signal.as_raw() >= libc::SIGRTMIN()
}

/// Whether a signal ends a profiler that has no command to pass it on to. The others are for programs that
/// expect them.
pub fn ends(signal: Signal) -> bool {
    [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::TERM,
        Signal::XCPU,
    ]
    .contains(&signal)
}

/// Handlers of the signals.
pub struct Signals {
    pipe: AsyncFd<OwnedFd>,
    has_terminal: bool,
    ignores_hangup: bool,
}

impl Signals {
    /// Installs the handlers, in a tokio runtime. A signal that is ignored remains so, except SIGINT,
    /// which shells ignore in background processes of scripts, and SIGTERM; for a command, only those
    /// that stop remain so.
    ///
    /// # Errors
    ///
    /// When there are no further descriptors.
    pub fn new(wanted: Wanted) -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // SAFETY: the descriptor is owned, and closed only after it is deregistered.
        let pipe = unsafe { AsyncFd::register_with_interest(reader, Interest::READABLE) };
        let pipe = pipe.map_err(|error| error.into_parts().1)?;
        // The handler can run until the process ends.
        PIPE.store(writer.into_raw_fd(), Ordering::Relaxed);
        let ignores_hangup = is_ignored(libc::SIGHUP);
        let for_command = wanted == Wanted::ForCommand;
        let others = OTHERS.iter().filter(|_| for_command);
        for signal in ENDING.iter().chain(others) {
            let always = [Signal::INT, Signal::TERM].contains(signal);
            let always = always || for_command && !stops(*signal);
            if always || !is_ignored(signal.as_raw()) {
                handle(signal.as_raw())?;
            }
        }
        // A file that is too large is an error of write(2), like a full disk.
        // SAFETY: sets no handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            if for_command || !is_ignored(signal) {
                handle(signal)?;
            }
        }
        Ok(Self {
            pipe,
            // Now: a terminal that hangs up is no longer that of the process.
            has_terminal: has_controlling_terminal(),
            ignores_hangup,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Received {
        loop {
            if let Some(received) = self.arrived() {
                return received;
            }
            match self.pipe.readable().await {
                Ok(mut guard) => {
                    if let Some(received) = read(self.pipe.get_ref()) {
                        return received;
                    }
                    guard.clear_ready();
                }
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// The next signal, if one has arrived.
    pub fn arrived(&mut self) -> Option<Received> {
        read(self.pipe.get_ref())
    }

    /// Whether the signal asks for a reload, as SIGHUP does in a process without a terminal. From a
    /// terminal, it means that the user has gone.
    pub fn reloads(&self, signal: Signal) -> bool {
        signal == Signal::HUP && !self.has_terminal
    }

    /// Whether SIGHUP was ignored at the start, as by nohup(1).
    pub fn ignores_hangup(&self) -> bool {
        self.ignores_hangup
    }
}

fn read(pipe: &OwnedFd) -> Option<Received> {
    let mut bytes = [0; Received::SIZE];
    // Such a small message is written and read whole.
    let length = rustix::io::read(pipe, &mut bytes).ok()?;
    (length == bytes.len()).then(|| Received::from_bytes(bytes))
}

/// The present action for a signal.
fn action(signal: i32) -> libc::sigaction {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the action, which is valid for the call and consists of integers, which may be
    // 0.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

fn is_ignored(signal: i32) -> bool {
    action(signal).sa_sigaction == libc::SIG_IGN
}

/// Installs the handler, and lets the signal arrive if the parent has blocked it.
fn handle(signal: i32) -> io::Result<()> {
    let mut new = action(signal);
    new.sa_sigaction = note as *const () as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler makes only system calls, and both structures are valid for the calls.
    let done = unsafe {
        libc::sigemptyset(&raw mut new.sa_mask);
        libc::sigaction(signal, &raw const new, ptr::null_mut())
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    change_mask(libc::SIG_UNBLOCK, signal);
    Ok(())
}

/// Blocks or unblocks a signal in this thread. Returns the signals that were blocked.
fn change_mask(how: i32, signal: i32) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialized first, and both are valid for the calls; a set may be all zeros.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(how, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Writes what must not stop the process, in the background of a terminal with `stty tostop`: the kernel
/// would stop the whole group, and the command with it.
pub fn unstopped<T>(write: impl FnOnce() -> T) -> T {
    let before = change_mask(libc::SIG_BLOCK, libc::SIGTTOU);
    let written = write();
    // SAFETY: the set is valid for the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    written
}

/// The handler. It makes only system calls.
extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the variable of the thread, which the interrupted code may be about to read.
    let error = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid structure.
    let by_kernel = unsafe { (*info).si_code } == libc::SI_KERNEL;
    if is_stop(signal) && by_kernel {
        // At once: a write to the terminal is repeated after the handler, and would raise it again.
        stop(signal);
    } else {
        let bytes = [u8::try_from(signal).unwrap_or(0), by_kernel.into()];
        let pipe = PIPE.load(Ordering::Relaxed);
        // SAFETY: the bytes are valid for the call. In a helper process, the descriptor is closed.
        let _ = unsafe { libc::write(pipe, bytes.as_ptr().cast(), bytes.len()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}

/// Takes the default action of a signal that stops: returns when the process continues. As the kernel
/// does, does nothing without a parent that could let it continue.
pub fn stop(signal: i32) {
    let handler = action(signal);
    let mut default = handler;
    default.sa_sigaction = libc::SIG_DFL;
    // SAFETY: the structures are valid for the calls.
    unsafe {
        libc::sigaction(signal, &raw const default, ptr::null_mut());
        libc::raise(signal);
        // Blocked in its handler.
        change_mask(libc::SIG_UNBLOCK, signal);
        libc::sigaction(signal, &raw const handler, ptr::null_mut());
    }
}

fn has_controlling_terminal() -> bool {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOCTTY);
    options.open("/dev/tty").is_ok()
}

/// The exit code of a session that a signal has ended, as in sh(1).
pub fn exit_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(1)
}
