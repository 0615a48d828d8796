//! Handling of panics: those that the profiler catches are no failures. An uncaught panic aborts
//! the target, after all messages have been printed.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, MutexGuard, PoisonError},
};

static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn messages() -> MutexGuard<'static, Vec<String>> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces libFuzzer's hook, which aborts at any panic.
pub fn install_hook() {
    panic::set_hook(Box::new(|panic| messages().push(panic.to_string())));
}

/// Number of panics of this input until now, also of those that were caught.
pub fn count() -> usize {
    messages().len()
}

/// Runs one input; aborts if a panic is not caught.
pub fn guarded(input: impl FnOnce()) {
    messages().clear();
    if panic::catch_unwind(AssertUnwindSafe(input)).is_err() {
        for text in messages().iter() {
            eprintln!("{text}");
        }
        std::process::abort();
    }
}
