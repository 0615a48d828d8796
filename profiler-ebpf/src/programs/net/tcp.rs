//! TCP connections: start and end, segments, retransmits, round-trip times.
//!
//! Events in softirq interrupt any task. They are accounted to the process of the target that used
//! the socket last.

use aya_ebpf::{
    macros::{btf_tracepoint, fexit},
    programs::{BtfTracePointContext, FExitContext},
};

use super::{
    Direction, IPPROTO_TCP, class, counters_of,
    socket::{Socket, find, find_or_insert, segments, tcp_sock},
};
use crate::{
    config::scope,
    per_key::{Owner, kind, net::protocol},
    programs::{
        atomic::{add, compare_exchange},
        kernel::{Object, config, ktime, offset, read},
        maps::control,
        per_key::{current_owner, record_latency},
    },
};

/// States of a TCP socket (include/net/tcp_states.h).
mod state {
    pub const ESTABLISHED: u32 = 1;
    pub const SYN_SENT: u32 = 2;
    pub const SYN_RECV: u32 = 3;
    pub const FIN_WAIT1: u32 = 4;
    pub const CLOSE: u32 = 7;
    pub const CLOSE_WAIT: u32 = 8;
    pub const LAST_ACK: u32 = 9;
    pub const LISTEN: u32 = 10;
}

/// `sock.sk_shutdown` after close() has started (`SHUTDOWN_MASK`).
const CLOSING: u8 = 3;

/// `owner` sends or receives on the socket, whose class is known.
#[inline(always)]
pub fn transfer(sock: Object, socket: &mut Socket, owner: Owner, bytes: u64, direction: Direction) {
    touch_classified(sock, socket, owner);
    if direction == Direction::Receive {
        add(&mut socket.received, bytes);
    }
}

/// `owner` uses the socket, which has this route.
#[inline(always)]
pub fn touch(sock: Object, route: Object, socket: &mut Socket, owner: Owner) {
    if socket.class == 0 {
        socket.class = class::connected(sock, route, protocol::TCP);
    }
    touch_classified(sock, socket, owner);
}

/// `owner` uses the socket, whose class is known.
#[inline(always)]
fn touch_classified(sock: Object, socket: &mut Socket, owner: Owner) {
    set_owner(socket, owner);
    if socket.unaccepted != 0 {
        count_accept(socket, owner);
    }
    if let Some(control) = control()
        && socket.epoch != u64::from(control.epoch)
    {
        socket.epoch = control.epoch.into();
        count_segments(sock, socket);
    }
}

/// Accounts later events of the socket to `owner`.
#[inline(always)]
fn set_owner(socket: &mut Socket, owner: Owner) {
    if socket.owner.tid != owner.tid || socket.owner.start_boottime != owner.start_boottime {
        socket.owner = owner;
    }
}

#[inline(always)]
fn count_accept(socket: &mut Socket, owner: Owner) {
    if compare_exchange(&mut socket.unaccepted, 1, 0) == 1
        && let Some(entry) = counters_of(owner, socket.class)
    {
        add(&mut entry.accepts, 1);
    }
}

/// Counts the segments and retransmits since the last call, and samples the round-trip time.
#[inline(always)]
fn count_segments(sock: Object, socket: &mut Socket) {
    let Some(tcp) = tcp_sock(sock) else { return };
    let owner = socket.owner;
    if let Some(entry) = counters_of(owner, socket.class) {
        let (old, now) = (socket.segments, segments(tcp));
        // Another CPU can do this at the same time.
        if old != now && compare_exchange(&mut socket.segments, old, now) == old {
            add(&mut entry.tx_segments, increase(old >> 32, now >> 32));
            add(&mut entry.rx_segments, increase(old, now));
        }
        let old = socket.retransmits;
        let now = tcp.get::<u32>(offset!(tcp_total_retrans)).into();
        if old != now && compare_exchange(&mut socket.retransmits, old, now) == old {
            add(&mut entry.retransmits, increase(old, now));
        }
    }
    // In units of 1/8 µs.
    let rtt = tcp.get::<u32>(offset!(tcp_srtt_us)) >> 3;
    if rtt != 0 {
        record_latency(owner, kind::TCP_RTT, u64::from(rtt) * 1000);
    }
}

