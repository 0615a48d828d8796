//! File I/O at functions through which all system calls pass, in the context of the calling task.
//!
//! Every operation passes through exactly one of them: `vfs_read` (read, pread), `vfs_readv`
//! (readv, preadv), `do_splice` (also of io_uring), `do_sendfile`, `vfs_copy_file_range`, and
//! `aio_complete_rw` for io_submit. Reads and writes of io_uring are counted in `uring`. Overlayfs
//! calls some functions again for the file under its own, which is not counted.
//!
//! The start of an operation is stored in the task's entry and removed at the end. An end without a
//! start is not counted.

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use super::{
    files::{
        Load, PathOp, Typed, Untyped, count_error, count_open, count_path_op, count_sync,
        count_transfer, file_at, file_mount, is_file, sync_mount, vfsmount,
    },
    kernel::{Object, ktime, offset},
    maps::current,
    per_key::current_owner,
    syscall_numbers::argument,
    target::Followed,
    task_storage::InFlight,
    uring::{Operation, complete, start, take},
};
use crate::maps::TASKS;

/// End of a range that has no end (`loff_t`).
const LLONG_MAX: i64 = i64::MAX;
const MAX_ERRNO: u64 = 4095;
/// Longest time after the start of a sync in which a nested one starts, ns. The end of a sync that
/// seems to take longer was missed.
const NESTED_WITHIN: u64 = 1_000_000_000;

/// Operations in flight of the running task, if it is followed.
#[inline(always)]
fn in_flight() -> Option<&'static mut InFlight> {
    TASKS.get(current()).map(|entry| &mut entry.in_flight)
}

/// Whether one of the two is a file. Checked first, so that the overhead of pipes is small.
#[inline(always)]
fn is_any_file<L: Load>(from: Option<Object>, to: Option<Object>) -> bool {
    from.is_some_and(is_file::<L>) || to.is_some_and(is_file::<L>)
}

#[inline(always)]
fn start_transfer<L: Load>(from: Option<Object>, to: Option<Object>) -> i32 {
    if is_any_file::<L>(from, to)
        && let Some(in_flight) = in_flight()
    {
        in_flight.rw_since = ktime();
    }
    0
}

#[inline(always)]
fn end_transfer<L: Load>(from: Option<Object>, to: Option<Object>, result: i64) -> i32 {
    if !is_any_file::<L>(from, to) {
        return 0;
    }
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    let since = entry.in_flight.rw_since;
    if since == 0 {
        return 0;
    }
    entry.in_flight.rw_since = 0;
    let from = from.map_or(0, file_mount::<L>);
    let to = to.map_or(0, file_mount::<L>);
    let ns = ktime().saturating_sub(since);
    count_transfer(entry.owner, from, to, result, ns);
    0
}

macro_rules! transfers {
    ($(
        $function:literal: $enter:ident, $exit:ident, $load:ty,
            $ctx:ident => ($from:expr, $to:expr), $result:literal;
    )*) => {$(
        #[doc = concat!("Start of `", $function, "`.")]
        #[fentry(function = $function)]
        pub fn $enter($ctx: FEntryContext) -> i32 {
            start_transfer::<$load>($from, $to)
        }

        #[doc = concat!("End of `", $function, "`.")]
        #[fexit(function = $function)]
        pub fn $exit($ctx: FExitContext) -> i32 {
            end_transfer::<$load>($from, $to, $ctx.arg($result))
        }
    )*};
}

// Programs, loads, file that is read, file that is written, index of the result.
transfers! {
    // Arguments: file, buffer, length, position.
    "vfs_read": vfs_read_enter, vfs_read_exit, Typed, ctx => (file(ctx.arg(0)), None), 4;
    "vfs_write": vfs_write_enter, vfs_write_exit, Typed, ctx => (None, file(ctx.arg(0))), 4;
    // Arguments: file, vector, length of the vector, position, flags.
    "vfs_readv": vfs_readv_enter, vfs_readv_exit, Typed, ctx => (file(ctx.arg(0)), None), 5;
    "vfs_writev": vfs_writev_enter, vfs_writev_exit, Typed, ctx => (None, file(ctx.arg(0))), 5;
    // Arguments: source, position, destination, position, length, flags.
    "do_splice": vfs_splice_enter, vfs_splice_exit, Typed,
        ctx => (file(ctx.arg(0)), file(ctx.arg(2))), 6;
    "vfs_copy_file_range": vfs_copy_enter, vfs_copy_exit, Typed,
        ctx => (file(ctx.arg(0)), file(ctx.arg(2))), 6;
    // Arguments: destination descriptor, source descriptor, position, length, limit.
    "do_sendfile": vfs_sendfile_enter, vfs_sendfile_exit, Untyped,
        ctx => (Some(file_at(current(), ctx.arg(1))), Some(file_at(current(), ctx.arg(0)))), 5;
}

