//! Notifications to the service manager that has started this process: the protocol of
//! sd_notify(3).
//!
//! A notification is a datagram to the socket that `NOTIFY_SOCKET` names. Without the variable, as
//! in a terminal, nothing is sent.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use rustix::net::{SendFlags, send};
use tokio::time::Interval;

use super::{clock::monotonic_ns, log::escaped};

/// Variable with the address of the socket.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// How long a change of the state waits while the queue of the socket is full.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager, if it waits for notifications.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Time after which the manager restarts a service that does not report.
    timeout: Option<Duration>,
}

impl ServiceManager {
    /// The manager that the environment names. An address that cannot be reached is none.
    pub fn from_environment() -> Self {
        let Some(address) = std::env::var_os(SOCKET) else {
            return Self::default();
        };
        let variable = |name| std::env::var(name).ok();
        let timeout = timeout(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        Self {
            socket: connect(&address).ok(),
            timeout,
        }
    }

    /// Begins the periods in each of which [`alive`](Self::alive) is to be called.
    pub fn watchdog(&self) -> Watchdog {
        let timeout = self.socket.as_ref().and(self.timeout);
        Watchdog(timeout.map(|timeout| tokio::time::interval(timeout / 2)))
    }

    /// The service has started, or has reloaded its configuration.
    pub fn ready(&self, status: &str) {
        self.send(
            &format!("READY=1\nSTATUS={}", escaped(status)),
            SendFlags::empty(),
        );
    }

    /// The service reloads its configuration; [`ready`](Self::ready) follows.
    pub fn reloading(&self) {
        let us = monotonic_ns() / 1000;
        let message = format!("RELOADING=1\nMONOTONIC_USEC={us}");
        self.send(&message, SendFlags::empty());
    }

    /// The service ends.
    pub fn stopping(&self, status: &str) {
        self.send(
            &format!("STOPPING=1\nSTATUS={}", escaped(status)),
            SendFlags::empty(),
        );
    }

    /// The service works. Never waits.
    pub fn alive(&self, status: &str) {
        let message = format!("WATCHDOG=1\nSTATUS={}", escaped(status));
        self.send(&message, SendFlags::DONTWAIT);
    }

    fn send(&self, message: &str, flags: SendFlags) {
        if let Some(socket) = &self.socket {
            // A manager that has gone is no reason to stop.
            let _ = send(socket, message.as_bytes(), flags);
        }
    }
}

/// The times at which the manager expects a sign of life.
pub struct Watchdog(Option<Interval>);

impl Watchdog {
    /// Waits for the next time; forever if there is none.
    pub async fn due(&mut self) {
        match &mut self.0 {
            Some(interval) => {
                interval.tick().await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Connects to a path, or to an abstract address, which begins with `@`.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(OsString::from(address))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// The timeout of the watchdog, if it is that of this process and not of its parent.
fn timeout(us: Option<String>, pid: Option<String>) -> Option<Duration> {
    let us: u64 = us?.parse().ok().filter(|us| *us != 0)?;
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    is_ours.then(|| Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut message = [0; 256];
        let length = socket.recv(&mut message).expect("a datagram");
        String::from_utf8(message[..length].to_vec()).expect("text")
    }

    #[test]
    fn notifications_reach_paths_and_abstract_addresses() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("notify");
        let name = format!("profiler-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), OsString::from(&path)),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            let manager = ServiceManager {
                socket: Some(connect(&address).unwrap()),
                timeout: None,
            };
            manager.ready("up");
            assert_eq!(received(&socket), "READY=1\nSTATUS=up");
            manager.alive("well");
            assert_eq!(received(&socket), "WATCHDOG=1\nSTATUS=well");
            manager.reloading();
            let message = received(&socket);
            let us = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
            let us: u64 = us.expect(&message).parse().unwrap();
            assert!(monotonic_ns() / 1000 - us < 10_000_000);
        }
        assert!(connect(OsStr::new("/no/such/socket")).is_err());
    }

    #[test]
    fn full_queue_does_not_delay_the_loop() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("notify");
        let _unread = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager {
            socket: Some(connect(path.as_os_str()).unwrap()),
            timeout: None,
        };
        let before = monotonic_ns();
        for _ in 0..10_000 {
            manager.alive("well");
        }
        assert!(monotonic_ns() - before < 1_000_000_000);
    }

    #[test]
    fn watchdog_is_that_of_this_process() {
        let timeout = |us: &str, pid: Option<u32>| {
            timeout(Some(us.to_owned()), pid.map(|pid| pid.to_string()))
        };
        let ours = std::process::id();
        let second = Some(Duration::from_secs(1));
        assert_eq!(timeout("1000000", None), second);
        assert_eq!(timeout("1000000", Some(ours)), second);
        assert_eq!(timeout("1000000", Some(ours + 1)), None);
        assert_eq!(timeout("0", None), None);
        assert_eq!(timeout("x", None), None);
    }
}
