//! The socket of the profiler.

use std::{
    env,
    io::ErrorKind,
    os::unix::net::UnixDatagram,
    process,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

pub struct Client {
    socket: UnixDatagram,
    /// Whether the profiler has ended.
    ended: AtomicBool,
    /// Pid of the process that dropped marks, and their number: 32 bits each. A child of fork(2)
    /// does not report those of its parent.
    dropped: AtomicU64,
}

static CLIENT: OnceLock<Option<Client>> = OnceLock::new();

/// The connection, if a profiler receives marks.
pub fn client() -> Option<&'static Client> {
    let client = CLIENT.get_or_init(Client::connect).as_ref()?;
    (!client.ended.load(Relaxed)).then_some(client)
}

impl Client {
    fn connect() -> Option<Self> {
        let path = env::var_os("PROFILER_SOCKET")?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(path).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self {
            socket,
            ended: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        })
    }

    /// Sends a mark, given without its closing brace.
    pub fn send(&self, mut json: String) {
        let dropped = self.take_dropped();
        if dropped > 0 {
            json += r#","dropped":"#;
            json += &dropped.to_string();
        }
        json.push('}');
        match self.socket.send(json.as_bytes()) {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::NotConnected | ErrorKind::BrokenPipe
                ) =>
            {
                self.ended.store(true, Relaxed);
            }
            // The socket is full.
            Err(_) => self.add_dropped(dropped + 1),
        }
    }

    fn take_dropped(&self) -> u32 {
        if self.dropped.load(Relaxed) == 0 {
            return 0;
        }
        count_of(self.dropped.swap(0, Relaxed), process::id())
    }

    fn add_dropped(&self, more: u32) {
        let pid = process::id();
        let add =
            |old| Some(u64::from(pid) << 32 | u64::from(count_of(old, pid).saturating_add(more)));
        let _ = self.dropped.fetch_update(Relaxed, Relaxed, add);
    }
}

/// Number of marks that this process has dropped.
fn count_of(dropped: u64, pid: u32) -> u32 {
    let [own, count] = [dropped >> 32, dropped & u64::from(u32::MAX)];
    if own == u64::from(pid) {
        u32::try_from(count).unwrap_or(u32::MAX)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::count_of;

    #[test]
    fn drops_of_other_processes_do_not_count() {
        assert_eq!(count_of(7 << 32 | 3, 7), 3);
        assert_eq!(count_of(7 << 32 | 3, 8), 0);
    }
}
