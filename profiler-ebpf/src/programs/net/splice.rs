//! Data that is received without a receive call.

use aya_ebpf::{
    helpers::generated::bpf_task_pt_regs, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{class, counters_of, socket, tcp};
use crate::{
    offsets::MISSING,
    programs::{
        atomic::add,
        kernel::{Object, offset},
        maps::current,
        per_key::current_owner,
        syscall_numbers as number,
    },
};

/// `sock.sk_flags`: the peer has sent the end of the stream.
const SOCK_DONE: u64 = 1 << 1;

/// Data was taken from a TCP socket. Argument: the socket, which is locked.
///
/// Counts splice(2) and `TCP_ZEROCOPY_RECEIVE` of getsockopt(2), which call no receive function.
#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub fn tcp_spliced(ctx: BtfTracePointContext) -> i32 {
    let call = system_call();
    if call != number::SPLICE && call != number::GETSOCKOPT {
        return 0;
    }
    let sock = Object(ctx.arg(0));
    let route = class::route(sock);
    let Some(owner) = current_owner() else {
        return 0;
    };
    let Some(tcp_sock) = socket::tcp_sock(sock) else {
        return 0;
    };
    // On a socket that is older than the profiler, the size of the first transfer is unknown.
    let Some(socket) = socket::find_or_insert(sock) else {
        return 0;
    };
    let taken: u32 = tcp_sock.get(offset!(tcp_copied_seq));
    let mut bytes = taken.wrapping_sub(socket.received as u32);
    // The end of the stream takes up a sequence number.
    if sock.get::<u64>(offset!(sock_flags)) & SOCK_DONE != 0
        && tcp_sock.get::<u32>(offset!(tcp_rcv_nxt)) == taken
    {
        bytes = bytes.wrapping_sub(1);
    }
    tcp::touch(sock, route, socket, owner);
    if bytes as i32 > 0
        && let Some(entry) = counters_of(owner, socket.class)
    {
        add(&mut socket.received, bytes.into());
        add(&mut entry.rx_bytes, bytes.into());
        add(&mut entry.rx_calls, 1);
    }
    0
}

/// Number of the current system call.
#[inline(always)]
fn system_call() -> u32 {
    // SAFETY: the current task always exists.
    let registers = unsafe { bpf_task_pt_regs(current().0.0.cast_mut().cast()) };
    let registers = Object(core::ptr::with_exposed_provenance(registers as usize));
    if offset!(regs_orig_ax) == MISSING {
        registers.get(offset!(regs_syscallno))
    } else {
        registers.get::<u64>(offset!(regs_orig_ax)) as u32
    }
}
