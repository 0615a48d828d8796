//! The send and receive functions themselves, for kernels without the tracepoints of [`super`] (before 6.3), and
//! what passes neither.
//!
//! Each hook's arguments are the function's, then what it returned. The functions do not call one another, except
//! where it is said.

use aya_ebpf::{macros::fexit, programs::FExitContext};

use super::{AF_INET6, received, sent};
use crate::programs::kernel::{Object, offset};

/// `sock` of a `socket`.
#[inline(always)]
fn sock_of(ctx: &FExitContext) -> Object {
    Object(ctx.arg(0)).object(offset!(socket_sk))
}

macro_rules! functions {
    ($($program:ident($function:literal): |$ctx:ident| $body:expr;)*) => {$(
        #[doc = concat!("`", $function, "` ends.")]
        #[fexit(function = $function)]
        pub fn $program($ctx: FExitContext) -> i32 {
            $body;
            0
        }
    )*};
}

functions! {
    tcp_send("tcp_sendmsg"): |ctx| sent(Object(ctx.arg(0)), result(&ctx, 3));
    tcp_send_page("tcp_sendpage"): |ctx| sent(Object(ctx.arg(0)), result(&ctx, 5));
    tcp_receive("tcp_recvmsg"): |ctx| received(Object(ctx.arg(0)), result(&ctx, 5), ctx.arg(3));
    udp_send("udp_sendmsg"): |ctx| udp_sent(&ctx);
    udp_receive("udp_recvmsg"): |ctx| received(Object(ctx.arg(0)), result(&ctx, 5), ctx.arg(3));
    udp6_send("udpv6_sendmsg"): |ctx| sent(Object(ctx.arg(0)), result(&ctx, 3));
    udp6_receive("udpv6_recvmsg"): |ctx| received(Object(ctx.arg(0)), result(&ctx, 5), ctx.arg(3));
    mptcp_send("mptcp_sendmsg"): |ctx| sent(Object(ctx.arg(0)), result(&ctx, 3));
    mptcp_receive("mptcp_recvmsg"): |ctx| received(Object(ctx.arg(0)), result(&ctx, 5), ctx.arg(3));
    unix_stream_send("unix_stream_sendmsg"): |ctx| sent(sock_of(&ctx), result(&ctx, 3));
    unix_stream_send_page("unix_stream_sendpage"): |ctx| sent(sock_of(&ctx), result(&ctx, 5));
    unix_stream_receive("unix_stream_recvmsg"): |ctx| received(sock_of(&ctx), result(&ctx, 4), ctx.arg(3));
    unix_stream_splice("unix_stream_splice_read"): |ctx| received(sock_of(&ctx), ctx.arg(5), 0);
    unix_packet_send("unix_dgram_sendmsg"): |ctx| sent(sock_of(&ctx), result(&ctx, 3));
    unix_packet_receive("unix_dgram_recvmsg"): |ctx| received(sock_of(&ctx), result(&ctx, 4), ctx.arg(3));
}

/// What the function returned, an `int`: argument `position`.
#[inline(always)]
fn result(ctx: &FExitContext, position: usize) -> i64 {
    i64::from(ctx.arg::<i32>(position))
}

/// `udpv6_sendmsg` calls it for IPv4 addresses, and is counted itself.
#[inline(always)]
fn udp_sent(ctx: &FExitContext) {
    let sock = Object(ctx.arg(0));
    if sock.get::<u16>(offset!(sock_family)) != AF_INET6 {
        sent(sock, result(ctx, 3));
    }
}
