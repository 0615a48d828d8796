//! Receives marks in a thread, with the sender and the time that the kernel reports, enforces the
//! limits, and counts the losses.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use nix::sys::socket::{Shutdown, shutdown};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::Notify;

use super::{
    MAX_BYTES, Mark, Op,
    clocks::Now,
    losses::{Loss, Losses},
    quota::{Amount, Limits, Quota},
    rates::{LimitExceeded, Rates},
    receive::{Envelope, receive},
    socket::Bound,
};
use crate::warning;

/// Marks that are queued for a reading, and their memory.
const WAITING: Limits = Limits {
    user: Amount {
        count: 32_768,
        bytes: 16 << 20,
    },
    all: Amount {
        count: 65_536,
        bytes: 32 << 20,
    },
    reserve: Amount {
        count: 1_024,
        bytes: 256 << 10,
    },
};

/// Marks received under one hold of the lock before a reading: more than the socket holds.
const BEFORE_READING: usize = 16_384;

/// Marks received under one hold of the lock by the thread: few, so that a flood of marks does not
/// delay a reading.
const BATCH: usize = 512;

/// Polling interval while marks arrive. Polling is cheaper for the senders: a sender wakes no
/// thread.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// After this many polls without a mark, the thread blocks until the next one.
const IDLE_POLLS: u32 = 40;

/// A mark with its kernel metadata.
#[derive(Clone, Debug)]
pub struct Received {
    /// Content of the datagram.
    pub mark: Mark,
    /// Pid of the sender in the profiler's pid namespace; 0 if it is in another.
    pub pid: u32,
    /// Uid of the sender.
    pub uid: u32,
    /// Time of sending, ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Memory, bytes.
    pub bytes: usize,
}

impl Received {
    /// The process that the mark describes, as claimed by the sender.
    pub fn of(&self) -> u32 {
        self.mark.pid.unwrap_or(self.pid)
    }
}

/// The socket, its thread, and the queue of received marks.
#[derive(Debug)]
pub struct MarkReceiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bound: Bound,
    state: Mutex<State>,
    /// Losses counted by readings. They have their own lock, because a flood of marks holds that of
    /// `state` most of the time.
    at_readings: Mutex<Losses>,
    /// Notified when a mark has been queued.
    came: Notify,
}

#[derive(Debug)]
struct State {
    buffer: Vec<u8>,
    marks: Vec<Received>,
    waiting: Quota,
    rates: Rates,
    losses: Losses,
    users: Vec<u32>,
    /// Whether all users may write to the socket.
    open: bool,
    ended: bool,
    /// When the socket was last seen empty, ns of `CLOCK_MONOTONIC`. Its marks were sent later.
    empty_at: u64,
    /// Times of each user's first queued boundary and first other queued mark.
    first: HashMap<u32, [Option<u64>; 2]>,
}

/// The reading that queued marks require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueReading {
    /// As soon as possible: a region has begun or ended.
    Boundary,
    /// Within a second of this time, ns of `CLOCK_MONOTONIC`, to identify the senders while they
    /// live.
    Within(u64),
}

