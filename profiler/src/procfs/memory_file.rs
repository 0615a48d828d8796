//! Files below `/proc/PID` whose reading waits for the memory of the process.
//!
//! A process decides how long that takes: a page of its arguments can be in a file system that it
//! serves itself, and smaps needs its mmap lock, which it can hold as long. Each thread therefore
//! reads through a helper process. A process that does not let it read is skipped from then on, and
//! its user for a time that doubles.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    io::{self, Read as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    gpu_files::find_gpus,
    process_file::{CMDLINE_MAX, Content, ENVIRON_MAX, SMALL_MAX},
    process_stat,
    process_status::real_uid,
};
use crate::support::helper_process::{ANSWERS, HelperProcess, REQUESTS, end_with_thread, transfer};

/// A file that waits for the memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFile {
    Cmdline,
    Environ,
    SmapsRollup,
    /// Device numbers of the GPUs in its `/dev`, as pairs of 32 bits: not in its memory, but in a
    /// file system that can be its own.
    Gpus,
}

impl MemoryFile {
    fn name(self) -> &'static str {
        match self {
            Self::Gpus => "root",
            Self::Cmdline => "cmdline",
            Self::Environ => "environ",
            Self::SmapsRollup => "smaps_rollup",
        }
    }

    fn limit(self) -> usize {
        match self {
            Self::Cmdline => CMDLINE_MAX,
            Self::Environ => ENVIRON_MAX,
            Self::SmapsRollup | Self::Gpus => SMALL_MAX,
        }
    }
}

/// Time after which a helper that sleeps is taken for blocked.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which it is even if it runs: a terabyte of small pages takes seconds.
const LONGEST: Duration = Duration::from_secs(30);
/// First time for which no process of a user is read after one was blocked.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Killed helpers that may remain in their system call.
const KILLED_MAX: usize = 8;
/// Processes of a user that are remembered as not read.
const LOST_MAX: usize = 16384;
/// Requests that are sent at once.
const BATCH: usize = 16;
/// Length of a request: limit, whether it is for the GPUs, and path, which NUL ends. A batch is written
/// to the pipe at once.
const REQUEST: usize = 256;
/// Where the path begins.
const PATH: usize = 5;
/// Error number and length, before the content.
const HEADER: usize = 8;

thread_local! {
    static HELPER: RefCell<Option<HelperProcess>> = const { RefCell::new(None) };
}

static BLOCKED: LazyLock<Mutex<Blocked>> = LazyLock::new(Mutex::default);
/// Whether anything is blocked: reading pays for the search only then.
static IS_ANY_BLOCKED: AtomicBool = AtomicBool::new(false);

/// A process, by pid and start in clock ticks.
type Identity = (u32, u64);

/// Processes that are not read, of all threads.
#[derive(Debug, Default)]
struct Blocked {
    processes: HashSet<Identity>,
    users: HashMap<u32, User>,
    /// Helpers that wait for processes of these users.
    killed: Vec<(Option<u32>, HelperProcess)>,
    /// Processes that were not read, by user; `None` for those that have ended since.
    lost: BTreeMap<Option<u32>, HashSet<Identity>>,
}

/// A user whose processes are not read.
#[derive(Debug)]
struct User {
    until: Instant,
    /// Length of the pause.
    pause: Duration,
}

impl Blocked {
    fn lock() -> MutexGuard<'static, Self> {
        BLOCKED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process must not be read, which is counted.
    fn refuses(&mut self, id: Identity, uid: Option<u32>) -> bool {
        self.killed.retain(|(_, helper)| !helper.has_ended());
        let waits = |(user, _): &(Option<u32>, HelperProcess)| uid.is_some() && *user == uid;
        let is_paused = |uid| {
            let user = self.users.get(&uid);
            user.is_some_and(|user| Instant::now() < user.until)
        };
        let refuses = self.processes.contains(&id)
            || self.killed.len() >= KILLED_MAX
            || self.killed.iter().any(waits)
            || uid.is_some_and(is_paused);
        if refuses {
            self.lose(id, uid);
        }
        refuses
    }

    fn lose(&mut self, id: Identity, uid: Option<u32>) {
        let lost = self.lost.entry(uid).or_default();
        if lost.len() < LOST_MAX {
            lost.insert(id);
        }
    }