/// Increase of a 32-bit counter. It starts at 0 again if the socket is connected again.
#[inline(always)]
fn increase(old: u64, now: u64) -> u64 {
    let increase = (now as u32).wrapping_sub(old as u32);
    if (increase as i32) < 0 {
        u64::from(now as u32)
    } else {
        u64::from(increase)
    }
}

/// Owner of an event in softirq; `None` if the event is not counted.
#[inline(always)]
fn owner_of(socket: Option<&Socket>) -> Option<Owner> {
    match socket {
        Some(socket) if socket.owner.pid != 0 => Some(socket.owner),
        _ if config!(scope) == scope::NODE => Some(Owner::default()),
        _ => None,
    }
}

/// A socket changes state. Arguments: socket, old state, new state.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn tcp_state(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    if sock.get::<u16>(offset!(sock_protocol)) != IPPROTO_TCP {
        return 0;
    }
    let route = class::route(sock);
    let (old, new): (u32, u32) = (ctx.arg(1), ctx.arg(2));
    let change = match (old, new) {
        // In the context of connect().
        (state::CLOSE, state::SYN_SENT) => Change::Connect,
        // In the context of listen().
        (state::CLOSE, state::LISTEN) => Change::Listen,
        (state::SYN_SENT | state::SYN_RECV, state::ESTABLISHED) => Change::Established,
        (state::SYN_SENT | state::SYN_RECV, state::CLOSE) => Change::ConnectFailure,
        // In the context of close() or shutdown().
        (state::ESTABLISHED | state::SYN_RECV, state::FIN_WAIT1)
        | (state::CLOSE_WAIT, state::LAST_ACK) => Change::Close,
        (state::ESTABLISHED | state::CLOSE_WAIT, state::CLOSE) => Change::Reset,
        _ => return 0,
    };
    if change == Change::Connect || change == Change::Listen {
        start(sock, change == Change::Connect);
        return 0;
    }
    // In one place, because the verifier takes long for code that follows pointers.
    let class = class::connected(sock, route, protocol::TCP);
    match change {
        Change::Established => establish(sock, class),
        Change::ConnectFailure => count_connect_failure(sock, class),
        _ => end(sock, class, change == Change::Reset),
    }
    0
}

/// Transitions of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Connect,
    Listen,
    Established,
    ConnectFailure,
    Close,
    Reset,
}

#[inline(always)]
fn start(sock: Object, is_connect: bool) {
    let Some(owner) = current_owner() else { return };
    let Some(socket) = find_or_insert(sock) else {
        return;
    };
    socket.owner = owner;
    socket.connecting = if is_connect { ktime() } else { 0 };
    // A socket can be connected again, to another address.
    socket.class = 0;
}

#[inline(always)]
fn establish(sock: Object, class: u64) {
    let is_new = find(sock).is_none();
    // Also for connections outside the target, because the process that will accept it is unknown.
    let Some(socket) = find_or_insert(sock) else {
        return;
    };
    socket.class = class;
    let Some(tcp) = tcp_sock(sock) else { return };
    socket.received = tcp.get::<u32>(offset!(tcp_copied_seq)).into();
    let connecting = socket.connecting;
    if connecting == 0 {
        socket.unaccepted = 1;
        // All segments are counted, including the SYN.
        if is_new {
            socket.segments = 0;
        }
        return;
    }
    socket.connecting = 0;
    let owner = socket.owner;
    if let Some(entry) = counters_of(owner, class) {
        add(&mut entry.connects, 1);
    }
    record_latency(owner, kind::TCP_CONNECT, ktime().saturating_sub(connecting));
}

#[inline(always)]
fn count_connect_failure(sock: Object, class: u64) {
    let Some(socket) = find(sock) else { return };
    if socket.connecting == 0 {
        return;
    }
    socket.connecting = 0;
    socket.class = class;
    if let Some(entry) = counters_of(socket.owner, class) {
        add(&mut entry.connect_failures, 1);
    }
}

