//! Tells whether a signal was sent to the process group of the command, or to the profiler alone.
//!
//! A process of the group blocks all signals and reports those that are pending. The kernel sends a
//! signal to all processes of a group in one step, so the process has it if the command has it.

use std::{
    io::{self, PipeReader, PipeWriter, Write as _},
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use rustix::process::{Signal, getpgrp, setpgid};
use tokio::io::unix::AsyncFd;

use super::readiness::{readable, wait_readable};
use crate::support::signals::is_queued;

/// Signals in an answer.
const MOST: usize = 64;
/// Name of the process. It does not contain that of the profiler, so that `pkill profiler` does not
/// find it.
const NAME: &[u8] = b"signal-witness\0";
/// Time after which the process is not asked again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The end of the connection that stays with the process.
pub struct WitnessEnd {
    requests: PipeReader,
    answers: PipeWriter,
}

/// The connection to the process, which ends with it.
pub struct Witness {
    requests: PipeWriter,
    answers: PipeReader,
}

/// Creates both ends.
pub fn pair() -> io::Result<(Witness, WitnessEnd)> {
    let (requests, request) = io::pipe()?;
    let (answer, answers) = io::pipe()?;
    let ours = Witness {
        requests: request,
        answers: answer,
    };
    Ok((ours, WitnessEnd { requests, answers }))
}

impl WitnessEnd {
    /// Answers until the profiler has ended. The process has one thread, and blocks all signals.
    pub fn serve(&self) {
        // SAFETY: nothing else of this process uses its descriptors. Those of the command, which it has
        // inherited, would keep pipes open.
        unsafe {
            libc::dup2(self.requests.as_raw_fd(), 0);
            libc::dup2(self.answers.as_raw_fd(), 1);
            libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
            libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        }
        hide_arguments();
        let mut request = [0_u8];
        // SAFETY: the buffers are valid for the calls.
        unsafe {
            while libc::read(0, request.as_mut_ptr().cast(), 1) == 1 {
                let answer = pending();
                libc::write(1, answer.as_ptr().cast(), answer.len());
            }
        }
    }
}

/// Takes the pending signals: their number and the signals themselves.
fn pending() -> [u8; MOST + 1] {
    let mut answer = [0; MOST + 1];
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    for place in 1..=MOST {
        // SAFETY: the set is initialized first, and everything is valid for the calls.
        let signal = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigtimedwait(all.as_ptr(), std::ptr::null_mut(), &raw const now)
        };
        let Some(signal) = u8::try_from(signal).ok().filter(|signal| *signal != 0) else {
            break;
        };
        answer[place] = signal;
        answer[0] += 1;
    }
    answer
}

/// Replaces the command line that `ps` shows, by which `pkill -f` would find the process.
fn hide_arguments() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which can contain spaces, the third field follows.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let address = |field: usize| fields.split(' ').nth(field - 3)?.parse::<usize>().ok();
    let (Some(start), Some(end)) = (address(48), address(49)) else {
        return;
    };
    let length = end.saturating_sub(start);
    let shown = NAME.len().min(length);
    // SAFETY: the memory of the arguments, which nothing in this process reads any more.
    unsafe {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
        start.write_bytes(0, length);
        start.copy_from_nonoverlapping(NAME.as_ptr(), shown);
    }
}

/// A witness that a loop asks.
pub struct Asked {
    requests: PipeWriter,
    /// `None` when the process no longer answers.
    answers: Option<AsyncFd<OwnedFd>>,
    /// Signals that it has had and that were not taken.
    seen: Vec<Signal>,
}

impl Witness {
    /// Registers the connection with the loop.
    ///
    /// # Errors
    ///
    /// When there are no further descriptors.
    pub fn register(self) -> io::Result<Asked> {
        rustix::io::ioctl_fionbio(&self.answers, true)?;
        Ok(Asked {
            requests: self.requests,
            answers: Some(readable(self.answers.into())?),
            seen: Vec::new(),
        })
    }
}

impl Asked {
    /// Learns which signals have been sent to the group by now.
    pub async fn ask(&mut self) {
        // The kernel holds the list of processes while it signals a group, and this call waits for it.
        let _ = setpgid(None, Some(getpgrp()));
        let Some(answers) = &self.answers else {
            return;
        };
        let answer = async {
            self.requests.write_all(b"?").ok()?;
            loop {
                let mut bytes = [0; MOST + 1];
                match rustix::io::read(answers.get_ref(), &mut bytes) {
                    Ok(length) if length == bytes.len() => return Some(bytes),
                    Err(rustix::io::Errno::AGAIN) => wait_readable(Some(answers)).await,
                    _ => return None,
                }
            }
        };
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Some(bytes)) => {
                let signals = bytes[1..].iter().take(bytes[0].into());
                // SAFETY: numbers of signals that the kernel has delivered.
                let signals =
                    signals.map(|raw| unsafe { Signal::from_raw_unchecked((*raw).into()) });
                self.seen.extend(signals);
            }
            _ => self.answers = None,
        }
    }

    /// Whether it has had the signal, which is then forgotten.
    pub fn take(&mut self, signal: Signal) -> bool {
        let found = self.seen.iter().position(|seen| *seen == signal);
        if let Some(place) = found {
            self.seen.remove(place);
        }
        if !is_queued(signal) {
            self.seen.retain(|seen| *seen != signal);
        }
        found.is_some()
    }
}
