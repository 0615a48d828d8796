//! Receiving marks: who sent each, and when, in the kernel's words; limits; what was lost.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use nix::sys::socket::{Shutdown, shutdown};
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::{ClockId, clock_gettime},
};
use tokio::sync::Notify;

use super::{MAX_BYTES, Mark, Op, receive::receive, socket::Bound};
use crate::{clock::monotonic_ns, say};

/// Marks per second that a process may send for long, and all together.
const RATE: [f64; 2] = [5_000.0, 20_000.0];

/// Seconds of that rate that may come at once.
const BURST: f64 = 2.0;

/// Memory in bytes of marks that wait for a reading.
const PENDING_BYTES: usize = 16 << 20;

/// Marks that are received at a time, so that a flood never keeps a reading waiting.
const AT_ONCE: usize = 16_384;

/// While marks come, they are looked for at this interval: nobody waits for them, so a sender wakes nobody.
const LOOK: Duration = Duration::from_micros(500);

/// After as many looks without a mark, the next one has to wake us.
const LOOKS: u32 = 40;

/// What happens to marks that are not stored as they were meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Not JSON, or not what the grammar says.
    Malformed,
    /// More than [`MAX_BYTES`].
    Oversized,
    /// More per second than is allowed.
    TooFast,
    /// The sender, or whom it names, is not of the target.
    Refused,
    /// More regions are open than is allowed.
    TooManyOpen,
    /// The senders could not send them: the socket was full.
    Dropped,
    /// No reading came in time.
    NoRoom,
    /// An end without a start. It is stored.
    Unmatched,
    /// A start with the id of a region that is open. It is stored.
    Duplicate,
}

impl Loss {
    const ALL: [Self; 9] = [
        Self::Malformed,
        Self::Oversized,
        Self::TooFast,
        Self::Refused,
        Self::TooManyOpen,
        Self::Dropped,
        Self::NoRoom,
        Self::Unmatched,
        Self::Duplicate,
    ];

    /// The name of its row in table `overhead`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::TooFast => "too_fast",
            Self::Refused => "refused",
            Self::TooManyOpen => "too_many_open",
            Self::Dropped => "socket_full",
            Self::NoRoom => "no_room",
            Self::Unmatched => "end_without_start",
            Self::Duplicate => "duplicate_id",
        }
    }

    /// Whether nothing of the mark is stored.
    pub fn is_lost(self) -> bool {
        !matches!(self, Self::Unmatched | Self::Duplicate)
    }

    /// What it means, for people.
    pub fn why(self) -> &'static str {
        match self {
            Self::Malformed => "not a mark as docs/regions.md has them",
            Self::Oversized => "larger than 8 KiB",
            Self::TooFast => "more than 5,000 per second from a process, or 20,000 from all",
            Self::Refused => "not from or for a process of the target",
            Self::TooManyOpen => "too many regions are open",
            Self::Dropped => "the senders found the socket full",
            Self::NoRoom => "more than 16 MiB waited for a reading",
            Self::Unmatched => "they end a region that is not open",
            Self::Duplicate => "they start a region with the id of one that is open",
        }
    }
}

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
    /// Its size.
    pub bytes: usize,
}

/// The socket, and the marks that came.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bound: Bound,
    state: Mutex<State>,
    /// Told when a mark has come.
    came: Notify,
}

#[derive(Debug)]
struct State {
    buffer: Vec<u8>,
    marks: Vec<Received>,
    bytes: usize,
    rates: Rates,
    lost: [u64; Loss::ALL.len()],
    users: Vec<u32>,
    /// Whether everybody may write to the socket.
    open: bool,
    ended: bool,
    /// When the queue was last seen empty, ns of `CLOCK_MONOTONIC`: what is in it was sent later.
    empty_at: u64,
    /// When the first boundary, and the first other mark, of those that wait was sent.
    first: [Option<u64>; 2],
}

/// Which reading the marks that wait are waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// One as soon as may be: a region has begun or ended.
    Boundary,
    /// One within a second of this moment, ns of `CLOCK_MONOTONIC`: the senders are to be found out.
    Within(u64),
}