/// A connection is closed or reset.
#[inline(always)]
fn end(sock: Object, class: u64, reset: bool) {
    // A close() that discards unread data causes a reset, and sets this flag before. For other
    // resets, the kernel sets it afterwards.
    let closing = !reset || sock.get::<u8>(offset!(sock_shutdown)) & CLOSING == CLOSING;
    let closer = if closing { current_owner() } else { None };
    let has_closer = closer.is_some();
    // Defined without a closer, too: Linux 5.15 rejects a program that copies an undefined word.
    let closer = closer.unwrap_or_default();
    let found = find(sock);
    let mut class = class;
    let mut owner = has_closer.then_some(closer);
    if let Some(socket) = found {
        if socket.class == 0 {
            socket.class = class;
        }
        class = socket.class;
        if has_closer {
            touch_classified(sock, socket, closer);
        } else {
            owner = owner_of(Some(socket));
        }
    } else if !has_closer {
        owner = owner_of(None);
    }
    if reset
        && let Some(owner) = owner
        && let Some(entry) = counters_of(owner, class)
    {
        add(&mut entry.resets, 1);
    }
}

/// Segments are retransmitted. Arguments: socket, packet.
#[btf_tracepoint(function = "tcp_retransmit_skb")]
pub fn tcp_retransmit(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    let route = class::route(sock);
    let found = find(sock);
    let Some(owner) = owner_of(found.as_deref()) else {
        return 0;
    };
    // The kernel's count includes segments that could not be sent.
    let before = found.as_ref().map(|socket| socket.retransmits);
    let (Some(tcp), Some(socket)) = (tcp_sock(sock), found) else {
        let packet: *const u8 = ctx.arg(1);
        let segments = u64::from(offset!(skb_cb)) + u64::from(offset!(tcp_cb_gso_segs));
        let segments = read(packet.wrapping_add(segments as usize).cast::<u16>());
        let class = class::connected(sock, route, protocol::TCP);
        count_retransmits(owner, class, segments.unwrap_or(1).into());
        return 0;
    };
    let now = tcp.get::<u32>(offset!(tcp_total_retrans)).into();
    if let Some(before) = before
        && compare_exchange(&mut socket.retransmits, before, now) == before
    {
        let class = if socket.class == 0 {
            class::connected(sock, route, protocol::TCP)
        } else {
            socket.class
        };
        count_retransmits(owner, class, increase(before, now));
    }
    0
}

/// A SYN-ACK is retransmitted. Arguments: listening socket, request.
#[btf_tracepoint(function = "tcp_retransmit_synack")]
pub fn tcp_retransmit_synack(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    if let Some(owner) = owner_of(find(sock).as_deref()) {
        count_retransmits(owner, class::bound(sock, protocol::TCP), 1);
    }
    0
}

#[inline(always)]
fn count_retransmits(owner: Owner, class: u64, segments: u64) {
    if let Some(entry) = counters_of(owner, class) {
        add(&mut entry.retransmits, segments);
    }
}

/// A socket is destroyed. Argument: the socket.
#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    if let Some(socket) = find(sock)
        && socket.owner.pid != 0
        && socket.class != 0
    {
        count_segments(sock, socket);
    }
    0
}

/// A connection is accepted. Optional: without it, accepts are counted at the first use of the
/// connection. Arguments: listening socket, new socket.
#[fexit(function = "inet_accept")]
pub fn tcp_accept(ctx: FExitContext) -> i32 {
    let sock = Object(ctx.arg(1)).object(offset!(socket_sk));
    if sock.is_null() || sock.get::<u16>(offset!(sock_protocol)) != IPPROTO_TCP {
        return 0;
    }
    let route = class::route(sock);
    let Some(owner) = current_owner() else {
        return 0;
    };
    let is_new = find(sock).is_none();
    if let Some(socket) = find_or_insert(sock) {
        // The connection was established before the programs were attached.
        if is_new {
            socket.unaccepted = 1;
        }
        touch(sock, route, socket, owner);
    }
    0
}
