//! Signals that end a session or a service, or make it reload its configuration.

use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt as _};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Handlers of the signals.
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
    has_terminal: bool,
}

impl Signals {
    /// Installs the handlers.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            // Now: a terminal that hangs up is no longer that of the process.
            has_terminal: has_controlling_terminal(),
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }

    /// Whether the signal asks for a reload, as SIGHUP does in a process without a terminal. From a
    /// terminal, it means that the user has gone.
    pub fn reloads(&self, signal: Signal) -> bool {
        signal == Signal::HUP && !self.has_terminal
    }
}

fn has_controlling_terminal() -> bool {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOCTTY);
    options.open("/dev/tty").is_ok()
}

/// The exit code of a session that a signal has ended, as in sh(1).
pub fn exit_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(1)
}