impl MarkReceiver {
    /// Creates the socket and starts to receive; `all`: the target includes all users.
    ///
    /// # Errors
    ///
    /// If the socket or the thread cannot be created.
    pub fn open(name: &str, all: bool) -> io::Result<Self> {
        let bound = Bound::new(name)?;
        let now = Now::read();
        if all {
            bound.allow_all()?;
        }
        let shared = Arc::new(Shared {
            bound,
            state: Mutex::new(State {
                buffer: vec![0; MAX_BYTES + 1],
                marks: Vec::new(),
                waiting: Quota::new(WAITING),
                rates: Rates::new(now.monotonic, now.realtime),
                losses: Losses::default(),
                users: Vec::new(),
                open: all,
                ended: false,
                empty_at: now.monotonic,
                first: HashMap::new(),
            }),
            at_readings: Mutex::default(),
            came: Notify::new(),
        });
        let thread = std::thread::Builder::new()
            .name("marks".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.receive()
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.shared.bound.path
    }

    /// Permits users to send marks. If the file system does not support ACLs, all users may send,
    /// and marks from outside the target are refused later.
    pub fn allow(&self, users: impl IntoIterator<Item = u32>) {
        let mut state = self.shared.lock();
        if state.open {
            return;
        }
        let before = state.users.len();
        for user in users {
            if !state.users.contains(&user) {
                state.users.push(user);
            }
        }
        if state.users.len() == before {
            return;
        }
        if self.shared.bound.allow(&state.users).is_err() {
            state.open = true;
            if let Err(error) = self.shared.bound.allow_all() {
                warning!("profiler: marks of users {:?}: {error}", state.users);
            }
        }
    }

    /// The processes that queued marks of these users describe.
    pub fn marked_by(&self, users: &HashSet<u32>) -> HashSet<u32> {
        let mut state = self.shared.lock();
        state.drain_before_reading(&self.shared.bound.fd);
        let marks = state.marks.iter();
        let theirs = marks.filter(|received| users.contains(&received.uid));
        theirs.map(Received::of).collect()
    }

    /// Removes all marks that were sent before this call, in the order of sending.
    pub fn take(&self) -> Vec<Received> {
        let mut state = self.shared.lock();
        state.drain_before_reading(&self.shared.bound.fd);
        state.waiting = Quota::new(WAITING);
        state.first.clear();
        std::mem::take(&mut state.marks)
    }

    /// Returns marks to the queue, for another reading.
    pub fn put_back(&self, marks: Vec<Received>) {
        let mut state = self.shared.lock();
        let came = std::mem::take(&mut state.marks);
        state.waiting = Quota::new(WAITING);
        state.first.clear();
        for received in marks.into_iter().chain(came) {
            state.enqueue(received);
        }
        if !state.marks.is_empty() {
            self.shared.came.notify_one();
        }
    }

    /// Counts the loss of a user's mark, and reports the first of each kind with its `origin`.
    pub fn lose(&self, loss: Loss, uid: u32, origin: impl FnOnce() -> String) {
        let mut losses = locked(&self.shared.at_readings);
        losses.add(loss, 1, uid, origin);
    }

    /// All losses so far.
    pub fn losses(&self) -> Losses {
        let mut losses = self.shared.lock().losses.clone();
        losses.merge(&locked(&self.shared.at_readings));
        losses
    }

    /// The reading that the queued marks of each user require.
    pub fn due_readings(&self) -> Vec<(u32, DueReading)> {
        let state = self.shared.lock();
        let due = state.first.iter().filter_map(|(uid, first)| match *first {
            [Some(_), _] => Some((*uid, DueReading::Boundary)),
            [None, Some(since)] => Some((*uid, DueReading::Within(since))),
            [None, None] => None,
        });
        due.collect()
    }

    /// Handles a datagram as if `sender` (pid and uid) had sent it at `at`, ns of
    /// `CLOCK_MONOTONIC`.
    #[doc(hidden)]
    pub fn deliver(&self, datagram: &[u8], sender: (u32, u32), at: u64) {
        let mut state = self.shared.lock();
        let bytes = datagram.len().min(state.buffer.len());
        state.buffer[..bytes].copy_from_slice(&datagram[..bytes]);
        let envelope = Envelope {
            bytes,
            truncated: bytes < datagram.len(),
            ..Envelope::default()
        };
        let now = Now {
            monotonic: at,
            realtime: 0,
        };
        state.handle(&envelope, sender, &now);
    }

    /// Waits until a mark has been queued since the last call.
    pub async fn came(&self) {
        self.shared.came.notified().await;
    }
}

impl Drop for MarkReceiver {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        let _ = shutdown(self.shared.bound.fd.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// The thread: receives until the end, because a tick can take longer than the socket needs to
    /// fill.
    fn receive(&self) {
        crate::privileges::keep_none();
        // A short socket queue can fill between two polls.
        let may_poll = self.bound.queue > 256;
        let mut polls_left = 0;
        loop {
            if polls_left == 0 {
                let mut fds = [PollFd::new(&self.bound.fd, PollFlags::IN)];
                let _ = poll(&mut fds, None);
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
            let mut state = self.lock();
            if state.ended {
                return;
            }
            let any = state.drain(&self.bound.fd) != 0;
            let waiting = !state.marks.is_empty();
            drop(state);
            if any && waiting {
                self.came.notify_one();
            }
            polls_left = match (may_poll, any) {
                (false, _) => 0,
                (true, true) => IDLE_POLLS,
                (true, false) => polls_left.saturating_sub(1),
            };
        }
    }
}

/// Ignores poisoning: no panic can leave the data inconsistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Receives up to [`BATCH`] datagrams; returns their number.
    fn drain(&mut self, fd: &OwnedFd) -> usize {
        let mut now = Now::read();
        for count in 0..BATCH {
            let Some(later) = self.receive_one(fd, now) else {
                self.empty_at = now.monotonic;
                return count;
            };
            now = later;
        }
        BATCH
    }

    /// Receives all datagrams that were sent before this call.
    fn drain_before_reading(&mut self, fd: &OwnedFd) {
        let start = Now::read();
        for _ in 0..BEFORE_READING {
            match self.receive_one(fd, start) {
                Some(now) if now == start => {}
                Some(_) => return,
                None => break,
            }
        }
        self.empty_at = start.monotonic;
    }

    /// Receives a datagram without waiting. Returns `before`, or the present time if the datagram
    /// was sent after `before`.
    fn receive_one(&mut self, fd: &OwnedFd, before: Now) -> Option<Now> {
        let envelope = receive(fd, &mut self.buffer)?;
        // After shutdown(2), recvmsg(2) returns no sender.
        let sender = envelope.sender?;
        let now = match envelope.sent {
            Some(sent) if sent > before.realtime => Now::read(),
            _ => before,
        };
        self.handle(&envelope, sender, &now);
        Some(now)
    }

    /// Checks the datagram in the buffer and queues its mark, or counts it as lost.
    fn handle(&mut self, envelope: &Envelope, (pid, uid): (u32, u32), now: &Now) {
        let bytes = envelope.bytes;
        let oversized = envelope.truncated || bytes > MAX_BYTES;
        let at = envelope.sent.map_or(now.monotonic, |sent| {
            // The wall clock may have been set in the meantime.
            now.monotonic_of(sent)
                .clamp(self.empty_at.min(now.monotonic), now.monotonic)
        });
        let taken = self.rates.take(pid, uid, bytes, now.monotonic);
        let sent = envelope.sent.unwrap_or(now.realtime);
        let most = self.rates.most_attempts(pid, sent);
        let datagram = &self.buffer[..bytes.min(MAX_BYTES)];
        let mut lose = |loss, count, reason: &str| {
            let origin = || format!("from process {pid} of user {uid}: {reason}");
            self.losses.add(loss, count, uid, origin);
        };
        let mark = match taken {
            Err(exceeded) => {
                let (loss, reason) = match exceeded {
                    LimitExceeded::Marks => (Loss::TooFast, "too many marks per second"),
                    LimitExceeded::Bytes => (Loss::TooMuch, "too many bytes per second"),
                };
                lose(loss, 1, reason);
                // Earlier drops that this mark reports still count.
                lose_dropped(&mut lose, dropped_in(datagram).min(most));
                return;
            }
            Ok(()) if oversized => {
                lose(Loss::Oversized, 1, "larger than 8 KiB");
                return;
            }
            Ok(()) if !self.waiting.has_room(uid) => {
                lose(Loss::NoRoom, 1, "too many marks are queued for a reading");
                return;
            }
            Ok(()) => match Mark::parse(datagram) {
                // The shell has become its last command, whose parent is the profiler.
                Ok(mark) if mark.pid == Some(std::process::id()) => Mark { pid: None, ..mark },
                Ok(mark) => mark,
                Err(error) => {
                    lose(Loss::Malformed, 1, &error);
                    return;
                }
            },
        };
        lose_dropped(&mut lose, mark.dropped.min(most));
        self.enqueue(Received {
            bytes: mark.memory() + size_of::<Received>(),
            mark,
            pid,
            uid,
            at,
        });
    }

    fn enqueue(&mut self, received: Received) {
        let boundary = matches!(received.mark.op, Op::Start | Op::End);
        let first = self.first.entry(received.uid).or_default();
        first[usize::from(!boundary)].get_or_insert(received.at);
        self.waiting.add(received.uid, received.bytes);
        self.marks.push(received);
    }
}

/// Counts marks that the sender reports as dropped.
fn lose_dropped(lose: &mut impl FnMut(Loss, u64, &str), count: u64) {
    if count != 0 {
        lose(Loss::Dropped, count, "the socket was full");
    }
}

/// The number of drops that a datagram reports, without parsing it as a mark.
fn dropped_in(datagram: &[u8]) -> u64 {
    const FIELD: &[u8] = b"\"dropped\":";
    let Some(place) = memchr::memmem::find(datagram, FIELD) else {
        return 0;
    };
    let digits = datagram[place + FIELD.len()..].trim_ascii_start().iter();
    let digits = digits.map_while(|digit| char::from(*digit).to_digit(10));
    digits.fold(0_u64, |number, digit| {
        number.saturating_mul(10).saturating_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_without_parsing() {
        for (datagram, dropped) in [
            (&br#"{"op":"event","name":"x","dropped":12}"#[..], 12),
            (br#"{"dropped": 7, "op":"event"}"#, 7),
            (br#"{"op":"event","name":"x"}"#, 0),
            (br#"{"dropped":"#, 0),
            (br#"{"dropped":99999999999999999999999"#, u64::MAX),
        ] {
            assert_eq!(dropped_in(datagram), dropped);
        }
    }
}
