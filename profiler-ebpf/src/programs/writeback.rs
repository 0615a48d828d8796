//! Who dirtied the pages that are written back: one process per file, or it is not known.
//!
//! A file that two processes dirtied is nobody's until it has been clean. A hint that is missing costs an owner; a
//! wrong one would give a wrong owner, so whatever is in doubt makes the file nobody's.

use aya_ebpf::{
    btf_maps::{Array, HashMap, PerCpuArray},
    macros::btf_map,
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};

use super::{
    files::{Any, Known, Load},
    kernel::{Object, config, ktime, offset, read, repeat},
    maps::{TASKS, add, current, dropped},
};
use crate::wire::{Dirtied, Dirtier, FileKey, Map, Owner, TaskState};

/// Who dirtied pages of a file that may not be on the disk yet. Sized by the controller, which takes out the files that are
/// clean.
#[btf_map]
static DIRTIERS: HashMap<FileKey, Dirtier, 1, 1> = HashMap::new();

/// Number of the state of [`DIRTIERS`]: it changes before an entry may become another's, so that whoever remembers
/// an entry looks again.
#[btf_map]
static EPOCH: Array<u64, 1> = Array::new();

/// The file of which somebody outside the target dirtied a page last.
#[btf_map]
static STRANGERS: PerCpuArray<Dirtied, 1> = PerCpuArray::new();

/// How long a file stays its last dirtier's after it was clean: its requests may still be on their way into the
/// queue, and a page may be just about to be marked dirty.
const GRACE_NS: u64 = 100_000_000;
/// `PF_WQ_WORKER`: acts for others (include/linux/sched.h).
pub const WORKER: u32 = 0x20;
/// Bios of one request that are looked at, besides the first.
const BIOS: u32 = 512;
/// A page's mapping that is no file's has one of these bits set (include/linux/page-flags.h).
const NO_FILE: u64 = 3;

/// A page becomes dirty, with the lock of its mapping held. Arguments: folio, mapping.
#[btf_tracepoint(function = "writeback_dirty_folio")]
pub fn writeback_dirty_folio(ctx: BtfTracePointContext) -> i32 {
    let mapping = Object(ctx.arg(1));
    if mapping.is_null() {
        return 0;
    }
    let inode = mapping.object(offset!(mapping_host));
    let file = file_of_inode(inode);
    let Some(epoch) = epoch() else { return 0 };
    let now = *epoch;
    let task = current();
    match TASKS.get(task) {
        Some(entry) if task.0.get::<u32>(offset!(task_flags)) & WORKER == 0 => {
            dirtied_by_task(entry, file, now);
        }
        _ => {
            if let Some(last) = STRANGERS.get_ptr_mut(0) {
                // SAFETY: this CPU's; interrupts are off.
                dirtied(unsafe { &mut *last }, Owner::NOBODY, file, now);
            }
        }
    }
    0
}

#[inline(always)]
fn dirtied_by_task(entry: &mut TaskState, file: FileKey, epoch: u64) {
    let owner = entry.owner;
    dirtied(&mut entry.dirtied, owner, file, epoch);
}

#[inline(always)]
fn dirtied(last: &mut Dirtied, owner: Owner, file: FileKey, epoch: u64) {
    if last.epoch == epoch && last.file == file {
        return;
    }
    note(owner, &file);
    last.file = file;
    last.epoch = epoch;
}

#[inline(always)]
fn note(owner: Owner, file: &FileKey) {
    let now = ktime();
    if let Some(dirtier) = dirtier(file)
        && (dirtier.clean == 0 || now.saturating_sub(dirtier.clean) < GRACE_NS)
    {
        dirtier.noted = now;
        dirtier.started = 0;
        dirtier.clean = 0;
        if dirtier.owner.pid != owner.pid || dirtier.owner.start_boottime != owner.start_boottime {
            dirtier.shared = 1;
        } else if dirtier.owner.tid != owner.tid {
            dirtier.owner.tid = 0;
        }
        return;
    }
    let fresh = Dirtier {
        owner,
        shared: 0,
        noted: now,
        started: 0,
        clean: 0,
    };
    if DIRTIERS.insert(file, &fresh, 0).is_err() {
        dropped(Map::Dirtiers);
    }
}

/// A file begins to be written back. Arguments: inode, …
#[btf_tracepoint(function = "writeback_single_inode_start")]
pub fn writeback_single_inode_start(ctx: BtfTracePointContext) -> i32 {
    if let Some(dirtier) = dirtier(&file_of_inode(Object(ctx.arg(0)))) {
        dirtier.started = ktime();
        // From now on everybody who dirties it says so.
        if let Some(epoch) = epoch() {
            add(epoch, 1);
        }
    }
    0
}

/// A file has been written back as far as it will be now. Arguments: inode, …
#[btf_tracepoint(function = "writeback_single_inode")]
pub fn writeback_single_inode(ctx: BtfTracePointContext) -> i32 {
    let inode = Object(ctx.arg(0));
    if inode.get::<u32>(offset!(inode_state)) & config!(dirty_pages) == 0
        && let Some(dirtier) = dirtier(&file_of_inode(inode))
        && dirtier.started != 0
    {
        dirtier.clean = ktime();
    }
    0
}

