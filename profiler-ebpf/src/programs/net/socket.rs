//! What is kept of each TCP socket, in the kernel's socket storage: it is freed with the socket.

use core::ptr::{null, null_mut};

use aya_ebpf::{
    helpers::generated::{bpf_sk_storage_get, bpf_skc_to_tcp_sock},
    macros::btf_map,
};

use crate::{
    programs::{
        kernel::{Object, offset},
        maps::dropped,
    },
    wire::{Map, Owner},
};

/// A TCP socket.
#[repr(C)]
pub struct Socket {
    /// The process of the target that used it last; its pid is 0 when there was none.
    pub owner: Owner,
    /// [`crate::flows::net::class`], 0 while it is not known.
    pub class: u64,
    /// When it began to connect, ns; 0 when it does not.
    pub connecting: u64,
    /// 1 when it was established by the other side and nobody has accepted it yet.
    pub unaccepted: u64,
    /// `segs_out` << 32 | `segs_in` that are accounted.
    pub segments: u64,
    /// `total_retrans` that are accounted.
    pub retransmits: u64,
    /// `copied_seq` less the bytes that are accounted as received.
    pub received: u64,
    /// Reading in which its segments were accounted last.
    pub epoch: u64,
}

/// `BPF_MAP_TYPE_SK_STORAGE`.
#[repr(C)]
struct SocketStorage {
    r#type: *const [i32; 24],
    key: *const i32,
    value: *const Socket,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; 1],
}

// SAFETY: only a description for the loader; nothing is stored in it.
unsafe impl Sync for SocketStorage {}

#[btf_map]
static SOCKETS: SocketStorage = SocketStorage {
    r#type: null(),
    key: null(),
    value: null(),
    max_entries: null(),
    map_flags: null(),
};

/// What is kept of a socket, if there is anything.
#[inline(always)]
pub fn find(sock: Object) -> Option<&'static mut Socket> {
    get(sock, null_mut(), 0)
}

/// What is kept of a socket, from now on if there was nothing.
#[inline(always)]
pub fn find_or_begin(sock: Object) -> Option<&'static mut Socket> {
    if let Some(socket) = find(sock) {
        return Some(socket);
    }
    let socket = get(sock, &mut Socket::fresh(tcp_sock(sock)?), 1);
    if socket.is_none() {
        dropped(Map::Sockets);
    }
    socket
}

#[inline(always)]
fn get(sock: Object, value: *mut Socket, flags: u64) -> Option<&'static mut Socket> {
    // SAFETY: the verifier knows the socket's type; the storage lives as long as the socket, and what several CPUs
    // write is written atomically.
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
    /// A socket that is new to us: what it did before is not ours.
    #[inline(always)]
    pub fn fresh(tcp: Object) -> Self {
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
    // SAFETY: the verifier knows the socket's type.
    let tcp = unsafe { bpf_skc_to_tcp_sock(sock.0.cast_mut().cast()) };
    (!tcp.is_null()).then_some(Object(tcp.cast_const().cast()))
}
