//! Helper processes for system calls that may never return. A thread in such a call would prevent
//! the profiler from ending.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};

use super::clock::cpu_ns_of;

/// Descriptor from which the process reads requests.
pub const REQUESTS: i32 = 0;
/// Descriptor to which the process writes answers.
pub const ANSWERS: i32 = 1;
/// Descriptor of the file that the process was given.
pub const INPUT: i32 = 2;

/// Helpers that have not been waited for.
static ALL: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn all() -> MutexGuard<'static, BTreeSet<u32>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CPU time of the helpers that have not been waited for, ns.
pub fn cpu_ns() -> u64 {
    all().iter().filter_map(|pid| cpu_ns_of(*pid)).sum()
}

/// A process that answers requests; it is killed when this is dropped.
#[derive(Debug)]
pub struct HelperProcess {
    child: Pid,
    /// What the process reads from [`REQUESTS`].
    pub requests: File,
    /// What the process writes to [`ANSWERS`].
    pub answers: File,
}

impl HelperProcess {
    /// Forks a process that calls `serve` and then ends. It has the file `input` as [`INPUT`].
    ///
    /// # Safety
    ///
    /// `serve` may only make system calls: locks and the heap are those of the parent as of now.
    ///
    /// # Errors
    ///
    /// When there is no further process or descriptor.
    pub unsafe fn start(input: Option<BorrowedFd<'_>>, serve: impl FnOnce()) -> io::Result<Self> {
        let (request, requests) = pipe_with(PipeFlags::CLOEXEC)?;
        let (answers, answer) = pipe_with(PipeFlags::CLOEXEC)?;
        let input = input.map(|input| input.as_raw_fd());
        // SAFETY: the child makes only system calls. Its other descriptors are closed, so that
        // counters and BPF programs end with the parent and signal handlers cannot write to its
        // pipes.
        let child = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: as above.
            0 => unsafe {
                libc::dup2(request.as_raw_fd(), REQUESTS);
                libc::dup2(answer.as_raw_fd(), ANSWERS);
                let last = input.map_or(ANSWERS, |input| libc::dup2(input, INPUT));
                libc::syscall(libc::SYS_close_range, last + 1, libc::c_uint::MAX, 0);
                serve();
                libc::_exit(0)
            },
            child => Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?,
        };
        drop::<(OwnedFd, OwnedFd)>((request, answer));
        let helper = Self {
            child,
            requests: requests.into(),
            answers: answers.into(),
        };
        all().insert(helper.pid());
        Ok(helper)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_raw_nonzero().get().cast_unsigned()
    }

    /// Whether an answer, or the end of the process, comes within `timeout`.
    ///
    /// # Errors
    ///
    /// When the pipe cannot be waited for.
    pub fn has_answer(&self, timeout: Duration) -> io::Result<bool> {
        wait_for_any(&mut [self.awaited()], timeout)
    }

    /// Whether an answer, or the end, of one of these processes comes within `timeout`.
    ///
    /// # Errors
    ///
    /// When the pipes cannot be waited for.
    pub fn has_any_answer<'a>(
        processes: impl Iterator<Item = &'a Self>,
        timeout: Duration,
    ) -> io::Result<bool> {
        let mut pipes: Vec<_> = processes.map(Self::awaited).collect();
        wait_for_any(&mut pipes, timeout)
    }

    fn awaited(&self) -> PollFd<'_> {
        PollFd::new(&self.answers, PollFlags::IN)
    }

    /// Kills the process. It can remain in its system call.
    pub fn kill(&self) {
        let _ = kill_process(self.child, Signal::KILL);
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let has_ended = !matches!(waitpid(Some(self.child), WaitOptions::NOHANG), Ok(None));
        if has_ended {
            all().remove(&self.pid());
        }
        has_ended
    }
}

/// Has the process killed when the thread ends that has forked it. A system call that blocks does not see
/// the end of a pipe.
pub fn end_with_thread() {
    // SAFETY: a system call without pointers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Transfers all bytes, in the process; `false` at the end of the pipe. The function makes the system call.
pub fn transfer(bytes: &mut [u8], mut call: impl FnMut(*mut u8, usize) -> isize) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        match call(rest.as_mut_ptr(), rest.len()) {
            count if count > 0 => done += count.cast_unsigned(),
            _ => return false,
        }
    }
    true
}

fn wait_for_any(pipes: &mut [PollFd<'_>], timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(pipes, Some(&timeout)) {
        Ok(ready) => Ok(ready != 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        self.kill();
        // init reaps a process that is stuck in the call.
        let _ = waitpid(Some(self.child), WaitOptions::NOHANG);
        all().remove(&self.pid());
    }
}
