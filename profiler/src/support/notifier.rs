//! Notification between threads through a file descriptor.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

/// An eventfd(2), which is readable after [`Notifier::notify`]. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    /// Creates a notifier that is not readable.
    ///
    /// # Errors
    ///
    /// If the kernel has no descriptor left.
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the descriptor readable.
    pub fn notify(&self) {
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        let _ = read(&*self.0, &mut [0; 8]);
    }

    /// Duplicates the descriptor for an event loop.
    ///
    /// # Errors
    ///
    /// If the kernel has no descriptor left.
    pub fn fd(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
