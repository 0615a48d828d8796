//! Network I/O of each process, in the context of the process that sends or receives.

mod class;
mod functions;
mod socket;
mod splice;
mod tcp;
mod udp;

use aya_ebpf::{
    btf_maps::HashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    kernel::{Object, offset},
    maps::{TASKS, add, current},
    per_key::{PerKeyCounters, key, lookup_or_init},
};
use crate::{
    per_key::{NetCounters, net::protocol},
    wire::{Map, Owner},
};

/// Network I/O by process and class.
#[btf_map]
static NET_IO: PerKeyCounters<NetCounters> = HashMap::new();

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;
const IPPROTO_UDP: u16 = 17;
const IPPROTO_MPTCP: u16 = 262;

/// What was received stays to be received again, or is no data but an error.
const MSG_PEEK: u32 = 0x2;
const MSG_ERRQUEUE: u32 = 0x2000;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Way {
    Out = 0,
    In = 1,
}

/// A send call ends (net/socket.c). Arguments: socket, result, flags.
#[btf_tracepoint(function = "sock_send_length")]
pub fn sock_send_length(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    sent(Object(ctx.arg(0)), i64::from(result));
    0
}

/// A receive call ends. Arguments: socket, result, flags.
#[btf_tracepoint(function = "sock_recv_length")]
pub fn sock_recv_length(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    received(Object(ctx.arg(0)), i64::from(result), ctx.arg(2));
    0
}

/// What a send call returned.
#[inline(always)]
fn sent(sock: Object, result: i64) {
    if result >= 0 {
        transfer(sock, result as u64, Way::Out);
    }
}

/// What a receive call with these flags returned.
#[inline(always)]
fn received(sock: Object, result: i64, flags: u32) {
    if result >= 0 && flags & (MSG_PEEK | MSG_ERRQUEUE) == 0 {
        transfer(sock, result as u64, Way::In);
    }
}

#[inline(always)]
fn transfer(sock: Object, bytes: u64, way: Way) {
    let Some(task) = TASKS.get(current()) else {
        return;
    };
    let owner = task.owner;
    let socket_family: u16 = sock.get(offset!(sock_family));
    if socket_family == AF_UNIX {
        // Of one class, and often many: kept with the task, which is cheaper than a look-up.
        if way == Way::In {
            task.unix_rx_bytes += bytes;
            task.unix_rx_calls += 1;
        } else {
            task.unix_tx_bytes += bytes;
            task.unix_tx_calls += 1;
        }
        return;
    }
    if socket_family != AF_INET && socket_family != AF_INET6 {
        return;
    }
    let mut socket = None;
    let (protocol, known) = match sock.get::<u16>(offset!(sock_protocol)) {
        IPPROTO_TCP => {
            socket = socket::find_or_begin(sock);
            let known = socket.as_ref().map_or(0, |socket| socket.class);
            (protocol::TCP, known)
        }
        IPPROTO_UDP => (protocol::UDP, udp::class_of(sock, task, way)),
        IPPROTO_MPTCP => (protocol::TCP, 0),
        _ => return,
    };
    // In one place: what follows pointers takes the verifier long.
    let class = if known == 0 {
        class::connected(sock, protocol)
    } else {
        known
    };
    if let Some(socket) = socket {
        socket.class = class;
        tcp::used(sock, socket, owner, bytes, way);
    }
    let Some(entry) = net_flow(owner, class) else {
        return;
    };
    if way == Way::In {
        add(&mut entry.rx_bytes, bytes);
        add(&mut entry.rx_calls, 1);
    } else {
        add(&mut entry.tx_bytes, bytes);
        add(&mut entry.tx_calls, 1);
    }
}

#[inline(always)]
fn net_flow(owner: Owner, class: u64) -> Option<&'static mut NetCounters> {
    lookup_or_init(&NET_IO, Map::NetIo, &key(owner, class))
}
