//! Network I/O, in the context of the process that sends or receives.

mod class;
mod functions;
pub(crate) mod messages;
pub(crate) mod socket;
mod splice;
mod tcp;
mod udp;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    kernel::{Object, offset},
    maps::current,
    per_key::{key, lookup_or_init},
};
use crate::{
    maps::TASKS,
    per_key::{NetCounters, NetIo, Owner, net::protocol},
};

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;
const IPPROTO_UDP: u16 = 17;
const IPPROTO_MPTCP: u16 = 262;

/// The data stays in the queue, and will be received again.
const MSG_PEEK: u32 = 0x2;
/// An error is received instead of data.
const MSG_ERRQUEUE: u32 = 0x2000;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Direction {
    Send = 0,
    Receive = 1,
}

/// End of a send call (net/socket.c). Arguments: socket, result, flags.
#[btf_tracepoint(function = "sock_send_length")]
pub fn sock_send_length(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    count_send(Object(ctx.arg(0)), i64::from(result));
    0
}

/// End of a receive call. Arguments: socket, result, flags.
#[btf_tracepoint(function = "sock_recv_length")]
pub fn sock_recv_length(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    count_receive(Object(ctx.arg(0)), i64::from(result), ctx.arg(2));
    0
}

/// Counts a send call that returned `result`.
#[inline(always)]
fn count_send(sock: Object, result: i64) {
    if result >= 0 {
        count(sock, result as u64, Direction::Send);
    }
}

/// Counts a receive call with these flags that returned `result`.
#[inline(always)]
fn count_receive(sock: Object, result: i64, flags: u32) {
    if result >= 0 && flags & (MSG_PEEK | MSG_ERRQUEUE) == 0 {
        count(sock, result as u64, Direction::Receive);
    }
}

#[inline(always)]
fn count(sock: Object, bytes: u64, direction: Direction) {
    let family: u16 = sock.get(offset!(sock_family));
    if family == AF_UNIX {
        count_unix(bytes, direction);
    } else if family == AF_INET || family == AF_INET6 {
        count_ip(sock, bytes, direction);
    }
}

/// Unix sockets have only one class.
#[inline(always)]
fn count_unix(bytes: u64, direction: Direction) {
    let Some(task) = TASKS.get(current()) else {
        return;
    };
    if direction == Direction::Receive {
        task.unix_rx_bytes += bytes;
        task.unix_rx_calls += 1;
    } else {
        task.unix_tx_bytes += bytes;
        task.unix_tx_calls += 1;
    }
}

#[inline(always)]
fn count_ip(sock: Object, bytes: u64, direction: Direction) {
    let route = class::route(sock);
    let Some(messages) = messages::of_current() else {
        return;
    };
    let mut socket = None;
    let (protocol, known) = match sock.get::<u16>(offset!(sock_protocol)) {
        IPPROTO_TCP => {
            socket = socket::find_or_insert(sock);
            let known = socket.as_ref().map_or(0, |socket| socket.class);
            (protocol::TCP, known)
        }
        IPPROTO_UDP => (protocol::UDP, udp::class_of(sock, direction)),
        IPPROTO_MPTCP => (protocol::TCP, 0),
        _ => return,
    };
    let class = if known == 0 {
        class::connected(sock, route, protocol)
    } else {
        known
    };
    if let Some(socket) = socket {
        socket.class = class;
        tcp::transfer(sock, socket, messages.owner, bytes, direction);
    }
    messages.count(class, bytes, direction);
}

#[inline(always)]
fn counters_of(owner: Owner, class: u64) -> Option<&'static mut NetCounters> {
    lookup_or_init::<NetIo>(&key(owner, class))
}
