//! Waiting for file descriptors in the sampling loop.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

use crate::{config::Config, failure::Failure};

/// Registers a descriptor with the loop.
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, and closed only after it is deregistered.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}

/// Waits until the descriptor is readable; forever if there is none.
pub async fn wait_readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => {
            if let Ok(mut guard) = fd.readable().await {
                guard.clear_ready();
            }
        }
        None => std::future::pending().await,
    }
}

/// The connection of the client, in a process of the service: readable when the profile is to end,
/// because the client sends nothing else then, or has gone.
pub fn end_of_client(config: &Config) -> Result<Option<AsyncFd<OwnedFd>>, Failure> {
    let socket = config
        .client
        .as_ref()
        .map(|client| client.socket.try_clone());
    let connection = socket.map(|socket| socket.and_then(|socket| readable(socket.into())));
    connection.transpose().map_err(cannot_wait)
}

/// The loop cannot wait for a descriptor or the timer.
#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
pub fn cannot_wait(error: io::Error) -> Failure {
    Failure::internal(format!("cannot wait: {error}"))
}
