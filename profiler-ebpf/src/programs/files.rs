//! What is accounted of files, whichever hook sees it: the map, which files count, on which mount they are.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map};

use super::{
    kernel::{Object, Task, offset, read},
    maps::add,
    per_key::{PerKeyCounters, key, latency, lookup_or_init},
};
use crate::{
    per_key::{FileCounters, kind, mount},
    wire::{Map, Owner},
};

/// File I/O by process and mount.
#[btf_map]
static FILE_IO: PerKeyCounters<FileCounters> = HashMap::new();

/// `file.f_mode` (include/linux/fs.h): opened for its path only; just created; the file below one of overlayfs.
const FMODE_PATH: u32 = 1 << 14;
const FMODE_CREATED: u32 = 1 << 20;
const FMODE_NOACCOUNT: u32 = 1 << 29;
/// `file.f_flags`: opened to be executed.
const FMODE_EXEC: u32 = 1 << 5;

const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;
const S_IFBLK: u16 = 0o060_000;
const S_IFDIR: u16 = 0o040_000;

const EIOCBQUEUED: i64 = 529;

/// How members are loaded: the verifier knows the types of some pointers only.
pub trait Load: Copy {
    /// A member at `offset`; a bad pointer reads as zeros.
    fn load<T: Copy + Default>(object: Object, offset: u32) -> T;
    /// A pointer at `offset`, which is known if the pointer to it is.
    fn pointer(object: Object, offset: u32) -> Object;
}

/// From a pointer that the verifier knows.
#[derive(Clone, Copy)]
pub struct Known;

/// From any address.
#[derive(Clone, Copy)]
pub struct Any;

impl Load for Known {
    #[inline(always)]
    fn load<T: Copy + Default>(object: Object, offset: u32) -> T {
        object.get(offset)
    }

    #[inline(always)]
    fn pointer(object: Object, offset: u32) -> Object {
        object.object(offset)
    }
}

impl Load for Any {
    #[inline(always)]
    fn load<T: Copy + Default>(object: Object, offset: u32) -> T {
        read(object.0.wrapping_add(offset as usize).cast::<T>()).unwrap_or_default()
    }

    #[inline(always)]
    fn pointer(object: Object, offset: u32) -> Object {
        Object(Self::load::<usize>(object, offset) as *const u8)
    }
}

/// Whether reads and writes of this file count: those of sockets, pipes and devices without blocks are no file I/O,
/// and those that overlayfs makes were counted above it.
#[inline(always)]
pub fn is_file<L: Load>(file: Object) -> bool {
    let kind = kind_of::<L>(file);
    (kind == S_IFREG || kind == S_IFBLK) && is_users::<L>(file)
}

/// The mount of such a file, 0 for others.
#[inline(always)]
pub fn file_mount<L: Load>(file: Object) -> u64 {
    if is_file::<L>(file) {
        mount_of::<L>(file)
    } else {
        0
    }
}

/// The same for syncs: directories are synced too.
#[inline(always)]
pub fn sync_mount<L: Load>(file: Object) -> u64 {
    if is_file::<L>(file) || kind_of::<L>(file) == S_IFDIR && is_users::<L>(file) {
        mount_of::<L>(file)
    } else {
        0
    }
}

/// The open file `fd` of a task, perhaps null.
#[inline(always)]
pub fn file_at(task: Task, fd: u64) -> Object {
    let fd = fd as u32;
    let table = task
        .0
        .object(offset!(task_files))
        .object(offset!(files_fdt));
    if fd >= table.get(offset!(fdtable_max_fds)) {
        return Object(core::ptr::null());
    }
    let files: usize = table.get(offset!(fdtable_fd));
    Any::pointer(
        Object(files as *const u8),
        fd.wrapping_mul(size_of::<usize>() as u32),
    )
}

#[inline(always)]
fn is_users<L: Load>(file: Object) -> bool {
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

/// A `struct vfsmount` as [`mount`].
#[inline(always)]
pub fn vfsmount<L: Load>(vfsmount: Object) -> u64 {
    let sb = L::pointer(vfsmount, offset!(vfsmount_sb));
    let dev: u32 = L::load(sb, offset!(sb_dev));
    // container_of: not what the verifier knows.
    let id = offset!(mount_id).wrapping_sub(offset!(mount_mnt));
    mount::dimension(Any::load(vfsmount, id), dev)
}

/// Reads and writes of one call, with what it returned. `from` and `to` are mounts, 0 for what is no file.
#[inline(always)]
pub fn transfer(owner: Owner, from: u64, to: u64, result: i64, ns: u64) {
    if result < 0 {
        if result != -EIOCBQUEUED {
            failed(owner, if from != 0 { from } else { to });
        }
        return;
    }
    if from != 0 {
        if let Some(entry) = lookup_or_init(&FILE_IO, Map::FileIo, &key(owner, from)) {
            add(&mut entry.read_bytes, result as u64);
            add(&mut entry.read_ops, 1);
        }
        latency(owner, kind::FILE_READ, ns);
    }
    if to != 0 {
        if let Some(entry) = lookup_or_init(&FILE_IO, Map::FileIo, &key(owner, to)) {
            add(&mut entry.write_bytes, result as u64);
            add(&mut entry.write_ops, 1);
        }
        latency(owner, kind::FILE_WRITE, ns);
    }
}

/// A sync.
#[inline(always)]
pub fn synced(owner: Owner, mount: u64, result: i64, ns: u64) {
    if result < 0 {
        failed(owner, mount);
        return;
    }
    if let Some(entry) = lookup_or_init(&FILE_IO, Map::FileIo, &key(owner, mount)) {
        add(&mut entry.fsyncs, 1);
    }
    latency(owner, kind::FSYNC, ns);
}

/// Something failed; mount 0 when it is not known on which.
#[inline(always)]
pub fn failed(owner: Owner, mount: u64) {
    if let Some(entry) = lookup_or_init(&FILE_IO, Map::FileIo, &key(owner, mount)) {
        add(&mut entry.errors, 1);
    }
}

/// An open that gave a file. Files that are executed, or opened for their path only, do not count.
#[inline(always)]
pub fn opened<L: Load>(owner: Owner, file: Object) {
    let mode: u32 = L::load(file, offset!(file_mode));
    let flags: u32 = L::load(file, offset!(file_flags));
    if mode & FMODE_PATH != 0 || flags & FMODE_EXEC != 0 {
        return;
    }
    let kind = kind_of::<L>(file);
    if kind != S_IFREG && kind != S_IFBLK && kind != S_IFDIR {
        return;
    }
    if let Some(entry) = lookup_or_init(&FILE_IO, Map::FileIo, &key(owner, mount_of::<L>(file))) {
        add(&mut entry.opens, 1);
        if mode & FMODE_CREATED != 0 {
            add(&mut entry.creates, 1);
        }
    }
}

/// What is done with a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PathOp {
    /// Removing a file or directory.
    Unlink,
    /// Renaming.
    Rename,
    /// Making a directory.
    Mkdir,
}

/// Something was done with a path; mount 0 when it is not known on which.
#[inline(always)]
pub fn path_done(owner: Owner, mount: u64, op: PathOp) {
    if let Some(entry) = lookup_or_init(&FILE_IO, Map::FileIo, &key(owner, mount)) {
        let counter = match op {
            PathOp::Unlink => &mut entry.unlinks,
            PathOp::Rename => &mut entry.renames,
            PathOp::Mkdir => &mut entry.mkdirs,
        };
        add(counter, 1);
    }
}
