//! Removes the copies when a signal ends the program.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, Once, PoisonError},
    thread,
    time::Duration,
};

use crate::support::signals::{self, Signals, Wanted};

static COPIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes a directory when a signal ends the program.
pub fn remove(copy: &Path) {
    static ONCE: Once = Once::new();
    let mut copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    copies.push(copy.to_owned());
    drop(copies);
    ONCE.call_once(|| {
        // Without the thread, the copies remain.
        let _ = thread::Builder::new()
            .name("interruption".to_owned())
            .spawn(wait);
    });
}

#[expect(clippy::exit, reason = "the other threads cannot be interrupted")]
fn wait() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let Ok(runtime) = runtime.enable_all().build() else {
        return;
    };
    let received = runtime.block_on(async {
        let mut signals = Signals::new(Wanted::Ending).ok()?;
        Some(signals.next().await)
    });
    let Some(received) = received else {
        return;
    };
    let copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    for copy in &*copies {
        // Another thread can be creating files in it.
        for _ in 0..10 {
            let _ = fs::remove_dir_all(copy);
            if !copy.exists() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    std::process::exit(signals::exit_code(received.signal).into());
}
