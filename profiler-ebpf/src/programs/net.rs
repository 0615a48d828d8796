//! Network I/O of each process, in the context of the process that sends or receives.

use aya_ebpf::{
    btf_maps::HashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    flows::{Flows, current_owner, flow, key},
    kernel::{Object, offset},
    maps::add,
};
use crate::{
    flows::{
        NetFlow,
        net::{class, family, protocol, scope},
    },
    wire::Map,
};

/// Network I/O by process and class.
#[btf_map]
static NET_IO: Flows<NetFlow> = HashMap::new();

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;
const IPPROTO_UDP: u16 = 17;
const IPPROTO_MPTCP: u16 = 262;

/// What was received stays to be received again, or is no data but an error.
const MSG_PEEK: u32 = 0x2;
const MSG_ERRQUEUE: u32 = 0x2000;

/// A send call ends (net/socket.c). Arguments: socket, result, flags.
#[btf_tracepoint(function = "sock_send_length")]
pub fn sock_send_length(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    if result >= 0 {
        transfer(Object(ctx.arg(0)), result as u64, 0);
    }
    0
}

/// A receive call ends. Arguments: socket, result, flags.
#[btf_tracepoint(function = "sock_recv_length")]
pub fn sock_recv_length(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    let flags: u32 = ctx.arg(2);
    if result >= 0 && flags & (MSG_PEEK | MSG_ERRQUEUE) == 0 {
        transfer(Object(ctx.arg(0)), result as u64, 1);
    }
    0
}

#[inline(always)]
fn transfer(sock: Object, bytes: u64, received: u32) {
    let Some(owner) = current_owner() else { return };
    let Some(class) = class_of(sock) else { return };
    let Some(flow) = flow(&NET_IO, Map::NetIo, &key(owner, class)) else {
        return;
    };
    if received != 0 {
        add(&mut flow.rx_bytes, bytes);
        add(&mut flow.rx_calls, 1);
    } else {
        add(&mut flow.tx_bytes, bytes);
        add(&mut flow.tx_calls, 1);
    }
}

/// `None` for a protocol that is not accounted.
#[inline(always)]
fn class_of(sock: Object) -> Option<u64> {
    let socket_family: u16 = sock.get(offset!(sock_family));
    if socket_family == AF_UNIX {
        return Some(class(protocol::UNIX, family::NONE, scope::LOOPBACK));
    }
    let family = match socket_family {
        AF_INET => family::INET,
        AF_INET6 => family::INET6,
        _ => return None,
    };
    let protocol = match sock.get::<u16>(offset!(sock_protocol)) {
        IPPROTO_TCP | IPPROTO_MPTCP => protocol::TCP,
        IPPROTO_UDP => protocol::UDP,
        _ => return None,
    };
    Some(class(protocol, family, scope::UNKNOWN))
}
