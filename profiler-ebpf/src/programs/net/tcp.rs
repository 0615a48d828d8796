//! TCP connections: how they begin and end, segments, retransmits, round-trip times.
//!
//! Much of that happens in softirq, on top of any task; it is charged to the process of the target that used the
//! socket last.

use aya_ebpf::{
    macros::{btf_tracepoint, fexit},
    programs::{BtfTracePointContext, FExitContext},
};

use super::{
    IPPROTO_TCP, Way, class, net_flow,
    socket::{Socket, find, find_or_begin, segments, tcp_sock},
};
use crate::{
    per_key::{kind, net::protocol},
    programs::{
        kernel::{Object, config, ktime, offset, read},
        maps::{add, compare_exchange, control},
        per_key::{current_owner, latency},
    },
    wire::{Owner, scope},
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

/// `sock.sk_shutdown` once close() has begun (`SHUTDOWN_MASK`).
const CLOSING: u8 = 3;

/// `owner` sends or receives on the socket, whose class is known.
#[inline(always)]
pub fn used(sock: Object, socket: &mut Socket, owner: Owner, bytes: u64, way: Way) {
    touch_known(sock, socket, owner);
    if way == Way::In {
        add(&mut socket.received, bytes);
    }
}

/// `owner` uses the socket.
#[inline(always)]
pub fn touch(sock: Object, socket: &mut Socket, owner: Owner) {
    if socket.class == 0 {
        socket.class = class::connected(sock, protocol::TCP);
    }
    touch_known(sock, socket, owner);
}

/// The same where the class is known.
#[inline(always)]
fn touch_known(sock: Object, socket: &mut Socket, owner: Owner) {
    charge_to(socket, owner);
    if socket.unaccepted != 0 {
        accept(socket, owner);
    }
    if let Some(control) = control()
        && socket.epoch != u64::from(control.epoch)
    {
        socket.epoch = control.epoch.into();
        progress(sock, socket);
    }
}

/// What happens to the socket from now on is `owner`'s.
#[inline(always)]
fn charge_to(socket: &mut Socket, owner: Owner) {
    if socket.owner.tid != owner.tid || socket.owner.start_boottime != owner.start_boottime {
        socket.owner = owner;
    }
}

#[inline(always)]
fn accept(socket: &mut Socket, owner: Owner) {
    if compare_exchange(&mut socket.unaccepted, 1, 0) == 1
        && let Some(entry) = net_flow(owner, socket.class)
    {
        add(&mut entry.accepts, 1);
    }
}

/// Segments and retransmits since the last time, and the round-trip time now.
#[inline(always)]
fn progress(sock: Object, socket: &mut Socket) {
    let Some(tcp) = tcp_sock(sock) else { return };
    let owner = socket.owner;
    if let Some(entry) = net_flow(owner, socket.class) {
        let (old, now) = (socket.segments, segments(tcp));
        // Another CPU may be at it as well.
        if old != now && compare_exchange(&mut socket.segments, old, now) == old {
            add(&mut entry.tx_segments, growth(old >> 32, now >> 32));
            add(&mut entry.rx_segments, growth(old, now));
        }
        let old = socket.retransmits;
        let now = tcp.get::<u32>(offset!(tcp_total_retrans)).into();
        if old != now && compare_exchange(&mut socket.retransmits, old, now) == old {
            add(&mut entry.retransmits, growth(old, now));
        }
    }
    // The kernel keeps eighths of µs.
    let rtt = tcp.get::<u32>(offset!(tcp_srtt_us)) >> 3;
    if rtt != 0 {
        latency(owner, kind::TCP_RTT, u64::from(rtt) * 1000);
    }
}

/// How much a counter of 32 bits has grown; a socket that is connected again begins anew.
#[inline(always)]
fn growth(old: u64, now: u64) -> u64 {
    let growth = (now as u32).wrapping_sub(old as u32);
    if (growth as i32) < 0 {
        u64::from(now as u32)
    } else {
        u64::from(growth)
    }
}

/// Who is charged for what happens in softirq; `None` when that is nobody of the target.
#[inline(always)]
fn charged(socket: Option<&Socket>) -> Option<Owner> {
    match socket {
        Some(socket) if socket.owner.pid != 0 => Some(socket.owner),
        _ if config!(scope) == scope::NODE => Some(Owner::default()),
        _ => None,
    }
}

/// A socket changes its state. Arguments: socket, old state, new state.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn tcp_state(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    if sock.get::<u16>(offset!(sock_protocol)) != IPPROTO_TCP {
        return 0;
    }
    let (old, new): (u32, u32) = (ctx.arg(1), ctx.arg(2));
    let change = match (old, new) {
        // By the process that calls connect() …
        (state::CLOSE, state::SYN_SENT) => Change::Connects,
        // … or listen().
        (state::CLOSE, state::LISTEN) => Change::Listens,
        (state::SYN_SENT | state::SYN_RECV, state::ESTABLISHED) => Change::Established,
        (state::SYN_SENT | state::SYN_RECV, state::CLOSE) => Change::Failed,
        // By the process that calls close() or shutdown().
        (state::ESTABLISHED | state::SYN_RECV, state::FIN_WAIT1)
        | (state::CLOSE_WAIT, state::LAST_ACK) => Change::Closes,
        (state::ESTABLISHED | state::CLOSE_WAIT, state::CLOSE) => Change::Reset,
        _ => return 0,
    };
    if change == Change::Connects || change == Change::Listens {
        begins(sock, change == Change::Connects);
        return 0;
    }
    // In one place: what follows its pointers takes the verifier long.
    let class = class::connected(sock, protocol::TCP);
    match change {
        Change::Established => established(sock, class),
        Change::Failed => failed(sock, class),
        _ => ends(sock, class, change == Change::Reset),
    }
    0
}

