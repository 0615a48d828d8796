//! UDP: class of each datagram.
//!
//! A socket that is not connected has no peer. The class follows from the route that is looked up
//! in the context of the sender, and from the interface on which a datagram arrived. It is stored
//! in the task's entry until the end of the call, as class | port << 32. The port distinguishes it
//! from datagrams that the kernel sends in softirq while the task runs.

use aya_ebpf::{
    macros::{btf_tracepoint, fexit},
    programs::{BtfTracePointContext, FExitContext},
};

use super::{Direction, IPPROTO_UDP, class::bound};
use crate::{
    maps::TASKS,
    per_key::net::{class as pack, family, protocol, scope},
    programs::{
        kernel::{Object, argument, config, offset},
        maps::current,
    },
};

/// `sock.sk_state` of a connected UDP socket.
const TCP_ESTABLISHED: u8 = 1;
/// Number of every loopback interface, and the interface in a lookup for an outgoing packet.
const LOOPBACK_IFINDEX: u32 = 1;
/// `nhc_scope` of an address of this host.
const RT_SCOPE_NOWHERE: u8 = 255;
/// `fib6_type` of an address of this host.
const RTN_LOCAL: u8 = 2;
/// `skb.protocol` of IPv4.
const ETH_P_IP: u16 = 0x0800_u16.to_be();

/// The class of the datagram that the current task just sent or received; 0 if the class of the
/// socket applies.
#[inline(always)]
pub fn class_of(sock: Object, direction: Direction) -> u64 {
    let stored = TASKS.get(current()).map_or(0, |task| {
        let stored = if direction == Direction::Receive {
            &mut task.in_flight.datagram_from
        } else {
            &mut task.in_flight.datagram_to
        };
        core::mem::take(stored)
    });
    let port: u16 = sock.get(offset!(sock_port));
    if stored != 0 && stored >> 32 == u64::from(port) {
        stored & 0xffff_ffff
    } else if sock.get::<u8>(offset!(sock_state)) == TCP_ESTABLISHED {
        0
    } else {
        bound(sock, protocol::UDP)
    }
}

#[inline(always)]
fn class_and_port(family: u64, local: bool, port: u16) -> u64 {
    let scope = if local {
        scope::LOOPBACK
    } else {
        scope::REMOTE
    };
    pack(protocol::UDP, family, scope) | u64::from(port) << 32
}

/// Whether a route is looked up for an outgoing datagram.
#[inline(always)]
fn is_send(flow: Object) -> bool {
    flow.get::<u8>(offset!(flow_protocol)) == IPPROTO_UDP as u8
        && flow.get::<u32>(offset!(flow_iif)) == LOOPBACK_IFINDEX
}

/// An IPv4 route is looked up. Arguments: table, flow, next hop, error.
#[btf_tracepoint(function = "fib_table_lookup")]
pub fn udp_route4(ctx: BtfTracePointContext) -> i32 {
    let (flow, hop) = (Object(ctx.arg(1)), Object(ctx.arg(2)));
    // Null if there is no route.
    if !hop.is_null()
        && is_send(flow)
        && let Some(task) = TASKS.get(current())
    {
        let local = hop.get::<u8>(offset!(nexthop_scope)) == RT_SCOPE_NOWHERE;
        let port: u16 = flow.get(offset!(flow4_source_port));
        task.in_flight.datagram_to = class_and_port(family::INET, local, u16::from_be(port));
    }
    0
}

/// An IPv6 route is looked up. Arguments: network namespace, result, table, flow.
#[btf_tracepoint(function = "fib6_table_lookup")]
pub fn udp_route6(ctx: BtfTracePointContext) -> i32 {
    let flow = Object(ctx.arg(3));
    if is_send(flow)
        && let Some(task) = TASKS.get(current())
    {
        let local = Object(ctx.arg(1)).get::<u8>(offset!(fib6_type)) == RTN_LOCAL;
        let port: u16 = flow.get(offset!(flow6_source_port));
        task.in_flight.datagram_to = class_and_port(family::INET6, local, u16::from_be(port));
    }
    0
}

/// A datagram is taken from the queue. Optional: without it, the class of received datagrams is
/// known only if the socket is connected or bound to an address. Arguments: socket, flags, before
/// Linux 5.19 `noblock`, offset, error; result: the packet.
#[fexit(function = "__skb_recv_udp")]
pub fn udp_arrival(ctx: FExitContext) -> i32 {
    let packet = if config!(recv_udp_has_noblock) != 0 {
        argument::<5>(&ctx)
    } else {
        argument::<4>(&ctx)
    };
    let packet = Object(packet as *const u8);
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
        task.in_flight.datagram_from = class_and_port(family, local, sock.get(offset!(sock_port)));
    }
    0
}