    /// Adds a process, and the helper that waits for it.
    fn add(&mut self, id: Identity, uid: Option<u32>, helper: HelperProcess) {
        helper.kill();
        self.killed.push((uid, helper));
        self.processes.insert(id);
        self.lose(id, uid);
        // Root does not attack itself: the memory was slow.
        if let Some(uid) = uid.filter(|uid| *uid != 0) {
            let pause = self.users.get(&uid).map_or(PAUSE, |user| user.pause * 2);
            let pause = pause.min(PAUSE_MAX);
            let until = Instant::now() + pause;
            self.users.insert(uid, User { until, pause });
        }
    }
}

/// Processes whose memory could not be read, by user if that is known; at most 16,384 each.
pub(crate) fn losses() -> BTreeMap<Option<u32>, u64> {
    let blocked = Blocked::lock();
    let lost = blocked.lost.iter();
    lost.map(|(uid, lost)| (*uid, lost.len() as u64)).collect()
}

/// Reads a file of a process.
///
/// # Errors
///
/// As [`read_all`].
pub(crate) fn read(procfs: &Path, pid: u32, file: MemoryFile) -> io::Result<Content> {
    let mut read = read_all(procfs, &[(pid, file)]);
    read.pop().unwrap_or_else(|| Err(blocked()))
}

/// Reads files of processes; the results are in the same order.
///
/// # Errors
///
/// Those of open(2) and read(2), [`io::ErrorKind::TimedOut`] if the process blocks reading, or another
/// one of its user has, and those of the helper process. The last two are counted.
pub(crate) fn read_all(procfs: &Path, requests: &[(u32, MemoryFile)]) -> Vec<io::Result<Content>> {
    let mut results = Vec::with_capacity(requests.len());
    while results.len() < requests.len() {
        let rest = &requests[results.len()..];
        let admitted = rest.iter().take(BATCH);
        let admitted = admitted.take_while(|(pid, _)| !is_refused(procfs, *pid));
        let batch = &rest[..admitted.count()];
        if batch.is_empty() {
            results.push(Err(blocked()));
            continue;
        }
        HELPER.with_borrow_mut(|helper| match exchange(helper, procfs, batch) {
            Ok(answers) => {
                let blocking = batch.get(answers.len());
                results.extend(answers);
                if let (Some((pid, _)), Some(helper)) =
                    (blocking, helper.take_if(|_| blocking.is_some()))
                {
                    let (id, uid) = (identity(procfs, *pid), real_uid(procfs, *pid));
                    Blocked::lock().add(id, uid, helper);
                    IS_ANY_BLOCKED.store(true, Ordering::Relaxed);
                    results.push(Err(blocked()));
                }
            }
            Err(error) => {
                *helper = None;
                let mut blocked = Blocked::lock();
                for (pid, _) in batch {
                    blocked.lose(identity(procfs, *pid), real_uid(procfs, *pid));
                }
                let kind = error.kind();
                results.extend(batch.iter().map(|_| Err(kind.into())));
            }
        });
    }
    results
}

/// Whether a process has ever blocked reading.
pub(crate) fn is_any_blocked() -> bool {
    IS_ANY_BLOCKED.load(Ordering::Relaxed)
}

/// Kills a helper that several processes can have blocked.
pub(crate) fn abandon(helper: HelperProcess) {
    helper.kill();
    Blocked::lock().killed.push((None, helper));
    IS_ANY_BLOCKED.store(true, Ordering::Relaxed);
}

fn blocked() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the process blocks reading")
}

fn identity(procfs: &Path, pid: u32) -> Identity {
    let stat = process_stat::of_process(procfs, pid);
    (pid, stat.map_or(0, |stat| stat.starttime))
}

fn is_refused(procfs: &Path, pid: u32) -> bool {
    is_any_blocked() && Blocked::lock().refuses(identity(procfs, pid), real_uid(procfs, pid))
}