impl Inbox {
    /// Makes the socket and begins to receive; `all`: everybody is of the target.
    ///
    /// # Errors
    ///
    /// When there is no place for the socket.
    pub fn open(name: &str, all: bool) -> io::Result<Self> {
        let bound = Bound::new(name)?;
        if all {
            bound.allow_all()?;
        }
        let shared = Arc::new(Shared {
            bound,
            state: Mutex::new(State {
                buffer: vec![0; MAX_BYTES + 1],
                marks: Vec::new(),
                bytes: 0,
                rates: Rates::default(),
                lost: [0; Loss::ALL.len()],
                users: Vec::new(),
                open: all,
                ended: false,
                empty_at: monotonic_ns(),
                first: [None; 2],
            }),
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
                say!("profiler: marks of users {:?}: {error}", state.users);
            }
        }
    }

    /// All marks that were sent up to now, in the order in which they were sent.
    pub fn take(&self) -> Vec<Received> {
        let mut state = self.shared.lock();
        state.drain(&self.shared.bound.fd);
        state.bytes = 0;
        state.first = [None; 2];
        std::mem::take(&mut state.marks)
    }

    /// Puts back marks of after the reading.
    pub fn put_back(&self, marks: Vec<Received>) {
        let mut state = self.shared.lock();
        let came = std::mem::replace(&mut state.marks, marks);
        state.bytes = 0;
        state.first = [None; 2];
        for place in 0..state.marks.len() {
            let (bytes, at, op) = {
                let mark = &state.marks[place];
                (mark.bytes, mark.at, mark.mark.op)
            };
            state.waits(op, at, bytes);
        }
        for received in came {
            state.waits(received.mark.op, received.at, received.bytes);
            state.marks.push(received);
        }
        if !state.marks.is_empty() {
            self.shared.came.notify_one();
        }
    }

    /// Counts marks that are not stored as they were meant; the first of each kind is said.
    pub fn lose(&self, loss: Loss, count: u64, whose: &str) {
        self.shared.lock().lose(loss, count, whose);
    }

    /// How many marks each kind of loss had so far.
    pub fn losses(&self) -> impl Iterator<Item = (Loss, u64)> + use<> {
        let lost = self.shared.lock().lost;
        Loss::ALL.into_iter().zip(lost)
    }

    /// What the marks that wait are waiting for.
    pub fn wanted(&self) -> Option<Wanted> {
        match self.shared.lock().first {
            [Some(_), _] => Some(Wanted::Boundary),
            [None, Some(since)] => Some(Wanted::Within(since)),
            [None, None] => None,
        }
    }

