//! The send and receive functions of protocols, for kernels without the tracepoints of [`super`]
//! (before 6.3), and for calls that do not pass through the tracepoints.
//!
//! The arguments of a hook are those of the function and its result. Unless noted, the functions do
//! not call one another.

use aya_ebpf::{macros::fexit, programs::FExitContext};

use super::{AF_INET6, count_receive, count_send};
use crate::programs::kernel::{Object, argument, config, offset};

/// The `struct sock` of the first argument, a `struct socket`.
#[inline(always)]
fn sock_of(ctx: &FExitContext) -> Object {
    Object(ctx.arg(0)).object(offset!(socket_sk))
}

macro_rules! functions {
    ($($program:ident($function:literal): |$ctx:ident| $body:expr;)*) => {$(
        #[doc = concat!("End of `", $function, "`.")]
        #[fexit(function = $function)]
        pub fn $program($ctx: FExitContext) -> i32 {
            $body;
            0
        }
    )*};
}

functions! {
    tcp_send("tcp_sendmsg"): |ctx| count_send(Object(ctx.arg(0)), result(&ctx, 3));
    tcp_send_page("tcp_sendpage"): |ctx| count_send(Object(ctx.arg(0)), result(&ctx, 5));
    tcp_receive("tcp_recvmsg"): |ctx| count_protocol_receive(&ctx);
    udp_send("udp_sendmsg"): |ctx| count_udp_send(&ctx);
    udp_receive("udp_recvmsg"): |ctx| count_protocol_receive(&ctx);
    udp6_send("udpv6_sendmsg"): |ctx| count_send(Object(ctx.arg(0)), result(&ctx, 3));
    udp6_receive("udpv6_recvmsg"): |ctx| count_protocol_receive(&ctx);
    mptcp_send("mptcp_sendmsg"): |ctx| count_send(Object(ctx.arg(0)), result(&ctx, 3));
    mptcp_receive("mptcp_recvmsg"): |ctx| count_protocol_receive(&ctx);
    unix_stream_send("unix_stream_sendmsg"): |ctx| count_send(sock_of(&ctx), result(&ctx, 3));
    unix_stream_send_page("unix_stream_sendpage"):
        |ctx| count_send(sock_of(&ctx), result(&ctx, 5));
    unix_stream_receive("unix_stream_recvmsg"):
        |ctx| count_receive(sock_of(&ctx), result(&ctx, 4), ctx.arg(3));
    unix_stream_splice("unix_stream_splice_read"):
        |ctx| count_receive(sock_of(&ctx), ctx.arg(5), 0);
    unix_packet_send("unix_dgram_sendmsg"): |ctx| count_send(sock_of(&ctx), result(&ctx, 3));
    unix_packet_receive("unix_dgram_recvmsg"):
        |ctx| count_receive(sock_of(&ctx), result(&ctx, 4), ctx.arg(3));
}

/// The result of the function, an `int`, which is argument `position`.
#[inline(always)]
fn result(ctx: &FExitContext, position: usize) -> i64 {
    i64::from(ctx.arg::<i32>(position))
}

/// Arguments: socket, message, size, before Linux 5.19 `noblock`, flags, size of the address.
#[inline(always)]
fn count_protocol_receive(ctx: &FExitContext) {
    let (flags, result) = if config!(recvmsg_has_noblock) != 0 {
        (argument::<4>(ctx), argument::<6>(ctx))
    } else {
        (argument::<3>(ctx), argument::<5>(ctx))
    };
    count_receive(Object(ctx.arg(0)), i64::from(result as i32), flags as u32);
}

/// Excludes the calls by `udpv6_sendmsg` for IPv4 addresses, which is counted itself.
#[inline(always)]
fn count_udp_send(ctx: &FExitContext) {
    let sock = Object(ctx.arg(0));
    if sock.get::<u16>(offset!(sock_family)) != AF_INET6 {
        count_send(sock, result(ctx, 3));
    }
}
