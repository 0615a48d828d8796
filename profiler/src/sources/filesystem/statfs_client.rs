//! Reads the sizes of file systems through helper processes, so that those that hang delay no other.
//!
//! One helper asks one file system after the other. While one does not answer, another helper asks the
//! rest. A helper in a call that does not return is of no further use until it returns, so that their
//! number is bounded.

use std::{
    collections::{HashSet, VecDeque},
    io,
    time::{Duration, Instant},
};

use super::statfs_helper::{Size, StatfsHelper};
use crate::procfs::mounts::{NodeMounts, Numbered};

/// A file system that has not answered after this time hangs.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// After this time without an answer, another helper asks the next file system.
const PATIENCE: Duration = Duration::from_millis(20);
/// Helper processes.
const HELPERS: usize = 16;
/// Those of them that ask file systems of which it is unknown whether they answer.
const FOR_UNKNOWN: usize = HELPERS - 1;

/// Types without a block device that need no server.
const LOCAL: [&str; 5] = ["bcachefs", "btrfs", "overlay", "tmpfs", "zfs"];

/// Result for one file system.
pub struct Answer {
    pub mounted: Numbered,
    /// Its size, or why that is unknown.
    pub size: io::Result<Size>,
}

/// A file system that is being asked.
struct Asked {
    mounted: Numbered,
    helper: StatfsHelper,
    /// Whether it has not answered in time, which has been told.
    hangs: bool,
}

/// Reads all file systems again and again.
pub struct StatfsClient {
    node: NodeMounts,
    idle: Vec<StatfsHelper>,
    asked: Vec<Asked>,
    /// Those to be asked in this reading, and whether it is likely that they answer.
    queue: VecDeque<(Numbered, bool)>,
    /// Answers of this reading that have not been returned.
    answers: Vec<Answer>,
    deadline: Instant,
    /// Devices of the file systems whose last answer came in time.
    answering: HashSet<u32>,
}

impl StatfsClient {
    /// A client for mounts of the node.
    pub fn new(node: NodeMounts) -> Self {
        Self {
            node,
            idle: Vec::new(),
            asked: Vec::new(),
            queue: VecDeque::new(),
            answers: Vec::new(),
            deadline: Instant::now(),
            answering: HashSet::new(),
        }
    }

    /// Begins a reading of all these file systems. Those that still hang are not asked.
    pub fn begin(&mut self, mounts: Vec<Numbered>) {
        self.deadline = Instant::now() + TIMEOUT;
        self.receive();
        let hung: HashSet<u32> = self.asked.iter().map(|asked| asked.mounted.dev).collect();
        for mounted in mounts {
            if hung.contains(&mounted.dev) {
                self.answer(mounted, Err(hangs()));
            } else {
                let is_likely = self.answering.contains(&mounted.dev) || is_local(&mounted);
                self.queue.push_back((mounted, is_likely));
            }
        }
        let queue = self.queue.make_contiguous();
        queue.sort_by_key(|(_, is_likely)| !is_likely);
    }

    /// Further answers, as soon as no others come at once, and whether they are the last ones of the
    /// reading.
    pub fn next(&mut self) -> (Vec<Answer>, bool) {
        loop {
            self.ask();
            let waits = self.asked.iter().any(|asked| !asked.hangs);
            if !waits && self.queue.is_empty() {
                return (std::mem::take(&mut self.answers), true);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.give_up();
                continue;
            }
            let is_last = self.answers.is_empty() && self.queue.is_empty();
            let patience = if is_last { left } else { left.min(PATIENCE) };
            let helpers = self.asked.iter().map(|asked| &asked.helper);
            let has_answer = StatfsHelper::wait_for_any(helpers, patience).unwrap_or(false);
            if has_answer {
                self.receive();
                continue;
            }
            if !self.queue.is_empty() {
                self.start();
            }
            if !self.answers.is_empty() {
                return (std::mem::take(&mut self.answers), false);
            }
        }
    }

    /// Asks as many of the queue as there are idle helpers.
    fn ask(&mut self) {
        while let Some((_, is_likely)) = self.queue.front() {
            let most = if *is_likely { HELPERS } else { FOR_UNKNOWN };
            if self.asked.len() >= most {
                return;
            }
            if self.idle.is_empty() && self.asked.iter().all(|asked| asked.hangs) {
                self.start();
            }
            let Some(mut helper) = self.idle.pop() else {
                return;
            };
            let Some((mounted, _)) = self.queue.pop_front() else {
                return;
            };
            match helper.ask(self.node.reachable(&mounted.mount), mounted.id) {
                Ok(()) => self.asked.push(Asked {
                    mounted,
                    helper,
                    hangs: false,
                }),
                Err(error) => self.answer(mounted, Err(error)),
            }
        }
    }

    /// Starts a helper if there may be another one. If there can be none at all, nothing is asked.
    fn start(&mut self) {
        if self.asked.len() + self.idle.len() >= HELPERS {
            return;
        }
        match StatfsHelper::start() {
            Ok(helper) => self.idle.push(helper),
            Err(error) if self.asked.iter().all(|asked| asked.hangs) => {
                for (mounted, _) in std::mem::take(&mut self.queue) {
                    let error = io::Error::new(error.kind(), error.to_string());
                    self.answer(mounted, Err(error));
                }
            }
            Err(_) => {}
        }
    }

    /// Receives all answers that are there.
    fn receive(&mut self) {
        for mut asked in std::mem::take(&mut self.asked) {
            let size = match asked.helper.answer(Duration::ZERO) {
                Ok(None) => {
                    self.asked.push(asked);
                    continue;
                }
                Ok(Some(size)) => {
                    self.idle.push(asked.helper);
                    size
                }
                // The helper has ended.
                Err(error) => Err(error),
            };
            // A late answer is of an earlier reading.
            if !asked.hangs {
                self.answer(asked.mounted, size);
            }
        }
    }

    /// Ends the wait for those that have not answered.
    fn give_up(&mut self) {
        let mut late = Vec::new();
        for asked in &mut self.asked {
            if !std::mem::replace(&mut asked.hangs, true) {
                late.push(asked.mounted.clone());
            }
        }
        for mounted in late {
            self.answer(mounted, Err(hangs()));
        }
        let hung = self.asked.len();
        for (mounted, _) in std::mem::take(&mut self.queue) {
            let message = format!("not asked, because {hung} file systems do not answer");
            self.answer(mounted, Err(io::Error::other(message)));
        }
    }

    fn answer(&mut self, mounted: Numbered, size: io::Result<Size>) {
        if size.is_ok() {
            self.answering.insert(mounted.dev);
        } else {
            self.answering.remove(&mounted.dev);
        }
        self.answers.push(Answer { mounted, size });
    }
}

fn hangs() -> io::Error {
    let message = format!("no answer within {} s", TIMEOUT.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, message)
}

/// Whether a file system needs no server, on a network or of a user.
fn is_local(mounted: &Numbered) -> bool {
    let fstype = &mounted.mount.fstype[..];
    // A block device has a major number.
    let is_on_device = mounted.dev >> 20 != 0 && fstype != "fuseblk";
    is_on_device || LOCAL.contains(&fstype)
}
