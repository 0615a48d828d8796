//! Several transfers at the same time.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use crate::failure::Failure;

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
    let worker = || {
        loop {
            let item = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = item.filter(|_| !stop.load(Relaxed)) else {
                return Ok(());
            };
            work(item).inspect_err(|_| stop.store(true, Relaxed))?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let mut result = Ok(());
        for worker in workers {
            let ended = worker.join();
            let ended = ended.unwrap_or_else(|_| Err(Failure::internal("a thread panicked")));
            result = result.and(ended);
        }
        result
    })
}
