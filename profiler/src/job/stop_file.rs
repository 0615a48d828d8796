//! The file of `--stop-file`, by which a batch script reports that its work is done: it reads
//! `INPROGRESS` until then. With `--job`, `.ipc-ID` in the working directory is such a file.

use std::{
    fs,
    io::{ErrorKind, Read as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    io::read,
};

use crate::{
    privileges,
    support::{
        log::harmless,
        notifier::Notifier,
        regular_file::{self, Links},
    },
    warning,
};

/// Content of the file while the work is in progress.
const IN_PROGRESS: &str = "INPROGRESS";
/// Period of reading the file: inotify does not report writes of other nodes to a shared file
/// system.
const PERIOD: Duration = Duration::from_secs(1);

/// Events of the file.
const CHANGES: inotify::WatchFlags = inotify::WatchFlags::CLOSE_WRITE
    .union(inotify::WatchFlags::ATTRIB)
    .union(inotify::WatchFlags::MOVE_SELF)
    .union(inotify::WatchFlags::DELETE_SELF);

/// Progress of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// In progress, or unknown because the file is being written.
    InProgress,
    /// Unknown because the file cannot be read.
    Unreadable(String),
    /// No file that a batch script would write, and why. It is ignored.
    Ignored(String),
    /// The file does not exist.
    Absent,
    /// Done, with the first word of the file.
    Done(String),
}

