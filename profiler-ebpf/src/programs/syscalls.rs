//! System calls of followed tasks: counted and timed, and the file I/O that they do, each only if it is wanted.
//!
//! Everybody's calls come here, so the first thing is to tell a stranger.

use aya_ebpf::{
    btf_maps::HashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext,
};

use super::{
    files::{
        Any, PathOp, failed, file_at, file_mount, opened, path_done, sync_mount, synced, transfer,
    },
    kernel::{Object, Task, config, ktime, offset},
    maps::{TASKS, add, current},
    per_key::{PerKeyCounters, count, key, lookup_or_init},
    syscall_numbers::{self as number, argument},
};
use crate::{
    offsets::MISSING,
    per_key::{SyscallCounters, call},
    wire::{InFlight, Map, Owner, calls},
};

/// System calls by process and number.
#[btf_map]
static SYSCALLS: PerKeyCounters<SyscallCounters> = HashMap::new();

/// Results from here on are errors.
const ERRORS: i64 = -4095;
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

/// A system call begins. Arguments: registers, number.
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
    if config!(calls) & calls::FILES != 0 && abi == call::NATIVE {
        files(in_flight, task, Object(ctx.arg(0)), number as u32);
    }
    in_flight.call_since = ktime();
    0
}

/// A system call ends. Arguments: registers, result.
#[btf_tracepoint(function = "sys_exit")]
pub fn sys_exit(ctx: BtfTracePointContext) -> i32 {
    let task = current();
    let Some(entry) = TASKS.get(task) else {
        return 0;
    };
    let in_flight = &mut entry.in_flight;
    let since = in_flight.call_since;
    // It began before the task was followed: the child's end of fork, for example.
    if since == 0 {
        return 0;
    }
    in_flight.call_since = 0;
    let ns = ktime().saturating_sub(since);
    let result: i64 = ctx.arg(1);
    if config!(calls) & calls::COUNT != 0
        && let Some(entry) =
            lookup_or_init(&SYSCALLS, Map::Syscalls, &key(entry.owner, in_flight.call))
    {
        count(&mut entry.latency, ns);
        // What rt_sigreturn returns is a register of what was interrupted.
        let failed = (ERRORS..0).contains(&result);
        if failed && in_flight.call as u32 != number::RT_SIGRETURN {
            add(&mut entry.errors, 1);
        }
    }
    if config!(calls) & calls::FILES != 0 && in_flight.call_op != 0 {
        files_done(entry.owner, in_flight, task, result, ns);
    }
    0
}

/// Which table the number is from.
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

/// Notes what the call does with files.
#[inline(always)]
fn files(in_flight: &mut InFlight, task: Task, regs: Object, call: u32) {
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
            in_flight.call_from = sync_mount::<Any>(file);
            op::SYNC
        }
        number::OPENAT | number::OPENAT2 | number::OPEN | number::CREAT => op::OPEN,
        number::UNLINKAT | number::UNLINK | number::RMDIR => op::UNLINK,
        number::RENAMEAT2 | number::RENAMEAT | number::RENAME => op::RENAME,
        number::MKDIRAT | number::MKDIR => op::MKDIR,
        _ => 0,
    };
}

/// Accounts what the call did with files.
#[inline(always)]
fn files_done(owner: Owner, in_flight: &InFlight, task: Task, result: i64, ns: u64) {
    let (from, to) = (in_flight.call_from, in_flight.call_to);
    match in_flight.call_op {
        op::TRANSFER | op::SYNC => {
            if from | to == 0 {
                // No file, or none at all.
                if result == -EBADF {
                    failed(owner, 0);
                }
            } else if in_flight.call_op == op::SYNC {
                synced(owner, from, result, ns);
            } else {
                transfer(owner, from, to, result, ns);
            }
        }
        op::OPEN => {
            if result < 0 {
                failed(owner, 0);
            } else {
                opened::<Any>(owner, file_at(task, result as u64));
            }
        }
        _ if result != 0 => {}
        op::UNLINK => path_done(owner, 0, PathOp::Unlink),
        op::RENAME => path_done(owner, 0, PathOp::Rename),
        op::MKDIR => path_done(owner, 0, PathOp::Mkdir),
        _ => {}
    }
}

/// The mount of the file that is open as `fd`, 0 when it is none.
#[inline(always)]
fn mount_at(task: Task, fd: u64) -> u64 {
    file_mount::<Any>(file_at(task, fd))
}
