//! System calls of followed tasks: their number and time, and their file I/O, as requested.
//!
//! The hooks see the calls of all tasks, so they first check whether the task is followed.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use super::{
    atomic::add,
    files::{
        PathOp, Untyped, count_error, count_open, count_path_op, count_sync, count_transfer,
        file_at, file_mount, sync_mount,
    },
    kernel::{Object, Task, config, ktime, offset},
    maps::current,
    per_key::{key, lookup_or_init, record},
    syscall_numbers::{self as number, argument},
    task_storage::InFlight,
};
use crate::{
    config::syscalls,
    maps::TASKS,
    offsets::MISSING,
    per_key::{Owner, Syscalls, call},
};

/// The lowest result that is an error (`-MAX_ERRNO`).
const FIRST_ERROR: i64 = -4095;
const EBADF: i64 = 9;

/// [`InFlight::call_op`].
mod op {
    pub const TRANSFER: u64 = 1;
    pub const SYNC: u64 = 2;
    pub const OPEN: u64 = 3;
    pub const UNLINK: u64 = 4;
    pub const RENAME: u64 = 5;
    pub const MKDIR: u64 = 6;
}

/// Start of a system call. Arguments: registers, number.
#[btf_tracepoint(function = "sys_enter")]
pub fn sys_enter(ctx: BtfTracePointContext) -> i32 {
    let task = current();
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    let number: u64 = ctx.arg(1);
    let abi = abi(task, number);
    let in_flight = &mut entry.in_flight;
    in_flight.call = call::dimension(number as u32 & !number::X32_BIT, abi);
    in_flight.call_op = 0;
    if config!(syscalls) & syscalls::FILES != 0 && abi == call::NATIVE {
        start_file_op(in_flight, task, Object(ctx.arg(0)), number as u32);
    }
    in_flight.call_since = ktime();
    0
}

/// End of a system call. Arguments: registers, result.
#[btf_tracepoint(function = "sys_exit")]
pub fn sys_exit(ctx: BtfTracePointContext) -> i32 {
    let task = current();
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    let in_flight = &mut entry.in_flight;
    let since = in_flight.call_since;
    // The call started before the task was followed, as the fork that created it.
    if since == 0 {
        return 0;
    }
    in_flight.call_since = 0;
    let ns = ktime().saturating_sub(since);
    let result: i64 = ctx.arg(1);
    if config!(syscalls) & syscalls::COUNT != 0
        && let Some(entry) = lookup_or_init::<Syscalls>(&key(entry.owner, in_flight.call))
    {
        record(&mut entry.latency, ns);
        // The result of rt_sigreturn is a register of the interrupted code.
        let failed = (FIRST_ERROR..0).contains(&result);
        if failed && in_flight.call as u32 != number::RT_SIGRETURN {
            add(&mut entry.errors, 1);
        }
    }
    if config!(syscalls) & syscalls::FILES != 0 && in_flight.call_op != 0 {
        end_file_op(entry.owner, in_flight, task, result, ns);
    }
    0
}

/// The table to which a number belongs.
#[inline(always)]
fn abi(task: Task, number: u64) -> u64 {
    if cfg!(bpf_target_arch = "x86_64") {
        const TS_COMPAT: u32 = 2;
        if number as u32 & number::X32_BIT != 0 {
            return call::X32;
        }
        let status = offset!(task_thread_status);
        if status != MISSING && task.0.get::<u32>(status) & TS_COMPAT != 0 {
            return call::COMPAT;
        }
    } else {
        const TIF_32BIT: u64 = 1 << 22;
        let flags = offset!(task_thread_flags);
        if flags != MISSING && task.0.get::<u64>(flags) & TIF_32BIT != 0 {
            return call::COMPAT;
        }
    }
    call::NATIVE
}

/// Stores the file operation of a call, and the mounts of its files.
#[inline(always)]
fn start_file_op(in_flight: &mut InFlight, task: Task, regs: Object, call: u32) {
    in_flight.call_from = 0;
    in_flight.call_to = 0;
    in_flight.call_op = match call {
        number::READ | number::PREAD64 | number::READV | number::PREADV | number::PREADV2 => {
            in_flight.call_from = mount_at(task, argument(regs, 0));
            op::TRANSFER
        }
        number::WRITE | number::PWRITE64 | number::WRITEV | number::PWRITEV | number::PWRITEV2 => {
            in_flight.call_to = mount_at(task, argument(regs, 0));
            op::TRANSFER
        }
        number::SENDFILE => {
            in_flight.call_to = mount_at(task, argument(regs, 0));
            in_flight.call_from = mount_at(task, argument(regs, 1));
            op::TRANSFER
        }
        number::SPLICE | number::COPY_FILE_RANGE => {
            in_flight.call_from = mount_at(task, argument(regs, 0));
            in_flight.call_to = mount_at(task, argument(regs, 2));
            op::TRANSFER
        }
        number::FSYNC | number::FDATASYNC => {
            let file = file_at(task, argument(regs, 0));
            in_flight.call_from = sync_mount::<Untyped>(file);
            op::SYNC
        }
        number::OPENAT | number::OPENAT2 | number::OPEN | number::CREAT => op::OPEN,
        number::UNLINKAT | number::UNLINK | number::RMDIR => op::UNLINK,
        number::RENAMEAT2 | number::RENAMEAT | number::RENAME => op::RENAME,
        number::MKDIRAT | number::MKDIR => op::MKDIR,
        _ => 0,
    };
}

/// Counts the file operation of a call.
#[inline(always)]
fn end_file_op(owner: Owner, in_flight: &InFlight, task: Task, result: i64, ns: u64) {
    let (from, to) = (in_flight.call_from, in_flight.call_to);
    match in_flight.call_op {
        op::TRANSFER | op::SYNC => {
            if from | to == 0 {
                // A socket or pipe, or an invalid descriptor.
                if result == -EBADF {
                    count_error(owner, 0);
                }
            } else if in_flight.call_op == op::SYNC {
                count_sync(owner, from, result, ns);
            } else {
                count_transfer(owner, from, to, result, ns);
            }
        }
        op::OPEN => {
            if result < 0 {
                count_error(owner, 0);
            } else {
                count_open::<Untyped>(owner, file_at(task, result as u64));
            }
        }
        _ if result != 0 => {}
        op::UNLINK => count_path_op(owner, 0, PathOp::Unlink),
        op::RENAME => count_path_op(owner, 0, PathOp::Rename),
        op::MKDIR => count_path_op(owner, 0, PathOp::Mkdir),
        _ => {}
    }
}

/// The mount of the open file `fd`, 0 if its reads and writes are not counted.
#[inline(always)]
fn mount_at(task: Task, fd: u64) -> u64 {
    file_mount::<Untyped>(file_at(task, fd))
}
