//! File I/O where all ways to it meet, in the context of who asks for it.
//!
//! The functions are chosen so that one operation goes through one of them: `vfs_read` (read, pread), `vfs_readv`
//! (readv, preadv), `do_splice` (also of io_uring), `do_sendfile`, `vfs_copy_file_range`, and `aio_complete_rw` for what
//! io_submit began. What io_uring reads and writes is accounted in `uring`. Overlayfs calls some of them again for the
//! file below; such files do not count.
//!
//! A start is noted in the task's entry and taken back at the end, so that an end without its start counts nothing.

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use super::{
    files::{
        Any, Known, Load, PathOp, failed, file_at, file_mount, is_file, opened, path_done,
        sync_mount, synced, transfer, vfsmount,
    },
    kernel::{Object, ktime, offset},
    maps::{TASKS, current},
    per_key::current_owner,
    syscall_numbers::argument,
    target::Followed,
    uring::{Does, begin, done, end},
};
use crate::wire::InFlight;

/// `loff_t` without end.
const LLONG_MAX: i64 = i64::MAX;
const MAX_ERRNO: u64 = 4095;
/// A sync within a sync begins sooner than this: one that seems to be longer under way has lost its end.
const NESTED_WITHIN: u64 = 1_000_000_000;

/// What is under way of the task that runs, if it is followed.
#[inline(always)]
fn in_flight() -> Option<&'static mut InFlight> {
    TASKS.get(current()).map(|entry| &mut entry.in_flight)
}

/// Whether one of them is a file: asked first, so that a pipe costs next to nothing.
#[inline(always)]
fn is_any_file<L: Load>(from: Option<Object>, to: Option<Object>) -> bool {
    from.is_some_and(is_file::<L>) || to.is_some_and(is_file::<L>)
}

/// A transfer begins.
#[inline(always)]
fn transfer_begins<L: Load>(from: Option<Object>, to: Option<Object>) -> i32 {
    if is_any_file::<L>(from, to)
        && let Some(in_flight) = in_flight()
    {
        in_flight.rw_since = ktime();
    }
    0
}

/// A transfer ends.
#[inline(always)]
fn transfer_ends<L: Load>(from: Option<Object>, to: Option<Object>, result: i64) -> i32 {
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
    transfer(entry.owner, from, to, result, ns);
    0
}

macro_rules! transfers {
    ($($function:literal: $enter:ident, $exit:ident, $load:ty, $ctx:ident => ($from:expr, $to:expr), $result:literal;)*) => {$(
        #[doc = concat!("`", $function, "` begins.")]
        #[fentry(function = $function)]
        pub fn $enter($ctx: FEntryContext) -> i32 {
            transfer_begins::<$load>($from, $to)
        }

        #[doc = concat!("`", $function, "` ends.")]
        #[fexit(function = $function)]
        pub fn $exit($ctx: FExitContext) -> i32 {
            transfer_ends::<$load>($from, $to, $ctx.arg($result))
        }
    )*};
}

transfers! {
    // Arguments: file, buffer, length, position.
    "vfs_read": vfs_read_enter, vfs_read_exit, Known, ctx => (Some(Object(ctx.arg(0))), None), 4;
    "vfs_write": vfs_write_enter, vfs_write_exit, Known, ctx => (None, Some(Object(ctx.arg(0)))), 4;
    // Arguments: file, vector, its length, position, flags.
    "vfs_readv": vfs_readv_enter, vfs_readv_exit, Known, ctx => (Some(Object(ctx.arg(0))), None), 5;
    "vfs_writev": vfs_writev_enter, vfs_writev_exit, Known, ctx => (None, Some(Object(ctx.arg(0)))), 5;
    // Arguments: from, its position, to, its position, length, flags.
    "do_splice": vfs_splice_enter, vfs_splice_exit, Known, ctx => (Some(Object(ctx.arg(0))), Some(Object(ctx.arg(2)))), 6;
    // Arguments: from, its position, to, its position, length, flags.
    "vfs_copy_file_range": vfs_copy_enter, vfs_copy_exit, Known, ctx => (Some(Object(ctx.arg(0))), Some(Object(ctx.arg(2)))), 6;
    // Arguments: descriptor to, descriptor from, position, length, bound.
    "do_sendfile": vfs_sendfile_enter, vfs_sendfile_exit, Any, ctx => (Some(file_at(current(), ctx.arg(1))), Some(file_at(current(), ctx.arg(0)))), 5;
}

