//! Accounting of file I/O, shared by all hooks: which files are counted, and their mounts.

use super::{
    atomic::add,
    kernel::{Object, Task, offset, read},
    per_key::{key, lookup_or_init, record_latency},
};
use crate::per_key::{FileCounters, FileIo, Owner, kind, mount};

/// `file.f_mode` (include/linux/fs.h): opened only as a path.
const FMODE_PATH: u32 = 1 << 14;
/// `file.f_mode`: created by this open.
const FMODE_CREATED: u32 = 1 << 20;
/// `file.f_mode`: the file under one of overlayfs.
const FMODE_NOACCOUNT: u32 = 1 << 29;
/// `file.f_flags`: opened for execution.
const FMODE_EXEC: u32 = 1 << 5;

const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;
const S_IFBLK: u16 = 0o060_000;
const S_IFDIR: u16 = 0o040_000;

const EIOCBQUEUED: i64 = 529;

/// How members are loaded, which depends on whether the verifier knows the type of the pointer.
pub trait Load: Copy {
    /// A member at `offset`; zeros if the pointer is invalid.
    fn load<T: Copy + Default>(object: Object, offset: u32) -> T;
    /// A pointer at `offset`. Its type is known if that of `object` is.
    fn pointer(object: Object, offset: u32) -> Object;
}

/// Loads from a pointer with a BTF type.
#[derive(Clone, Copy)]
pub struct Typed;

/// Loads from any address.
#[derive(Clone, Copy)]
pub struct Untyped;

impl Load for Typed {
    #[inline(always)]
    fn load<T: Copy + Default>(object: Object, offset: u32) -> T {
        object.get(offset)
    }

    #[inline(always)]
    fn pointer(object: Object, offset: u32) -> Object {
        object.object(offset)
    }
}

impl Load for Untyped {
    #[inline(always)]
    fn load<T: Copy + Default>(object: Object, offset: u32) -> T {
        read(object.0.wrapping_add(offset as usize).cast::<T>()).unwrap_or_default()
    }

    #[inline(always)]
    fn pointer(object: Object, offset: u32) -> Object {
        Object(Self::load::<usize>(object, offset) as *const u8)
    }
}

/// Whether reads and writes of this file are counted. Sockets, pipes and character devices are
/// excluded, and so are the files under overlayfs, whose I/O is counted above it.
#[inline(always)]
pub fn is_file<L: Load>(file: Object) -> bool {
    let kind = kind_of::<L>(file);
    (kind == S_IFREG || kind == S_IFBLK) && is_accounted::<L>(file)
}

/// The mount of a file whose reads and writes are counted, otherwise 0.
#[inline(always)]
pub fn file_mount<L: Load>(file: Object) -> u64 {
    if is_file::<L>(file) {
        mount_of::<L>(file)
    } else {
        0
    }
}

/// The mount of a file whose syncs are counted, otherwise 0. Directories can be synced as well.
#[inline(always)]
pub fn sync_mount<L: Load>(file: Object) -> u64 {
    if is_file::<L>(file) || kind_of::<L>(file) == S_IFDIR && is_accounted::<L>(file) {
        mount_of::<L>(file)
    } else {
        0
    }
}

/// The open file `fd` of a task; can be null.
#[inline(always)]
pub fn file_at(task: Task, fd: u64) -> Object {
    let fd = fd as u32;
    let table = task.files().object(offset!(files_fdt));
    if fd >= table.get(offset!(fdtable_max_fds)) {
        return Object(core::ptr::null());
    }
    let files: usize = table.get(offset!(fdtable_fd));
    Untyped::pointer(
        Object(files as *const u8),
        fd.wrapping_mul(size_of::<usize>() as u32),
    )
}

#[inline(always)]
fn is_accounted<L: Load>(file: Object) -> bool {
    L::load::<u32>(file, offset!(file_mode)) & FMODE_NOACCOUNT == 0
}