/// Reads the file.
pub fn progress(path: &Path, links: Links) -> Progress {
    let mut text = Vec::new();
    let read = regular_file::open(path, links);
    let read = read.and_then(|file| file.take(256).read_to_end(&mut text));
    match read {
        Ok(_) => {
            let text = String::from_utf8_lossy(&text);
            let word = text.lines().map(str::trim).find(|line| !line.is_empty());
            match word {
                // A shell truncates the file before it writes.
                None | Some(IN_PROGRESS) => Progress::InProgress,
                Some(word) => Progress::Done(harmless(word)),
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Progress::Absent,
        Err(error) if error.kind() == ErrorKind::Other => Progress::Ignored(error.to_string()),
        Err(error) => Progress::Unreadable(error.to_string()),
    }
}

/// State of a file that distinguishes it from later ones: inode, time of the last change and size.
type Version = (u64, i64, i64, u64);

fn version(path: &Path) -> Option<Version> {
    let file = fs::metadata(path).ok()?;
    Some((file.ino(), file.ctime(), file.ctime_nsec(), file.size()))
}

/// The file that is watched.
#[derive(Clone, Debug)]
pub struct StopPath {
    path: PathBuf,
    links: Links,
    /// Version of a file that an earlier run of the job has left behind, which is ignored.
    earlier: Option<Version>,
}

impl StopPath {
    /// A file that the user has given, and that did not read that the work is done.
    pub fn given(path: PathBuf) -> Self {
        Self {
            path,
            links: Links::Followed,
            earlier: None,
        }
    }

    /// The file `.ipc-ID` in the working directory, which can be another user's.
    pub fn of_job(id: &str) -> Self {
        let path = PathBuf::from(format!(".ipc-{id}"));
        let links = Links::Refused;
        let earlier = match progress(&path, links) {
            Progress::Done(_) => version(&path),
            Progress::Ignored(why) => {
                warning!("profiler: {} is ignored: {why}", path.display());
                None
            }
            // Reported when it is watched.
            Progress::InProgress | Progress::Unreadable(_) | Progress::Absent => None,
        };
        Self {
            path,
            links,
            earlier,
        }
    }
}

/// Watches the file in a separate thread, which can block in a hanging file system.
pub struct StopFile {
    path: PathBuf,
    done: Arc<AtomicBool>,
}

impl StopFile {
    /// Starts the thread. The end of the work is signalled through `notifier`.
    ///
    /// # Errors
    ///
    /// If the thread cannot be created.
    pub fn watch(file: StopPath, notifier: Notifier) -> std::io::Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let path = file.path.clone();
        let done_in_thread = Arc::clone(&done);
        thread::Builder::new()
            .name("stop-file".to_owned())
            .spawn(move || {
                privileges::keep_for_users_files();
                wait_until_done(&file);
                done_in_thread.store(true, Ordering::Relaxed);
                notifier.notify();
            })?;
        Ok(Self { path, done })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the work is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

fn wait_until_done(file: &StopPath) {
    let path = &file.path;
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let changes = inotify::init(flags).ok();
    let mut existed = false;
    let mut is_reported = false;
    loop {
        // Before the file is read, so that a later change is reported. Each time, because the file
        // may have been replaced.
        if let Some(changes) = &changes {
            let _ = inotify::add_watch(changes, path, CHANGES);
        }
        match progress(path, file.links) {
            Progress::Done(_) if file.earlier.is_some() && version(path) == file.earlier => {}
            Progress::Done(_) => return,
            Progress::InProgress => existed = true,
            Progress::Unreadable(why) => {
                existed = true;
                if !is_reported {
                    warning!(
                        "profiler: cannot read {}: {why}; the run does not end by it until it can be read",
                        path.display()
                    );
                    is_reported = true;
                }
            }
            // A removed file ends the work. A file that did not exist yet is waited for.
            Progress::Absent if existed => return,
            Progress::Absent | Progress::Ignored(_) => {}
        }
        wait(changes.as_ref());
    }
}

fn wait(changes: Option<&OwnedFd>) {
    let Some(changes) = changes else {
        thread::sleep(PERIOD);
        return;
    };
    let timeout = Timespec {
        tv_sec: PERIOD.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let _ = poll(&mut [PollFd::new(changes, PollFlags::IN)], Some(&timeout));
    let mut events = [0; 4096];
    while read(changes, &mut events).is_ok_and(|length| length != 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_by_content() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join(".ipc-7");
        let progress = || progress(&path, Links::Refused);
        assert_eq!(progress(), Progress::Absent);
        for (text, expected) in [
            ("", Progress::InProgress),
            ("INPROGRESS", Progress::InProgress),
            ("INPROGRESS\n", Progress::InProgress),
            ("FINISHED\n", Progress::Done("FINISHED".to_owned())),
            ("\u{1b}[2J", Progress::Done("\\u{1b}[2J".to_owned())),
        ] {
            fs::write(&path, text).expect("written");
            assert_eq!(progress(), expected, "{text:?}");
        }
        let below = super::progress(&path.join("file"), Links::Refused);
        let Progress::Unreadable(why) = below else {
            panic!("{below:?}");
        };
        assert!(why.starts_with("Not a directory"), "{why}");
    }

    #[test]
    fn end_of_the_work_is_notified() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join(".ipc-7");
        fs::write(&path, "INPROGRESS\n").expect("written");
        let notifier = Notifier::new().expect("a notifier");
        let file = StopFile::watch(StopPath::given(path.clone()), notifier.clone());
        let file = file.expect("a thread");
        assert!(!file.is_done());
        fs::write(&path, "FINISHED\n").expect("written");
        let fd = notifier.fd().expect("a descriptor");
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("a notification");
        assert!(file.is_done());
    }

    #[test]
    fn file_of_an_earlier_run_is_ignored() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join(".ipc-7");
        fs::write(&path, "FINISHED\n").expect("written");
        let notifier = Notifier::new().expect("a notifier");
        let earlier = StopPath {
            earlier: version(&path),
            links: Links::Refused,
            path: path.clone(),
        };
        let file = StopFile::watch(earlier, notifier.clone()).expect("a thread");
        thread::sleep(PERIOD * 2);
        assert!(!file.is_done());
        fs::write(&path, "FINISHED\n").expect("written");
        let fd = notifier.fd().expect("a descriptor");
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("a notification");
        assert!(file.is_done());
    }
}
