//! Storage of TCP sockets.

use core::ptr::null_mut;

use aya_ebpf::helpers::generated::{bpf_sk_storage_get, bpf_skc_to_tcp_sock};

use crate::{
    maps::{SOCKETS, Sockets},
    per_key::Owner,
    programs::{
        kernel::{Object, offset},
        maps::count_drop,
    },
};

/// A TCP socket.
#[repr(C)]
pub struct Socket {
    /// The process of the target that used it last; unknown if there was none.
    pub owner: Owner,
    /// [`class`](crate::per_key::net::class); 0 until it is known.
    pub class: u64,
    /// Time at which it started to connect; 0 if it is not connecting.
    pub connecting: u64,
    /// Whether it was established by the other side and has not been accepted yet.
    pub unaccepted: u64,
    /// Counted part of `segs_out` << 32 | `segs_in`.
    pub segments: u64,
    /// Counted part of `total_retrans`.
    pub retransmits: u64,
    /// `copied_seq` minus the bytes that were counted as received.
    pub received: u64,
    /// Reading in which segments were last counted.
    pub epoch: u64,
}

/// The storage of a socket, if it has one.
#[inline(always)]
pub fn find(sock: Object) -> Option<&'static mut Socket> {
    get(sock, null_mut(), 0)
}

/// The storage of a socket, which is created if there is none. `None` without memory.
#[inline(always)]
pub fn find_or_insert(sock: Object) -> Option<&'static mut Socket> {
    if let Some(socket) = find(sock) {
        return Some(socket);
    }
    let socket = get(sock, &mut Socket::new(tcp_sock(sock)?), 1);
    if socket.is_none() {
        count_drop::<Sockets>();
    }
    socket
}

#[inline(always)]
fn get(sock: Object, value: *mut Socket, flags: u64) -> Option<&'static mut Socket> {
    // SAFETY: the verifier knows the type of the socket. The storage lives as long as the socket,
    // and words that several CPUs write are written atomically.
    unsafe {
        bpf_sk_storage_get(
            (&raw const SOCKETS).cast_mut().cast(),
            sock.0.cast_mut().cast(),
            value.cast(),
            flags,
        )
        .cast::<Socket>()
        .as_mut()
    }
}

impl Socket {
    /// A socket whose traffic so far is not counted.
    #[inline(always)]
    pub fn new(tcp: Object) -> Self {
        Self {
            owner: Owner::default(),
            class: 0,
            connecting: 0,
            unaccepted: 0,
            segments: segments(tcp),
            retransmits: tcp.get::<u32>(offset!(tcp_total_retrans)).into(),
            received: tcp.get::<u32>(offset!(tcp_copied_seq)).into(),
            epoch: 0,
        }
    }
}

/// `segs_out` << 32 | `segs_in`.
#[inline(always)]
pub fn segments(tcp: Object) -> u64 {
    let (sent, received): (u32, u32) = (
        tcp.get(offset!(tcp_segs_out)),
        tcp.get(offset!(tcp_segs_in)),
    );
    u64::from(sent) << 32 | u64::from(received)
}

/// The socket as a `struct tcp_sock`.
#[inline(always)]
pub fn tcp_sock(sock: Object) -> Option<Object> {
    // SAFETY: the verifier knows the type of the socket.
    let tcp = unsafe { bpf_skc_to_tcp_sock(sock.0.cast_mut().cast()) };
    (!tcp.is_null()).then_some(Object(tcp.cast_const().cast()))
}