    /// Waits until a mark has come since the last call.
    pub async fn came(&self) {
        self.shared.came.notified().await;
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        let _ = shutdown(self.shared.bound.fd.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A panic elsewhere leaves nothing half done here.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

impl State {
    /// Receives what is there and returns how many datagrams that were.
    fn drain(&mut self, fd: &OwnedFd) -> usize {
        let now = Now::read();
        let mut count = 0;
        while self.receive_one(fd, &now) {
            count += 1;
            if count == AT_ONCE {
                return count;
            }
        }
        self.empty_at = now.monotonic;
        count
    }

    fn receive_one(&mut self, fd: &OwnedFd, now: &Now) -> bool {
        let Some(envelope) = receive(fd, &mut self.buffer) else {
            return false;
        };
        let bytes = envelope.bytes;
        let oversized = envelope.truncated || bytes > MAX_BYTES;
        let Some((pid, uid)) = envelope.sender else {
            // The end of the socket.
            return false;
        };
        let at = envelope.sent.map_or(now.monotonic, |sent| {
            // Whatever has become of the wall clock meanwhile.
            now.monotonic_of(sent)
                .clamp(self.empty_at.min(now.monotonic), now.monotonic)
        });
        let whose = |what: &str| format!("from process {pid}: {what}");
        if !self.rates.allow(pid, now.monotonic) {
            self.lose(Loss::TooFast, 1, &whose("sent too fast"));
            // What it says of others that are lost still counts.
            let datagram = &self.buffer[..bytes.min(MAX_BYTES)];
            let told = datagram.windows(9).any(|word| word == b"\"dropped\"");
            if told && let Ok(mark) = Mark::parse(datagram) {
                self.lose(Loss::Dropped, mark.dropped, &whose("the socket was full"));
            }
        } else if oversized {
            self.lose(Loss::Oversized, 1, &whose("larger than 8 KiB"));
        } else if self.bytes > PENDING_BYTES {
            self.lose(Loss::NoRoom, 1, &whose("too many wait for a reading"));
        } else {
            match Mark::parse(&self.buffer[..bytes]) {
                Ok(mark) => {
                    if mark.dropped != 0 {
                        let count = mark.dropped;
                        self.lose(Loss::Dropped, count, &whose("the socket was full"));
                    }
                    self.waits(mark.op, at, bytes);
                    self.marks.push(Received {
                        mark,
                        pid,
                        uid,
                        at,
                        bytes,
                    });
                }
                Err(why) => self.lose(Loss::Malformed, 1, &whose(&why)),
            }
        }
        true
    }

    /// Notes that a mark waits for a reading.
    fn waits(&mut self, op: Op, at: u64, bytes: usize) {
        let boundary = matches!(op, Op::Start | Op::End);
        self.first[usize::from(!boundary)].get_or_insert(at);
        // As JSON in memory it takes a multiple.
        self.bytes += 4 * bytes + size_of::<Received>();
    }

    fn lose(&mut self, loss: Loss, count: u64, whose: &str) {
        let lost = &mut self.lost[loss as usize];
        if *lost == 0 {
            let what = if loss.is_lost() {
                "lost"
            } else {
                "stored as it came"
            };
            // What others have written is shown as far as it is harmless.
            let whose: String = whose
                .chars()
                .take(200)
                .map(|char| if char.is_control() { '\u{fffd}' } else { char })
                .collect();
            say!("profiler: a mark is {what}, {whose} (more of this kind are counted only)");
        }
        *lost = lost.saturating_add(count);
    }
}

/// Both clocks at one moment.
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

/// Who sends how fast: token buckets.
#[derive(Debug, Default)]
struct Rates {
    of_process: HashMap<u32, Bucket>,
    of_all: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: u64,
}

impl Rates {
    /// Senders that are remembered; more forgets those that have not sent for a while.
    const SENDERS: usize = 4096;

    fn allow(&mut self, pid: u32, now: u64) -> bool {
        if self.of_process.len() > Self::SENDERS {
            let full = |bucket: &Bucket| now.saturating_sub(bucket.at) as f64 > BURST * 1e9;
            self.of_process.retain(|_, bucket| !full(bucket));
        }
        let new = |rate: f64| Bucket {
            tokens: rate * BURST,
            at: now,
        };
        let of_process = self.of_process.entry(pid).or_insert_with(|| new(RATE[0]));
        of_process.take(RATE[0], now)
            && self
                .of_all
                .get_or_insert_with(|| new(RATE[1]))
                .take(RATE[1], now)
    }
}

impl Bucket {
    fn take(&mut self, rate: f64, now: u64) -> bool {
        let since = now.saturating_sub(std::mem::replace(&mut self.at, now));
        self.tokens = (self.tokens + since as f64 / 1e9 * rate).min(rate * BURST);
        let there = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(there));
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn allowed(rates: &mut Rates, pid: u32, now: u64) -> usize {
        (0..100_000).filter(|_| rates.allow(pid, now)).count()
    }

    #[test]
    fn a_process_may_send_so_many_and_all_together_too() {
        let mut rates = Rates::default();
        assert_eq!(allowed(&mut rates, 1, 0), 10_000);
        assert_eq!(allowed(&mut rates, 1, SECOND / 10), 500);
        // However long it was silent.
        assert_eq!(allowed(&mut rates, 1, 100 * SECOND), 10_000);
        for pid in 2..5 {
            assert_eq!(allowed(&mut rates, pid, 100 * SECOND), 10_000);
        }
        assert_eq!(allowed(&mut rates, 5, 100 * SECOND), 0);
        assert_eq!(allowed(&mut rates, 5, 101 * SECOND), 5_000);
    }

    #[test]
    fn senders_are_forgotten() {
        let mut rates = Rates::default();
        for pid in 0..100_000 {
            rates.allow(pid, u64::from(pid) * SECOND / 1000);
            assert!(rates.of_process.len() <= Rates::SENDERS + 2001, "{pid}");
        }
    }
}
