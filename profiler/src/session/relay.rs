//! Signals of a session: those that end it, and those for its command, which reach it once.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::process::{Pid, Signal, getpgid, getpgrp, pidfd_send_signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{launch::Running, witness::Asked};
use crate::{
    config::{Config, Target},
    support::signals::{self, Received, Signals, Wanted},
};

/// Within this time a program signals all processes that it means to, if it does so one by one: Slurm
/// without cgroups, or `timeout`, which signals its child and then the group.
const GRACE: Duration = Duration::from_millis(100);

/// Signals for a session.
pub enum SessionSignals {
    /// There is no command yet, with the signals that have arrived for it; or there will be none.
    Direct(Signals, Vec<Received>),
    /// A task passes signals on to the command. It tells those that end the session.
    Relayed(UnboundedReceiver<Signal>),
}

/// Passes signals on to the command.
struct Relay {
    signals: Signals,
    /// Have arrived, oldest first.
    waiting: VecDeque<Received>,
    witness: Asked,
    command: Pid,
    pidfd: OwnedFd,
    /// Whether a signal that ends programs has been passed on.
    interrupted: bool,
    ends: UnboundedSender<Signal>,
}

impl SessionSignals {
    /// Installs the handlers, in a tokio runtime.
    ///
    /// # Errors
    ///
    /// When there are no further descriptors.
    pub fn new(config: &Config) -> io::Result<Self> {
        let wanted = match config.target {
            Target::Command(_) => Wanted::ForCommand,
            _ => Wanted::Ending,
        };
        Ok(Self::Direct(Signals::new(wanted)?, Vec::new()))
    }

    /// Waits for the next signal that ends the session or, without a command, reloads the configuration.
    pub async fn next(&mut self) -> Signal {
        match self {
            Self::Direct(signals, held) => loop {
                let received = signals.next().await;
                let signal = received.signal;
                let is_ignored = signal == Signal::HUP && signals.ignores_hangup();
                if signals::ends(signal) && !is_ignored {
                    return signal;
                }
                if signals::stops(signal) {
                    signals::stop(signal.as_raw());
                }
                // As in the kernel, the same signal again is the same signal.
                let is_held = held.iter().any(|held| held.signal == signal);
                if !is_held || signals::is_queued(signal) {
                    held.push(received);
                }
            },
            Self::Relayed(ends) => match ends.recv().await {
                Some(signal) => signal,
                None => std::future::pending().await,
            },
        }
    }

    /// Whether the signal asks for a reload.
    pub fn reloads(&self, signal: Signal) -> bool {
        match self {
            Self::Direct(signals, _) => signals.reloads(signal),
            Self::Relayed(_) => false,
        }
    }

    /// From now on, passes signals on to the command.
    ///
    /// # Errors
    ///
    /// When there are no further descriptors.
    pub fn relay(self, command: &mut Running) -> io::Result<Self> {
        let (Self::Direct(signals, held), Some(witness)) = (self, command.witness.take()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (ends, received) = unbounded_channel();
        let relay = Relay {
            signals,
            waiting: held.into(),
            witness: witness.register()?,
            command: command.pid,
            pidfd: command.pidfd.try_clone()?,
            interrupted: false,
            ends,
        };
        tokio::spawn(relay.run());
        Ok(Self::Relayed(received))
    }
}

impl Relay {
    async fn run(mut self) {
        loop {
            let next = match self.waiting.pop_front() {
                Some(next) => next,
                None => self.signals.next().await,
            };
            let has_arrived = self.has_arrived(next).await;
            self.pass_on(next, has_arrived);
        }
    }

    /// Whether the command has received the signal by itself.
    async fn has_arrived(&mut self, received: Received) -> bool {
        let mut seen = self.is_seen(received.signal).await;
        if !seen && !received.by_kernel {
            tokio::time::sleep(GRACE).await;
            seen = self.is_seen(received.signal).await;
        }
        // A command can have left the group.
        seen && getpgid(Some(self.command)).is_ok_and(|group| group == getpgrp())
    }

    async fn is_seen(&mut self, signal: Signal) -> bool {
        self.witness.ask().await;
        while let Some(more) = self.signals.arrived() {
            // The kernel does not count these: the same signal again is the same signal, unless a key
            // sends it.
            if more.signal != signal || more.by_kernel || signals::is_queued(signal) {
                self.waiting.push_back(more);
            }
        }
        self.witness.take(signal)
    }

    fn pass_on(&mut self, received: Received, has_arrived: bool) {
        let signal = received.signal;
        // Not SIGHUP: if a terminal is closed, the kernel and the shell send one each.
        let interrupts = [Signal::INT, Signal::TERM].contains(&signal);
        // The limit is that of the profiler: the command has used other CPU time.
        let is_own = signal == Signal::XCPU && received.by_kernel;
        if is_own || interrupts && self.interrupted {
            let _ = self.ends.send(signal);
            return;
        }
        self.interrupted |= interrupts;
        if !has_arrived {
            // A command that has ended is not an error.
            let _ = pidfd_send_signal(self.pidfd.as_fd(), signal);
        }
        if signals::stops(signal) {
            signals::stop(signal.as_raw());
        }
    }
}
