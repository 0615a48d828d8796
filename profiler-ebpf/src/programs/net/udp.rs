//! UDP: where each datagram goes and where it comes from.
//!
//! A socket without a fixed destination does not tell; but the route that is looked up for a datagram does, in the
//! context of the sender, and the interface by which one came. Both are remembered for the call that is under way:
//! class | port << 32. The port tells them from what the kernel itself sends in softirq, on top of the task.

use aya_ebpf::{
    macros::{btf_tracepoint, fexit},
    programs::{BtfTracePointContext, FExitContext},
};

use super::{IPPROTO_UDP, Way, class::bound};
use crate::{
    per_key::net::{class as pack, family, protocol, scope},
    programs::{
        kernel::{Object, offset},
        maps::{TASKS, current},
    },
    wire::TaskState,
};

/// `sock.sk_state` of a socket with a fixed destination.
const TCP_ESTABLISHED: u8 = 1;
/// Interface in a look-up for a packet that is sent, and number of every loopback interface.
const LOOPBACK_IFINDEX: u32 = 1;
/// `nhc_scope` of an address of this host.
const RT_SCOPE_NOWHERE: u8 = 255;
/// `fib6_type` likewise.
const RTN_LOCAL: u8 = 2;
/// `skb.protocol`.
const ETH_P_IP: u16 = 0x0800_u16.to_be();

/// The class of what `task` just sent or received; 0 when the socket's other end tells it.
#[inline(always)]
pub fn class_of(sock: Object, task: &mut TaskState, way: Way) -> u64 {
    let noted = if way == Way::In {
        core::mem::take(&mut task.in_flight.datagram_from)
    } else {
        core::mem::take(&mut task.in_flight.datagram_to)
    };
    let port: u16 = sock.get(offset!(sock_port));
    if noted != 0 && noted >> 32 == u64::from(port) {
        noted & 0xffff_ffff
    } else if sock.get::<u8>(offset!(sock_state)) == TCP_ESTABLISHED {
        0
    } else {
        bound(sock, protocol::UDP)
    }
}

#[inline(always)]
fn note(family: u64, local: bool, port: u16) -> u64 {
    let scope = if local {
        scope::LOOPBACK
    } else {
        scope::REMOTE
    };
    pack(protocol::UDP, family, scope) | u64::from(port) << 32
}

/// Whether a look-up is for a datagram that is sent.
#[inline(always)]
fn sends(entry: Object) -> bool {
    entry.get::<u8>(offset!(flow_protocol)) == IPPROTO_UDP as u8
        && entry.get::<u32>(offset!(flow_iif)) == LOOPBACK_IFINDEX
}

/// An IPv4 route is looked up. Arguments: table, what for, next hop, error.
#[btf_tracepoint(function = "fib_table_lookup")]
pub fn udp_route4(ctx: BtfTracePointContext) -> i32 {
    let (entry, hop) = (Object(ctx.arg(1)), Object(ctx.arg(2)));
    // Null when there is no route.
    if !hop.is_null()
        && sends(entry)
        && let Some(task) = TASKS.get(current())
    {
        let local = hop.get::<u8>(offset!(nexthop_scope)) == RT_SCOPE_NOWHERE;
        let port: u16 = entry.get(offset!(flow4_source_port));
        task.in_flight.datagram_to = note(family::INET, local, u16::from_be(port));
    }
    0
}

/// An IPv6 route is looked up. Arguments: network namespace, result, table, what for.
#[btf_tracepoint(function = "fib6_table_lookup")]
pub fn udp_route6(ctx: BtfTracePointContext) -> i32 {
    let entry = Object(ctx.arg(3));
    if sends(entry)
        && let Some(task) = TASKS.get(current())
    {
        let local = Object(ctx.arg(1)).get::<u8>(offset!(fib6_type)) == RTN_LOCAL;
        let port: u16 = entry.get(offset!(flow6_source_port));
        task.in_flight.datagram_to = note(family::INET6, local, u16::from_be(port));
    }
    0
}

/// A datagram is taken from the queue, when that function can be hooked. Arguments: socket, flags, offset, error;
/// returns the packet.
#[fexit(function = "__skb_recv_udp")]
pub fn udp_arrival(ctx: FExitContext) -> i32 {
    let packet = Object(ctx.arg(4));
    if packet.is_null() {
        return 0;
    }
    if let Some(task) = TASKS.get(current()) {
        let sock = Object(ctx.arg(0));
        let local = packet.get::<u32>(offset!(skb_iif)) == LOOPBACK_IFINDEX;
        let family = if packet.get::<u16>(offset!(skb_protocol)) == ETH_P_IP {
            family::INET
        } else {
            family::INET6
        };
        task.in_flight.datagram_from = note(family, local, sock.get(offset!(sock_port)));
    }
    0
}
