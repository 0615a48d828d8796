//! Receiving marks: who sent each, and when, in the kernel's words; limits; what was lost.

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
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::{ClockId, clock_gettime},
};
use tokio::sync::Notify;

use super::{
    MAX_BYTES, Mark, Op,
    losses::{Loss, Losses},
    quota::{Amount, Limits, Quota},
    rates::{LimitExceeded, Rates},
    receive::{Envelope, receive},
    socket::Bound,
};
use crate::{report, support::clock::monotonic_ns};

/// Marks that wait for a reading, with the memory that they take.
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

/// Marks that are received at a time, so that a flood never keeps a reading waiting: before a reading as many as may be there,
/// otherwise few, since a reading may want to begin.
const BEFORE_READING: usize = 16_384;
const AT_ONCE: usize = 512;

/// While marks come, they are looked for at this interval: nobody waits for them, so a sender wakes nobody.
const LOOK: Duration = Duration::from_micros(500);

/// After as many looks without a mark, the next one has to wake us.
const LOOKS: u32 = 40;

/// A mark with what the kernel says about it.
#[derive(Clone, Debug)]
pub struct Received {
    /// What was sent.
    pub mark: Mark,
    /// Sender's process id in our pid namespace; 0 if it has none there.
    pub pid: u32,
    /// Sender's user.
    pub uid: u32,
    /// When it was sent, ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Memory that it takes, bytes.
    pub bytes: usize,
}

impl Received {
    /// The process that the mark is of, as far as the sender is believed.
    pub fn of(&self) -> u32 {
        self.mark.pid.unwrap_or(self.pid)
    }
}

/// The socket, and the marks that came.
#[derive(Debug)]
pub struct MarkReceiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bound: Bound,
    state: Mutex<State>,
    /// What readings have not stored as it was meant. Apart, for a flood of marks holds the lock of the others most of the time.
    at_readings: Mutex<Losses>,
    /// Told when a mark has come.
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
    /// Whether everybody may write to the socket.
    open: bool,
    ended: bool,
    /// When the queue was last seen empty, ns of `CLOCK_MONOTONIC`: what is in it was sent later.
    empty_at: u64,
    /// When the first boundary, and the first other mark, of those of each user that wait was sent.
    first: HashMap<u32, [Option<u64>; 2]>,
}

/// Which reading the marks that wait are waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// One as soon as may be: a region has begun or ended.
    Boundary,
    /// One within a second of this moment, ns of `CLOCK_MONOTONIC`: the senders are to be found out.
    Within(u64),
}

impl MarkReceiver {
    /// Makes the socket and begins to receive; `all`: everybody is of the target.
    ///
    /// # Errors
    ///
    /// When there is no place for the socket.
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

    /// Lets a user send marks. Where the file system cannot name users, everybody may send, and only who belongs to the
    /// target is heard.
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
                report!("profiler: marks of users {:?}: {error}", state.users);
            }
        }
    }

    /// The processes that marks of these users are of: those that were sent up to now.
    pub fn marked_by(&self, users: &HashSet<u32>) -> HashSet<u32> {
        let mut state = self.shared.lock();
        state.drain_before_reading(&self.shared.bound.fd);
        let marks = state.marks.iter();
        let theirs = marks.filter(|received| users.contains(&received.uid));
        theirs.map(Received::of).collect()
    }

    /// All marks that were sent up to now, in the order in which they were sent.
    pub fn take(&self) -> Vec<Received> {
        let mut state = self.shared.lock();
        state.drain_before_reading(&self.shared.bound.fd);
        state.waiting = Quota::new(WAITING);
        state.first.clear();
        std::mem::take(&mut state.marks)
    }

    /// Puts back marks that wait for another reading.
    pub fn put_back(&self, marks: Vec<Received>) {
        let mut state = self.shared.lock();
        let came = std::mem::take(&mut state.marks);
        state.waiting = Quota::new(WAITING);
        state.first.clear();
        for received in marks.into_iter().chain(came) {
            state.waits(received);
        }
        if !state.marks.is_empty() {
            self.shared.came.notify_one();
        }
    }

    /// Counts a mark of a user that is not stored as it was meant; the first of each kind is reported.
    pub fn lose(&self, loss: Loss, uid: u32, whose: impl FnOnce() -> String) {
        let mut losses = locked(&self.shared.at_readings);
        losses.add(loss, 1, uid, whose);
    }

    /// The marks that were not stored as they were meant so far.
    pub fn losses(&self) -> Losses {
        let mut losses = self.shared.lock().losses.clone();
        losses.merge(&locked(&self.shared.at_readings));
        losses
    }

    /// What the marks of each user that wait are waiting for.
    pub fn wanted(&self) -> Vec<(u32, Wanted)> {
        let state = self.shared.lock();
        let wanted = state.first.iter().filter_map(|(uid, first)| match *first {
            [Some(_), _] => Some((*uid, Wanted::Boundary)),
            [None, Some(since)] => Some((*uid, Wanted::Within(since))),
            [None, None] => None,
        });
        wanted.collect()
    }

    /// Handles a datagram as if `sender` (process and user) had sent it at this moment, ns of `CLOCK_MONOTONIC`.
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

    /// Waits until a mark has come since the last call.
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

    /// Receives until the end. The queue of the socket is short, and a tick can take longer than it lasts.
    fn receive(&self) {
        crate::privileges::keep_none();
        // A short queue does not last from one look to the next.
        let may_look = self.bound.queue > 256;
        let mut looks = 0;
        loop {
            if looks == 0 {
                let mut fds = [PollFd::new(&self.bound.fd, PollFlags::IN)];
                let _ = poll(&mut fds, None);
            } else {
                std::thread::sleep(LOOK);
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
            looks = match (may_look, any) {
                (false, _) => 0,
                (true, true) => LOOKS,
                (true, false) => looks.saturating_sub(1),
            };
        }
    }
}

