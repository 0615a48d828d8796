//! A line on a terminal about a long download.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use super::amount;

/// Time between updates of the line; shorter downloads have none.
const EVERY: Duration = Duration::from_secs(1);

/// What has been received.
#[derive(Debug, Default)]
pub struct Progress {
    pub bytes: AtomicU64,
    files: AtomicU64,
}

impl Progress {
    pub fn add_file(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    /// Does something, and shows the progress of it.
    pub fn shown<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        if !io::stderr().is_terminal() {
            return work();
        }
        let (end, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            // Without a thread, nothing is shown.
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                let mut is_shown = false;
                while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    is_shown = true;
                    let (files, bytes) = (self.files.load(Relaxed), self.bytes.load(Relaxed));
                    line(&format!("{name}: {} received", amount(files, bytes)));
                }
                if is_shown {
                    line("");
                }
            });
            let result = work();
            drop(end);
            result
        })
    }
}

/// Replaces the line.
fn line(text: &str) {
    let mut stderr = io::stderr();
    // A line that cannot be shown is no reason to stop.
    let _ = write!(stderr, "\r\x1b[K{text}");
    let _ = stderr.flush();
}