/// Whose pages a request writes back.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Pages {
    /// Nobody's: it is no writeback.
    None = 0,
    /// Of a process of the target.
    Owned = 1,
    /// Of several, of others, or it is not known.
    Unknown = 2,
}

/// Whose pages a bio writes back; with `chain`, a request that begins with it, if all its bios are the same one's.
#[inline(always)]
pub fn pages_of(first: Object, chain: bool, owner: &mut Owner) -> Pages {
    let mut file = FileKey::default();
    if !file_of_bio::<Known>(first, &mut file) {
        return Pages::None;
    }
    let Some(whose) = sole_dirtier(&file) else {
        return Pages::Unknown;
    };
    *owner = *whose;
    if !chain {
        return Pages::Owned;
    }
    let next = first.object(offset!(bio_next));
    if next.is_null() {
        return Pages::Owned;
    }
    let mut bios = Bios {
        next: next.address(),
        file,
        owner: *owner,
    };
    repeat(BIOS, next_bio, &mut bios);
    if bios.next == 0 {
        Pages::Owned
    } else {
        Pages::Unknown
    }
}

/// Bios of a request that are looked at.
struct Bios {
    /// Address of the next; 0 when all were its owner's.
    next: u64,
    /// That the one before was of.
    file: FileKey,
    owner: Owner,
}

/// Goes on to the next, until there is none or one that is not its owner's.
extern "C" fn next_bio(_: u64, bios: &mut Bios) -> i64 {
    let bio = Object(bios.next as *const u8);
    let mut file = FileKey::default();
    if !file_of_bio::<Any>(bio, &mut file) {
        return 1;
    }
    if file != bios.file {
        match sole_dirtier(&file) {
            Some(whose)
                if whose.pid == bios.owner.pid
                    && whose.start_boottime == bios.owner.start_boottime => {}
            _ => return 1,
        }
        bios.file = file;
    }
    bios.next = Any::load(bio, offset!(bio_next));
    i64::from(bios.next == 0)
}

#[inline(always)]
fn sole_dirtier(file: &FileKey) -> Option<&'static Owner> {
    let dirtier = dirtier(file)?;
    (dirtier.shared == 0 && dirtier.owner.pid != 0).then_some(&dirtier.owner)
}

/// The file whose page the bio writes back; `false` when it does no such thing.
#[inline(always)]
fn file_of_bio<L: Load>(bio: Object, file: &mut FileKey) -> bool {
    // struct bio_vec (include/linux/bvec.h)
    const BIO_VEC: u32 = 16;
    let index: u32 = L::load(bio, offset!(bio_index));
    // What is asked mostly, with fewer calls: the page is one of its own, and not being written back.
    if index == 0 {
        let vec = L::pointer(bio, offset!(bio_vecs));
        let page = L::pointer(vec, offset!(bvec_page));
        let head = page.0.wrapping_add(offset!(page_compound_head) as usize);
        if read(head.cast::<u64>()).is_none_or(|head| head & 1 == 0)
            && L::load::<u64>(page, offset!(page_flags)) >> config!(writeback_bit) & 1 == 0
        {
            return false;
        }
    }
    let vecs = L::pointer(bio, offset!(bio_vecs)).0;
    let vec = vecs.wrapping_add((index.wrapping_mul(BIO_VEC) + offset!(bvec_page)) as usize);
    let Some(mut page) = read(vec.cast::<u64>()) else {
        return false;
    };
    // The other pages of a large folio lead to its first.
    let head = word(page, offset!(page_compound_head));
    if head & 1 != 0 {
        page = head - 1;
    }
    if word(page, offset!(page_flags)) >> config!(writeback_bit) & 1 == 0 {
        return false;
    }
    let mapping = word(page, offset!(page_mapping));
    if mapping == 0 || mapping & NO_FILE != 0 {
        return false;
    }
    let inode = word(mapping, offset!(mapping_host));
    file.ino = word(inode, offset!(inode_ino));
    file.generation = word(inode, offset!(inode_generation)) as u32;
    file.dev = word(word(inode, offset!(inode_sb)), offset!(sb_dev)) as u32;
    true
}

#[inline(always)]
fn file_of_inode(inode: Object) -> FileKey {
    FileKey {
        ino: inode.get(offset!(inode_ino)),
        dev: inode.object(offset!(inode_sb)).get(offset!(sb_dev)),
        generation: inode.get(offset!(inode_generation)),
    }
}

#[inline(always)]
fn word(address: u64, offset: u32) -> u64 {
    read(address.wrapping_add(offset.into()) as *const u64).unwrap_or(0)
}

#[inline(always)]
fn dirtier(file: &FileKey) -> Option<&'static mut Dirtier> {
    // SAFETY: reused by the kernel only after the program has ended.
    DIRTIERS
        .get_ptr_mut(file)
        .and_then(|dirtier| unsafe { dirtier.as_mut() })
}

#[inline(always)]
fn epoch() -> Option<&'static mut u64> {
    // SAFETY: one entry that always exists.
    EPOCH
        .get_ptr_mut(0)
        .and_then(|epoch| unsafe { epoch.as_mut() })
}