/// Answers of the helper, which is started if there is none; fewer than requests if the next one
/// blocks it.
fn exchange(
    helper: &mut Option<HelperProcess>,
    procfs: &Path,
    batch: &[(u32, MemoryFile)],
) -> io::Result<Vec<io::Result<Content>>> {
    let helper = match helper {
        Some(helper) => helper,
        none => none.insert(start()?),
    };
    let mut requests = Vec::with_capacity(batch.len() * REQUEST);
    for (pid, file) in batch {
        let path = procfs.join(format!("{pid}/{}", file.name()));
        let limit = u32::try_from(file.limit()).map_err(io::Error::other)?;
        let end = requests.len() + REQUEST;
        requests.extend(limit.to_ne_bytes());
        requests.push((*file == MemoryFile::Gpus).into());
        requests.extend(path.as_os_str().as_bytes());
        if requests.len() >= end {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        requests.resize(end, 0);
    }
    helper.requests.write_all(&requests)?;
    let mut answers = Vec::with_capacity(batch.len());
    for (_, file) in batch {
        if !answers_in_time(helper)? {
            break;
        }
        answers.push(receive(helper, file.limit())?);
    }
    Ok(answers)
}

/// Whether the helper answers before it is taken for blocked.
pub(crate) fn answers_in_time(helper: &HelperProcess) -> io::Result<bool> {
    let begin = Instant::now();
    let is_runnable = || {
        let stat = process_stat::of_process(Path::new("/proc"), helper.pid());
        stat.is_some_and(|stat| stat.state == 'R')
    };
    loop {
        let left = TIMEOUT.saturating_sub(begin.elapsed());
        if helper.has_answer(left.max(TIMEOUT / 10))? {
            return Ok(true);
        }
        let elapsed = begin.elapsed();
        if elapsed >= LONGEST || (elapsed >= TIMEOUT && !is_runnable()) {
            return Ok(false);
        }
    }
}

fn receive(helper: &mut HelperProcess, limit: usize) -> io::Result<io::Result<Content>> {
    let mut header = [0; HEADER];
    helper.answers.read_exact(&mut header)?;
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let (errno, length) = (word(0).cast_signed(), word(4) as usize);
    let mut bytes = vec![0; length];
    helper.answers.read_exact(&mut bytes)?;
    if errno != 0 {
        return Ok(Err(io::Error::from_raw_os_error(errno)));
    }
    let truncated = length > limit;
    bytes.truncate(limit);
    Ok(Ok(Content { bytes, truncated }))
}

fn start() -> io::Result<HelperProcess> {
    // Of the parent's heap, so that the child needs none.
    let mut buffer = vec![0; HEADER + ENVIRON_MAX + 1];
    // SAFETY: `serve` makes only system calls.
    unsafe { HelperProcess::start(None, || serve(&mut buffer)) }
}

/// The child: reads the file of each request, until the pipe is closed.
fn serve(buffer: &mut [u8]) {
    end_with_thread();
    // SAFETY: system calls on memory of this process.
    unsafe {
        let mut request = [0u8; REQUEST];
        while transfer(&mut request, |at, rest| {
            libc::read(REQUESTS, at.cast(), rest)
        }) {
            let limit = u32::from_ne_bytes([request[0], request[1], request[2], request[3]]);
            let end = (HEADER + limit as usize + 1).min(buffer.len());
            let (path, into) = (&request[PATH..], &mut buffer[HEADER..end]);
            let (length, errno) = if request[PATH - 1] == 0 {
                read_file(path, into)
            } else {
                find_gpus(path, into)
            };
            buffer[..4].copy_from_slice(&errno.to_ne_bytes());
            buffer[4..HEADER].copy_from_slice(&length.to_ne_bytes());
            let answer = &mut buffer[..HEADER + length as usize];
            if !transfer(answer, |at, rest| {
                libc::write(ANSWERS, at.cast_const().cast(), rest)
            }) {
                return;
            }
        }
    }
}

/// Length and error number. What is in the memory of a process is whole only if one read(2) returns
/// it: exec(2) and exit(2) end the file between two of them.
unsafe fn read_file(path: &[u8], into: &mut [u8]) -> (u32, i32) {
    // SAFETY: NUL ends the path; the buffer has room for what is read.
    unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return (0, *libc::__errno_location());
        }
        let (mut length, mut errno) = (0, 0);
        while length < into.len() {
            let rest = &mut into[length..];
            match libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) {
                0 => break,
                count if count > 0 => length += count.cast_unsigned(),
                _ if *libc::__errno_location() == libc::EINTR => {}
                _ => {
                    (length, errno) = (0, *libc::__errno_location());
                    break;
                }
            }
        }
        libc::close(fd);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most the length of the buffer"
        )]
        (length as u32, errno)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn files_of_this_process_are_read() {
        let (procfs, own) = (Path::new("/proc"), std::process::id());
        let requests = [
            (own, MemoryFile::Cmdline),
            (u32::MAX >> 2, MemoryFile::Environ),
            (own, MemoryFile::Environ),
            (own, MemoryFile::SmapsRollup),
        ];
        let requests: Vec<_> = requests.iter().copied().cycle().take(100).collect();
        let read = read_all(procfs, &requests);
        assert_eq!(read.len(), 100);
        for ((pid, file), content) in requests.iter().zip(read) {
            if *pid != own {
                let kind = content.expect_err("there is none").kind();
                assert_eq!(kind, io::ErrorKind::NotFound);
            } else if *file != MemoryFile::SmapsRollup {
                let bytes = fs::read(format!("/proc/self/{}", file.name())).expect("readable");
                assert_eq!(content.expect("readable").bytes, bytes);
            }
        }
    }

    #[test]
    fn reads_end_at_the_limit() {
        let procfs = tempfile::tempdir().expect("a directory");
        fs::create_dir(procfs.path().join("7")).expect("made");
        for (length, truncated) in [(CMDLINE_MAX, false), (CMDLINE_MAX + 1, true)] {
            fs::write(procfs.path().join("7/cmdline"), vec![1; length]).expect("written");
            let read = read(procfs.path(), 7, MemoryFile::Cmdline).expect("read");
            assert_eq!((read.bytes.len(), read.truncated), (CMDLINE_MAX, truncated));
        }
    }

    #[test]
    fn end_of_the_helper_is_counted_and_a_new_one_started() {
        let (procfs, own) = (Path::new("/proc"), std::process::id());
        let read = || read(procfs, own, MemoryFile::SmapsRollup);
        read().expect("readable");
        HELPER.with_borrow(|helper| helper.as_ref().expect("started").kill());
        let error = read().expect_err("there is no helper");
        assert_ne!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(losses()[&real_uid(procfs, own)], 1);
        read().expect("readable");
    }

    /// A process that executes a program all the time.
    #[test]
    fn environments_are_whole_during_exec() {
        let script = "i=$1; [ $i -gt 0 ] && exec sh -c \"$0\" \"$0\" $((i-1))";
        let child = std::process::Command::new("sh")
            .args(["-c", script, script, "2000"])
            .env_clear()
            .env("FIRST", "x".repeat(500))
            .env("LAST", "47114711")
            .spawn();
        let mut child = child.expect("a shell");
        let mut lengths = BTreeMap::new();
        while child.try_wait().expect("a child").is_none() {
            if let Ok(content) = read(Path::new("/proc"), child.id(), MemoryFile::Environ) {
                *lengths.entry(content.bytes.len()).or_insert(0) += 1;
            }
        }
        // The shell adds PWD, among others: the first environment is another one.
        assert!(lengths.values().sum::<u32>() > 1000, "{lengths:?}");
        let whole = lengths.keys().filter(|length| **length > 0);
        assert!(whole.clone().all(|length| *length > 500), "{lengths:?}");
        assert!(whole.count() <= 3, "{lengths:?}");
    }

    /// A pipe blocks open(2), as a page of a file system that nobody serves blocks read(2).
    #[test]
    fn process_that_blocks_is_skipped_with_its_user() {
        const UID: u32 = 77_001;
        let procfs = tempfile::tempdir().expect("a directory");
        let add = |pid: u32, uid: u32| {
            let directory = procfs.path().join(pid.to_string());
            fs::create_dir(&directory).expect("made");
            fs::write(directory.join("status"), format!("Uid:\t{uid}\t{uid}\n")).expect("written");
            fs::write(directory.join("cmdline"), "sh\0").expect("written");
            directory
        };
        let blocking = add(1, UID).join("environ");
        mknodat(CWD, blocking, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        add(2, UID);
        add(3, UID + 1);
        let requests = [
            (3, MemoryFile::Cmdline),
            (1, MemoryFile::Environ),
            (2, MemoryFile::Cmdline),
            (3, MemoryFile::Cmdline),
        ];
        let begin = Instant::now();
        for _ in 0..2 {
            let read = read_all(procfs.path(), &requests);
            let found: Vec<_> = read.iter().map(Result::is_ok).collect();
            assert_eq!(found, [true, false, false, true]);
            let kind = read[1].as_ref().expect_err("blocked").kind();
            assert_eq!(kind, io::ErrorKind::TimedOut);
        }
        assert!(begin.elapsed() >= TIMEOUT);
        let losses = losses();
        assert_eq!(
            (losses.get(&Some(UID)), losses.get(&Some(UID + 1))),
            (Some(&2), None)
        );
        let pause = |blocked: &Blocked| blocked.users[&UID].pause;
        assert_eq!(pause(&Blocked::lock()), PAUSE);
    }
}