#[inline(always)]
fn file(pointer: *const u8) -> Option<Object> {
    Some(Object(pointer))
}

/// Start of `io_write`. With O_SYNC it calls `vfs_fsync_range`, which is not counted as a sync.
#[fentry(function = "io_write")]
pub fn vfs_uring_write_enter(_: FEntryContext) -> i32 {
    if let Some(in_flight) = in_flight() {
        in_flight.rw_since = ktime();
    }
    0
}

/// End of `io_write`.
#[fexit(function = "io_write")]
pub fn vfs_uring_write_exit(_: FExitContext) -> i32 {
    if let Some(in_flight) = in_flight() {
        in_flight.rw_since = 0;
    }
    0
}

#[inline(always)]
fn start_sync(in_flight: &mut InFlight, file: Object) {
    let now = ktime();
    // The sync of a directory of overlayfs calls that of the directory under it.
    if in_flight.sync_since == 0 || now.saturating_sub(in_flight.sync_since) > NESTED_WITHIN {
        in_flight.sync_since = now;
        in_flight.sync_file = file.address();
    }
}

#[inline(always)]
fn end_sync<L: Load>(entry: Followed, file: Object, result: i64) {
    let since = entry.in_flight.sync_since;
    if since == 0 || entry.in_flight.sync_file != file.address() {
        return;
    }
    entry.in_flight.sync_since = 0;
    let mount = sync_mount::<L>(file);
    if mount != 0 {
        count_sync(entry.owner, mount, result, ktime().saturating_sub(since));
    }
}

/// Start of `vfs_fsync_range`. Arguments: file, start, end, datasync.
#[fentry(function = "vfs_fsync_range")]
pub fn vfs_fsync_enter(ctx: FEntryContext) -> i32 {
    if let Some(in_flight) = in_flight() {
        let (start, end): (i64, i64) = (ctx.arg(1), ctx.arg(2));
        // A write with O_SYNC syncs the range that it has written.
        if start == 0 && end == LLONG_MAX || in_flight.rw_since == 0 {
            start_sync(in_flight, Object(ctx.arg(0)));
        }
    }
    0
}

/// End of `vfs_fsync_range`.
#[fexit(function = "vfs_fsync_range")]
pub fn vfs_fsync_exit(ctx: FExitContext) -> i32 {
    if let Some(entry) = TASKS.get(current()) {
        let result: i32 = ctx.arg(4);
        end_sync::<Typed>(entry, Object(ctx.arg(0)), result.into());
    }
    0
}

/// Start of the system call fdatasync, into which compilers often inline `vfs_fsync_range`.
/// Argument: registers.
#[fentry(function = "__x64_sys_fdatasync")]
pub fn vfs_fdatasync_enter(ctx: FEntryContext) -> i32 {
    let task = current();
    if let Some(entry) = TASKS.get(task) {
        let file = file_at(task, argument(Object(ctx.arg(0)), 0));
        start_sync(&mut entry.in_flight, file);
    }
    0
}

/// End of fdatasync. If `vfs_fsync_range` was not inlined, the sync has been counted by now.
#[fexit(function = "__x64_sys_fdatasync")]
pub fn vfs_fdatasync_exit(ctx: FExitContext) -> i32 {
    let task = current();
    if let Some(entry) = TASKS.get(task) {
        let file = file_at(task, argument(Object(ctx.arg(0)), 0));
        end_sync::<Untyped>(entry, file, ctx.arg(1));
    }
    0
}

/// End of `do_filp_open`. Arguments: directory, name, flags; result: the file, or an error.
#[fexit(function = "do_filp_open")]
pub fn vfs_open_exit(ctx: FExitContext) -> i32 {
    let Some(owner) = current_owner() else {
        return 0;
    };
    let file = Object(ctx.arg(3));
    if file.address() >= 0_u64.wrapping_sub(MAX_ERRNO) {
        count_error(owner, 0);
    } else {
        count_open::<Typed>(owner, file);
    }
    0
}