#[inline(always)]
fn kind_of<L: Load>(file: Object) -> u16 {
    let inode = L::pointer(file, offset!(file_inode));
    L::load::<u16>(inode, offset!(inode_mode)) & S_IFMT
}

#[inline(always)]
fn mount_of<L: Load>(file: Object) -> u64 {
    vfsmount::<L>(L::pointer(file, offset!(file_mnt)))
}

/// [`mount::dimension`] of a `struct vfsmount`.
#[inline(always)]
pub fn vfsmount<L: Load>(vfsmount: Object) -> u64 {
    let sb = L::pointer(vfsmount, offset!(vfsmount_sb));
    let dev: u32 = L::load(sb, offset!(sb_dev));
    // container_of, whose result has no BTF type.
    let id = offset!(mount_id).wrapping_sub(offset!(mount_mnt));
    mount::dimension(Untyped::load(vfsmount, id), dev)
}

/// Counts the read and the write of one call. `from` and `to` are mounts, 0 if there is no file.
#[inline(always)]
pub fn count_transfer(owner: Owner, from: u64, to: u64, result: i64, ns: u64) {
    if result < 0 {
        if result != -EIOCBQUEUED {
            count_error(owner, if from != 0 { from } else { to });
        }
        return;
    }
    if from != 0 {
        if let Some(entry) = counters_of(owner, from) {
            add(&mut entry.read_bytes, result as u64);
            add(&mut entry.read_ops, 1);
        }
        record_latency(owner, kind::FILE_READ, ns);
    }
    if to != 0 {
        if let Some(entry) = counters_of(owner, to) {
            add(&mut entry.write_bytes, result as u64);
            add(&mut entry.write_ops, 1);
        }
        record_latency(owner, kind::FILE_WRITE, ns);
    }
}

/// Counts a sync.
#[inline(always)]
pub fn count_sync(owner: Owner, mount: u64, result: i64, ns: u64) {
    if result < 0 {
        count_error(owner, mount);
        return;
    }
    if let Some(entry) = counters_of(owner, mount) {
        add(&mut entry.fsyncs, 1);
    }
    record_latency(owner, kind::FSYNC, ns);
}

/// Counts an operation that failed. `mount` is 0 if unknown.
#[inline(always)]
pub fn count_error(owner: Owner, mount: u64) {
    if let Some(entry) = counters_of(owner, mount) {
        add(&mut entry.errors, 1);
    }
}

/// Counts an open without error, unless it was for execution or only as a path.
#[inline(always)]
pub fn count_open<L: Load>(owner: Owner, file: Object) {
    let mode: u32 = L::load(file, offset!(file_mode));
    let flags: u32 = L::load(file, offset!(file_flags));
    if mode & FMODE_PATH != 0 || flags & FMODE_EXEC != 0 {
        return;
    }
    let kind = kind_of::<L>(file);
    if kind != S_IFREG && kind != S_IFBLK && kind != S_IFDIR {
        return;
    }
    if let Some(entry) = counters_of(owner, mount_of::<L>(file)) {
        add(&mut entry.opens, 1);
        if mode & FMODE_CREATED != 0 {
            add(&mut entry.creates, 1);
        }
    }
}

/// Operations on paths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PathOp {
    /// Removal of a file or directory.
    Unlink,
    /// Renaming of a file or directory.
    Rename,
    /// Creation of a directory.
    Mkdir,
}

/// Counts an operation on a path without error. `mount` is 0 if unknown.
#[inline(always)]
pub fn count_path_op(owner: Owner, mount: u64, op: PathOp) {
    if let Some(entry) = counters_of(owner, mount) {
        let counter = match op {
            PathOp::Unlink => &mut entry.unlinks,
            PathOp::Rename => &mut entry.renames,
            PathOp::Mkdir => &mut entry.mkdirs,
        };
        add(counter, 1);
    }
}

#[inline(always)]
fn counters_of(owner: Owner, mount: u64) -> Option<&'static mut FileCounters> {
    lookup_or_init::<FileIo>(&key(owner, mount))
}
