//! Several transfers at the same time.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::{failure::Failure, support::worker::in_threads};

/// Objects that are transferred at the same time.
const AT_ONCE: usize = 4;

/// Does something with all items, several at the same time, until it fails.
///
/// # Errors
///
/// The first failure.
pub fn at_once<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let next = Mutex::new(items.iter());
    let stop = AtomicBool::new(false);
    let result = Mutex::new(Ok(()));
    in_threads(AT_ONCE, || {
        loop {
            let item = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = item.filter(|_| !stop.load(Relaxed)) else {
                return;
            };
            if let Err(failure) = work(item) {
                stop.store(true, Relaxed);
                let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                if result.is_ok() {
                    *result = Err(failure);
                }
            }
        }
    });
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}
