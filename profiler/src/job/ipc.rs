//! A file with which a batch script says that its work is done: while its text is `INPROGRESS`, it is not.

use std::{
    fs,
    io::{ErrorKind, Read as _},
    os::fd::OwnedFd,
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

use super::watcher::Notifier;
use crate::privileges;

/// What the file says while the work goes on.
const IN_PROGRESS: &str = "INPROGRESS";
/// Between two looks: what other nodes write into a shared file system is not reported.
const LOOK: Duration = Duration::from_secs(1);

/// Events of the file.
const CHANGES: inotify::WatchFlags = inotify::WatchFlags::CLOSE_WRITE
    .union(inotify::WatchFlags::ATTRIB)
    .union(inotify::WatchFlags::MOVE_SELF)
    .union(inotify::WatchFlags::DELETE_SELF);

/// How the work stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on; or the file is just being written.
    InProgress,
    /// There is no file.
    Absent,
    /// It is done; with what the file says.
    Done(String),
}

/// Reads the file.
pub fn state(path: &Path) -> State {
    let mut text = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(256).read_to_end(&mut text));
    match read {
        Ok(_) => {
            let text = String::from_utf8_lossy(&text);
            let word = text.lines().map(str::trim).find(|line| !line.is_empty());
            match word {
                // A shell truncates before it writes.
                None | Some(IN_PROGRESS) => State::InProgress,
                Some(word) => State::Done(word.escape_debug().to_string()),
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => State::Absent,
        // Of a file that cannot be read nothing is known.
        Err(_) => State::InProgress,
    }
}

/// Watches the file in a thread of its own, which a hanging file system may keep.
pub struct IpcFile {
    done: Arc<AtomicBool>,
}

impl IpcFile {
    /// Begins to watch; rings `bell` when the work is done.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had.
    pub fn watch(path: PathBuf, notifier: Notifier) -> std::io::Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let said = Arc::clone(&done);
        thread::Builder::new()
            .name("ipc-file".to_owned())
            .spawn(move || {
                privileges::keep_for_users_files();
                wait_until_done(&path);
                said.store(true, Ordering::Relaxed);
                notifier.notify();
            })?;
        Ok(Self { done })
    }

    /// Whether the work is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

fn wait_until_done(path: &Path) {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let changes = inotify::init(flags).ok();
    let mut seen = false;
    loop {
        // Before the look, so that no change falls between the two; another file may have taken its place.
        if let Some(changes) = &changes {
            let _ = inotify::add_watch(changes, path, CHANGES);
        }
        match state(path) {
            State::Done(_) => return,
            State::InProgress => seen = true,
            // Removed: no longer in progress. One that is yet to be written is waited for.
            State::Absent if seen => return,
            State::Absent => {}
        }
        wait(changes.as_ref());
    }
}

fn wait(changes: Option<&OwnedFd>) {
    let Some(changes) = changes else {
        thread::sleep(LOOK);
        return;
    };
    let timeout = Timespec {
        tv_sec: LOOK.as_secs().cast_signed(),
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
    fn what_the_file_says() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join(".ipc-7");
        assert_eq!(state(&path), State::Absent);
        for (text, expected) in [
            ("", State::InProgress),
            ("INPROGRESS", State::InProgress),
            ("INPROGRESS\n", State::InProgress),
            ("FINISHED\n", State::Done("FINISHED".to_owned())),
            ("\u{1b}[2J", State::Done("\\u{1b}[2J".to_owned())),
        ] {
            fs::write(&path, text).expect("written");
            assert_eq!(state(&path), expected, "{text:?}");
        }
    }

    #[test]
    fn the_bell_rings_when_it_changes() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join(".ipc-7");
        fs::write(&path, "INPROGRESS\n").expect("written");
        let notifier = Notifier::new().expect("a bell");
        let file = IpcFile::watch(path.clone(), notifier.clone()).expect("a thread");
        assert!(!file.is_done());
        fs::write(&path, "FINISHED\n").expect("written");
        let fd = notifier.fd().expect("a descriptor");
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("it rings");
        assert!(file.is_done());
    }
}