/// Start of `mnt_want_write`, whose first call in an operation on a path has the mount. Argument:
/// the mount.
#[fentry(function = "mnt_want_write")]
pub fn vfs_want_write(ctx: FEntryContext) -> i32 {
    if let Some(in_flight) = in_flight()
        && in_flight.path_mount == InFlight::UNKNOWN_MOUNT
    {
        in_flight.path_mount = vfsmount::<Typed>(Object(ctx.arg(0)));
    }
    0
}

#[inline(always)]
fn start_path_op() -> i32 {
    if let Some(in_flight) = in_flight() {
        in_flight.path_mount = InFlight::UNKNOWN_MOUNT;
    }
    0
}

#[inline(always)]
fn end_path_op(op: PathOp, result: i32) -> i32 {
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    let mount = entry.in_flight.path_mount;
    entry.in_flight.path_mount = 0;
    if mount != 0 && result == 0 {
        let known = mount != InFlight::UNKNOWN_MOUNT;
        count_path_op(entry.owner, if known { mount } else { 0 }, op);
    }
    0
}

macro_rules! paths {
    ($($function:literal: $enter:ident, $exit:ident, $op:expr, $result:literal;)*) => {$(
        #[doc = concat!("Start of `", $function, "`.")]
        #[fentry(function = $function)]
        pub fn $enter(_: FEntryContext) -> i32 {
            start_path_op()
        }

        #[doc = concat!("End of `", $function, "`.")]
        #[fexit(function = $function)]
        pub fn $exit(ctx: FExitContext) -> i32 {
            end_path_op($op, ctx.arg($result))
        }
    )*};
}

paths! {
    "do_unlinkat": vfs_unlink_enter, vfs_unlink_exit, PathOp::Unlink, 2;
    "do_rmdir": vfs_rmdir_enter, vfs_rmdir_exit, PathOp::Unlink, 2;
    "do_renameat2": vfs_rename_enter, vfs_rename_exit, PathOp::Rename, 5;
    "do_mkdirat": vfs_mkdir_enter, vfs_mkdir_exit, PathOp::Mkdir, 3;
}

/// In place of an opcode of io_uring.
const AIO: u8 = 255;

/// Start of an operation of io_submit. Arguments: `struct kiocb`, …
#[inline(always)]
fn start_aio(ctx: &FEntryContext, operation: Operation) -> i32 {
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    let request = Object(ctx.arg(0));
    if is_file::<Typed>(request.object(offset!(kiocb_filp))) {
        if operation == Operation::Write {
            entry.in_flight.rw_since = ktime();
        }
        start(request.address(), request, entry.owner, AIO, operation);
    }
    0
}

/// End of the submission of an operation, which is in flight, completed, or failed.
#[inline(always)]
fn end_aio_submission(ctx: &FExitContext) -> i32 {
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    entry.in_flight.rw_since = 0;
    let result: i32 = ctx.arg(4);
    if result < 0 {
        let request = Object(ctx.arg(0));
        if let Some(operation) = take(request.address()) {
            let file = request.object(offset!(kiocb_filp));
            count_error(operation.owner, file_mount::<Typed>(file));
        }
    }
    0
}

/// Start of `aio_read`.
#[fentry(function = "aio_read")]
pub fn aio_read_enter(ctx: FEntryContext) -> i32 {
    start_aio(&ctx, Operation::Read)
}

/// End of `aio_read`.
#[fexit(function = "aio_read")]
pub fn aio_read_exit(ctx: FExitContext) -> i32 {
    end_aio_submission(&ctx)
}

/// Start of `aio_write`.
#[fentry(function = "aio_write")]
pub fn aio_write_enter(ctx: FEntryContext) -> i32 {
    start_aio(&ctx, Operation::Write)
}

/// End of `aio_write`.
#[fexit(function = "aio_write")]
pub fn aio_write_exit(ctx: FExitContext) -> i32 {
    end_aio_submission(&ctx)
}

/// Completion of an operation of io_submit, in any context. Arguments: `struct kiocb`, result.
#[fentry(function = "aio_complete_rw")]
pub fn aio_complete(ctx: FEntryContext) -> i32 {
    let request = Object(ctx.arg(0));
    if let Some(operation) = take(request.address()) {
        complete::<Typed>(&operation, request.object(offset!(kiocb_filp)), ctx.arg(1));
    }
    0
}