/// `io_write` begins: what it syncs for O_SYNC is no sync of its own.
#[fentry(function = "io_write")]
pub fn vfs_uring_write_enter(_: FEntryContext) -> i32 {
    if let Some(in_flight) = in_flight() {
        in_flight.rw_since = ktime();
    }
    0
}

/// `io_write` ends.
#[fexit(function = "io_write")]
pub fn vfs_uring_write_exit(_: FExitContext) -> i32 {
    if let Some(in_flight) = in_flight() {
        in_flight.rw_since = 0;
    }
    0
}

/// A sync of a file begins.
#[inline(always)]
fn sync_begins(in_flight: &mut InFlight, file: Object) {
    let now = ktime();
    // A directory of overlayfs syncs those below.
    if in_flight.sync_since == 0 || now.saturating_sub(in_flight.sync_since) > NESTED_WITHIN {
        in_flight.sync_since = now;
        in_flight.sync_file = file.address();
    }
}

/// It ends.
#[inline(always)]
fn sync_ends<L: Load>(entry: Followed, file: Object, result: i64) {
    let since = entry.in_flight.sync_since;
    if since == 0 || entry.in_flight.sync_file != file.address() {
        return;
    }
    entry.in_flight.sync_since = 0;
    let mount = sync_mount::<L>(file);
    if mount != 0 {
        synced(entry.owner, mount, result, ktime().saturating_sub(since));
    }
}

/// `vfs_fsync_range` begins. Arguments: file, start, end, whether only data.
#[fentry(function = "vfs_fsync_range")]
pub fn vfs_fsync_enter(ctx: FEntryContext) -> i32 {
    if let Some(in_flight) = in_flight() {
        let (start, end): (i64, i64) = (ctx.arg(1), ctx.arg(2));
        // A write with O_SYNC syncs what it has written.
        if start == 0 && end == LLONG_MAX || in_flight.rw_since == 0 {
            sync_begins(in_flight, Object(ctx.arg(0)));
        }
    }
    0
}

/// `vfs_fsync_range` ends.
#[fexit(function = "vfs_fsync_range")]
pub fn vfs_fsync_exit(ctx: FExitContext) -> i32 {
    if let Some(entry) = TASKS.get(current()) {
        let result: i32 = ctx.arg(4);
        sync_ends::<Known>(entry, Object(ctx.arg(0)), result.into());
    }
    0
}

/// The system call fdatasync begins: compilers like to put `vfs_fsync_range` into it. Argument: registers.
#[fentry(function = "__x64_sys_fdatasync")]
pub fn vfs_fdatasync_enter(ctx: FEntryContext) -> i32 {
    let task = current();
    if let Some(entry) = TASKS.get(task) {
        let file = file_at(task, argument(Object(ctx.arg(0)), 0));
        sync_begins(&mut entry.in_flight, file);
    }
    0
}

/// It ends; if `vfs_fsync_range` was a function of its own, that has been counted.
#[fexit(function = "__x64_sys_fdatasync")]
pub fn vfs_fdatasync_exit(ctx: FExitContext) -> i32 {
    let task = current();
    if let Some(entry) = TASKS.get(task) {
        let file = file_at(task, argument(Object(ctx.arg(0)), 0));
        sync_ends::<Any>(entry, file, ctx.arg(1));
    }
    0
}

/// `do_filp_open` ends. Arguments: directory, name, how; result: the file, or an error.
#[fexit(function = "do_filp_open")]
pub fn vfs_open_exit(ctx: FExitContext) -> i32 {
    let Some(owner) = current_owner() else {
        return 0;
    };
    let file = Object(ctx.arg(3));
    if file.address() >= 0_u64.wrapping_sub(MAX_ERRNO) {
        failed(owner, 0);
    } else {
        opened::<Known>(owner, file);
    }
    0
}

