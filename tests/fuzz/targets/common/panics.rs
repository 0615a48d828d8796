//! Panics that the product catches are no crashes. One that gets out is, with all that was said before it.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, MutexGuard, PoisonError},
};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn said() -> MutexGuard<'static, Vec<String>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the place of libFuzzer's hook, which ends the process at any panic.
pub fn keep() {
    panic::set_hook(Box::new(|panic| said().push(panic.to_string())));
}

/// Runs one input.
pub fn guarded(input: impl FnOnce()) {
    said().clear();
    if panic::catch_unwind(AssertUnwindSafe(input)).is_err() {
        for text in said().iter() {
            eprintln!("{text}");
        }
        std::process::abort();
    }
}