/// What becomes of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Connects,
    Listens,
    Established,
    Failed,
    Closes,
    Reset,
}

#[inline(always)]
fn begins(sock: Object, connects: bool) {
    let Some(owner) = current_owner() else { return };
    let Some(socket) = find_or_begin(sock) else {
        return;
    };
    socket.owner = owner;
    socket.connecting = if connects { ktime() } else { 0 };
    // A socket can be connected again, to somewhere else.
    socket.class = 0;
}

#[inline(always)]
fn established(sock: Object, class: u64) {
    let new = find(sock).is_none();
    // Also those that are not the target's: who will accept it is not known yet.
    let Some(socket) = find_or_begin(sock) else {
        return;
    };
    socket.class = class;
    let Some(tcp) = tcp_sock(sock) else { return };
    socket.received = tcp.get::<u32>(offset!(tcp_copied_seq)).into();
    let connecting = socket.connecting;
    if connecting == 0 {
        socket.unaccepted = 1;
        // All its segments are ours, from the one that asked for it.
        if new {
            socket.segments = 0;
        }
        return;
    }
    socket.connecting = 0;
    let owner = socket.owner;
    if let Some(entry) = net_flow(owner, class) {
        add(&mut entry.connects, 1);
    }
    latency(owner, kind::TCP_CONNECT, ktime().saturating_sub(connecting));
}

#[inline(always)]
fn failed(sock: Object, class: u64) {
    let Some(socket) = find(sock) else { return };
    if socket.connecting == 0 {
        return;
    }
    socket.connecting = 0;
    socket.class = class;
    if let Some(entry) = net_flow(socket.owner, class) {
        add(&mut entry.connect_failures, 1);
    }
}

/// It is closed, or cut off.
#[inline(always)]
fn ends(sock: Object, class: u64, reset: bool) {
    // Set before by close(), which throws away what was not read; the kernel sets it after.
    let closing = !reset || sock.get::<u8>(offset!(sock_shutdown)) & CLOSING == CLOSING;
    let closer = if closing { current_owner() } else { None };
    let found = find(sock);
    let mut class = class;
    let mut owner = closer;
    if let Some(socket) = found {
        if socket.class == 0 {
            socket.class = class;
        }
        class = socket.class;
        match closer {
            Some(closer) => touch_known(sock, socket, closer),
            None => owner = charged(Some(socket)),
        }
    } else if closer.is_none() {
        owner = charged(None);
    }
    if reset
        && let Some(owner) = owner
        && let Some(entry) = net_flow(owner, class)
    {
        add(&mut entry.resets, 1);
    }
}

/// Segments are sent again. Arguments: socket, packet.
#[btf_tracepoint(function = "tcp_retransmit_skb")]
pub fn tcp_retransmit(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    let found = find(sock);
    let Some(owner) = charged(found.as_deref()) else {
        return 0;
    };
    // The kernel's own count also has what could not be sent.
    let before = found.as_ref().map(|socket| socket.retransmits);
    let (Some(tcp), Some(socket)) = (tcp_sock(sock), found) else {
        let packet: *const u8 = ctx.arg(1);
        let segments = u64::from(offset!(skb_cb)) + u64::from(offset!(tcp_cb_gso_segs));
        let segments = read(packet.wrapping_add(segments as usize).cast::<u16>());
        retransmitted(sock, owner, 0, segments.unwrap_or(1).into());
        return 0;
    };
    let now = tcp.get::<u32>(offset!(tcp_total_retrans)).into();
    if let Some(before) = before
        && compare_exchange(&mut socket.retransmits, before, now) == before
    {
        retransmitted(sock, owner, socket.class, growth(before, now));
    }
    0
}

/// The answer to a request for a connection is sent again. Arguments: the listening socket, the request.
#[btf_tracepoint(function = "tcp_retransmit_synack")]
pub fn tcp_retransmit_synack(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    if let Some(owner) = charged(find(sock).as_deref()) {
        retransmitted(sock, owner, class::bound(sock, protocol::TCP), 1);
    }
    0
}

#[inline(always)]
fn retransmitted(sock: Object, owner: Owner, class: u64, segments: u64) {
    let class = if class == 0 {
        class::connected(sock, protocol::TCP)
    } else {
        class
    };
    if let Some(entry) = net_flow(owner, class) {
        add(&mut entry.retransmits, segments);
    }
}

/// A socket goes. Argument: the socket.
#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy(ctx: BtfTracePointContext) -> i32 {
    let sock = Object(ctx.arg(0));
    if let Some(socket) = find(sock)
        && socket.owner.pid != 0
        && socket.class != 0
    {
        progress(sock, socket);
    }
    0
}

/// A connection is accepted, when that function can be hooked. Arguments: the listening socket, the new one.
#[fexit(function = "inet_accept")]
pub fn tcp_accept(ctx: FExitContext) -> i32 {
    let sock = Object(ctx.arg(1)).object(offset!(socket_sk));
    if sock.is_null() || sock.get::<u16>(offset!(sock_protocol)) != IPPROTO_TCP {
        return 0;
    }
    let Some(owner) = current_owner() else {
        return 0;
    };
    let new = find(sock).is_none();
    if let Some(socket) = find_or_begin(sock) {
        // It was established before the profiler looked.
        if new {
            socket.unaccepted = 1;
        }
        touch(sock, socket, owner);
    }
    0
}