/// `mnt_want_write`: the first one of an operation on a path tells where that is. Argument: the mount.
#[fentry(function = "mnt_want_write")]
pub fn vfs_want_write(ctx: FEntryContext) -> i32 {
    if let Some(in_flight) = in_flight()
        && in_flight.path_mount == InFlight::NO_MOUNT
    {
        in_flight.path_mount = vfsmount::<Known>(Object(ctx.arg(0)));
    }
    0
}

/// Something is about to be done with a path.
#[inline(always)]
fn path_begins() -> i32 {
    if let Some(in_flight) = in_flight() {
        in_flight.path_mount = InFlight::NO_MOUNT;
    }
    0
}

/// It is done.
#[inline(always)]
fn path_ends(op: PathOp, result: i32) -> i32 {
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    let mount = entry.in_flight.path_mount;
    entry.in_flight.path_mount = 0;
    if mount != 0 && result == 0 {
        let known = mount != InFlight::NO_MOUNT;
        path_done(entry.owner, if known { mount } else { 0 }, op);
    }
    0
}

macro_rules! paths {
    ($($function:literal: $enter:ident, $exit:ident, $op:expr, $result:literal;)*) => {$(
        #[doc = concat!("`", $function, "` begins.")]
        #[fentry(function = $function)]
        pub fn $enter(_: FEntryContext) -> i32 {
            path_begins()
        }

        #[doc = concat!("`", $function, "` ends.")]
        #[fexit(function = $function)]
        pub fn $exit(ctx: FExitContext) -> i32 {
            path_ends($op, ctx.arg($result))
        }
    )*};
}

paths! {
    "do_unlinkat": vfs_unlink_enter, vfs_unlink_exit, PathOp::Unlink, 2;
    "do_rmdir": vfs_rmdir_enter, vfs_rmdir_exit, PathOp::Unlink, 2;
    "do_renameat2": vfs_rename_enter, vfs_rename_exit, PathOp::Rename, 5;
    "do_mkdirat": vfs_mkdir_enter, vfs_mkdir_exit, PathOp::Mkdir, 3;
}

/// No request of io_uring has this opcode.
const AIO: u8 = 255;

/// Begins an operation of io_submit. Arguments: `struct kiocb`, and what was asked for.
#[inline(always)]
fn aio_begins(ctx: &FEntryContext, does: Does) -> i32 {
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    let request = Object(ctx.arg(0));
    if is_file::<Known>(request.object(offset!(kiocb_filp))) {
        if does == Does::Write {
            entry.in_flight.rw_since = ktime();
        }
        begin(request.address(), entry.owner, AIO, does);
    }
    0
}

/// It is under way, or has ended already, or could not be begun.
#[inline(always)]
fn aio_begun(ctx: &FExitContext) -> i32 {
    let Some(entry) = TASKS.get(current()) else {
        return 0;
    };
    entry.in_flight.rw_since = 0;
    let result: i32 = ctx.arg(4);
    if result < 0 {
        let request = Object(ctx.arg(0));
        if let Some(begun) = end(request.address()) {
            let file = request.object(offset!(kiocb_filp));
            failed(begun.owner, file_mount::<Known>(file));
        }
    }
    0
}

/// `aio_read` begins.
#[fentry(function = "aio_read")]
pub fn aio_read_enter(ctx: FEntryContext) -> i32 {
    aio_begins(&ctx, Does::Read)
}

/// `aio_read` ends.
#[fexit(function = "aio_read")]
pub fn aio_read_exit(ctx: FExitContext) -> i32 {
    aio_begun(&ctx)
}

/// `aio_write` begins.
#[fentry(function = "aio_write")]
pub fn aio_write_enter(ctx: FEntryContext) -> i32 {
    aio_begins(&ctx, Does::Write)
}

/// `aio_write` ends.
#[fexit(function = "aio_write")]
pub fn aio_write_exit(ctx: FExitContext) -> i32 {
    aio_begun(&ctx)
}

/// An operation of io_submit has ended, in whatever context. Arguments: `struct kiocb`, result.
#[fentry(function = "aio_complete_rw")]
pub fn aio_complete(ctx: FEntryContext) -> i32 {
    let request = Object(ctx.arg(0));
    if let Some(begun) = end(request.address()) {
        done::<Known>(&begun, request.object(offset!(kiocb_filp)), ctx.arg(1));
    }
    0
}