/// A panic elsewhere leaves nothing half done here.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Receives some of what is there and returns how many datagrams that were.
    fn drain(&mut self, fd: &OwnedFd) -> usize {
        let mut looked = Now::read();
        for count in 0..AT_ONCE {
            let Some(now) = self.receive_one(fd, looked) else {
                self.empty_at = looked.monotonic;
                return count;
            };
            looked = now;
        }
        AT_ONCE
    }

    /// Receives all that was sent up to now.
    fn drain_before_reading(&mut self, fd: &OwnedFd) {
        let looked = Now::read();
        for _ in 0..BEFORE_READING {
            match self.receive_one(fd, looked) {
                Some(now) if now == looked => {}
                Some(_) => return,
                None => break,
            }
        }
        self.empty_at = looked.monotonic;
    }

    /// Receives a datagram, if there is one. Returns a moment at which it had been sent: `looked`, unless that is too early.
    fn receive_one(&mut self, fd: &OwnedFd, looked: Now) -> Option<Now> {
        let envelope = receive(fd, &mut self.buffer)?;
        // There is none at the end of the socket.
        let sender = envelope.sender?;
        let now = match envelope.sent {
            Some(sent) if sent > looked.realtime => Now::read(),
            _ => looked,
        };
        self.handle(&envelope, sender, &now);
        Some(now)
    }

    /// Checks the datagram in the buffer and queues its mark, or counts it as lost.
    fn handle(&mut self, envelope: &Envelope, (pid, uid): (u32, u32), now: &Now) {
        let bytes = envelope.bytes;
        let oversized = envelope.truncated || bytes > MAX_BYTES;
        let at = envelope.sent.map_or(now.monotonic, |sent| {
            // Whatever has become of the wall clock meanwhile.
            now.monotonic_of(sent)
                .clamp(self.empty_at.min(now.monotonic), now.monotonic)
        });
        let taken = self.rates.take(pid, uid, bytes, now.monotonic);
        let sent = envelope.sent.unwrap_or(now.realtime);
        let most = self.rates.most_attempts(pid, sent);
        let datagram = &self.buffer[..bytes.min(MAX_BYTES)];
        let mut lose = |loss, count, what: &str| {
            let whose = || format!("from process {pid} of user {uid}: {what}");
            self.losses.add(loss, count, uid, whose);
        };
        let mark = match taken {
            Err(excess) => {
                let (loss, what) = match excess {
                    LimitExceeded::Marks => (Loss::TooFast, "sent too fast"),
                    LimitExceeded::Bytes => (Loss::TooMuch, "too many bytes"),
                };
                lose(loss, 1, what);
                // What it reports of others that are lost still counts.
                lose_dropped(&mut lose, dropped_in(datagram).min(most));
                return;
            }
            Ok(()) if oversized => {
                lose(Loss::Oversized, 1, "larger than 8 KiB");
                return;
            }
            Ok(()) if !self.waiting.has_room(uid) => {
                lose(Loss::NoRoom, 1, "too many wait for a reading");
                return;
            }
            Ok(()) => match Mark::parse(datagram) {
                Ok(mark) => mark,
                Err(why) => {
                    lose(Loss::Malformed, 1, &why);
                    return;
                }
            },
        };
        lose_dropped(&mut lose, mark.dropped.min(most));
        self.waits(Received {
            bytes: mark.memory() + size_of::<Received>(),
            mark,
            pid,
            uid,
            at,
        });
    }

    /// Takes a mark that waits for a reading.
    fn waits(&mut self, received: Received) {
        let boundary = matches!(received.mark.op, Op::Start | Op::End);
        let first = self.first.entry(received.uid).or_default();
        first[usize::from(!boundary)].get_or_insert(received.at);
        self.waiting.add(received.uid, received.bytes);
        self.marks.push(received);
    }
}

/// Counts marks that a sender reports to have found no room for.
fn lose_dropped(lose: &mut impl FnMut(Loss, u64, &str), count: u64) {
    if count != 0 {
        lose(Loss::Dropped, count, "the socket was full");
    }
}

/// What a datagram that is not read as a mark reports as dropped.
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

/// Both clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Now {
    monotonic: u64,
    realtime: i64,
}

impl Now {
    /// Of several readings the one that was interrupted least.
    fn read() -> Self {
        let reading = || {
            let before = monotonic_ns();
            let time = clock_gettime(ClockId::Realtime);
            let width = monotonic_ns() - before;
            let now = Self {
                monotonic: before + width / 2,
                realtime: time.tv_sec * 1_000_000_000 + time.tv_nsec,
            };
            (width, now)
        };
        let mut best = reading();
        for _ in 0..4 {
            if best.0 < 1000 {
                break;
            }
            let next = reading();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// The kernel stamps datagrams with the wall clock.
    fn monotonic_of(&self, sent: i64) -> u64 {
        let ago = self.realtime.saturating_sub(sent);
        self.monotonic.saturating_add_signed(-ago)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_datagram_reports_as_dropped() {
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
