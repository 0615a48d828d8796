//! Owner of writeback: the process that has dirtied the pages of a file.
//!
//! A file that several processes have dirtied has no owner until it is clean. An incomplete record
//! only loses an owner, while a wrong one would account writeback to the wrong process. In doubt, a
//! file therefore has no owner.

use aya_ebpf::{
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};

use super::{
    atomic::add,
    files::{Load, Typed, Untyped},
    kernel::{Object, config, ktime, offset, read, repeat},
    maps::{count_drop, current},
    task_storage::TaskState,
};
use crate::{
    maps::{DIRTIERS, Dirtier, Dirtiers, FileKey, TASKS},
    per_key::Owner,
};

/// Number of the state of `DIRTIERS`. It changes before an entry can change its owner, so that
/// tasks look up the entries that they remember again.
#[btf_map]
static EPOCH: Array<u64, 1> = Array::new();

/// The file of which a task outside the target last dirtied a page, on each CPU.
#[btf_map]
static OUT_OF_SCOPE: PerCpuArray<LastDirtied, 1> = PerCpuArray::new();

/// The file of which a page was last dirtied, and that is in `DIRTIERS`.
#[repr(C)]
pub struct LastDirtied {
    /// The file.
    pub file: FileKey,
    /// [`EPOCH`] at which it was found in `DIRTIERS`; 0 if there is none.
    pub epoch: u64,
}

/// Time for which a clean file keeps its owner: its requests can still be on their way into the
/// queue, and a page can be about to be marked dirty.
const GRACE_NS: u64 = 100_000_000;
/// `PF_WQ_WORKER`: a kernel worker, which acts for other tasks (include/linux/sched.h).
pub const WORKER: u32 = 0x20;
/// Bios of one request that are examined after the first.
const BIOS: u32 = 512;
/// The same without bpf_loop.
const BIOS_UNROLLED: u32 = 64;
/// `PAGE_MAPPING_FLAGS`: a mapping with one of these bits is not that of a file
/// (include/linux/page-flags.h).
const NO_FILE: u64 = 3;

/// A page becomes dirty, while its mapping is locked. Arguments: folio (before Linux 5.16, the page),
/// mapping.
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
            if let Some(last) = OUT_OF_SCOPE.get_ptr_mut(0) {
                // SAFETY: this CPU's entry, with interrupts disabled.
                dirtied(unsafe { &mut *last }, Owner::UNKNOWN, file, now);
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
fn dirtied(last: &mut LastDirtied, owner: Owner, file: FileKey, epoch: u64) {
    if last.epoch == epoch && last.file == file {
        return;
    }
    note_dirtier(owner, &file);
    last.file = file;
    last.epoch = epoch;
}

#[inline(always)]
fn note_dirtier(owner: Owner, file: &FileKey) {
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
    let dirtier = Dirtier {
        owner,
        shared: 0,
        noted: now,
        started: 0,
        clean: 0,
    };
    if DIRTIERS.insert(file, &dirtier, 0).is_err() {
        count_drop::<Dirtiers>();
    }
}

/// The writeback of a file starts. Arguments: inode, …
#[btf_tracepoint(function = "writeback_single_inode_start")]
pub fn writeback_single_inode_start(ctx: BtfTracePointContext) -> i32 {
    if let Some(dirtier) = dirtier(&file_of_inode(Object(ctx.arg(0)))) {
        dirtier.started = ktime();
        // From now on, every task that dirties the file is noted.
        if let Some(epoch) = epoch() {
            add(epoch, 1);
        }
    }
    0
}

/// The writeback of a file ends, for now. Arguments: inode, …
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

/// Owner of the pages that a request writes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Pages {
    /// The request is not writeback.
    None = 0,
    /// One process of the target.
    Owned = 1,
    /// Several processes, a process outside the target, or unknown.
    Unknown = 2,
}

/// Owner of the pages that a bio writes back; with `chain`, of those of a request that begins with
/// it.
#[inline(always)]
pub fn pages_of(first: Object, chain: bool, owner: &mut Owner) -> Pages {
    let mut file = FileKey::default();
    if !file_of_bio::<Typed>(first, &mut file) {
        return Pages::None;
    }
    let Some(dirtier) = sole_dirtier(&file) else {
        return Pages::Unknown;
    };
    *owner = *dirtier;
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
    repeat::<BIOS_UNROLLED, _>(BIOS, check_bio, &mut bios);
    if bios.next == 0 {
        Pages::Owned
    } else {
        Pages::Unknown
    }
}

/// The bios of a request that remain to be checked.
struct Bios {
    /// Address of the next one; 0 when all of them have the same owner.
    next: u64,
    /// File of the previous one.
    file: FileKey,
    owner: Owner,
}

/// Goes on to the next bio. Stops at the end, or at a bio with another owner.
extern "C" fn check_bio(_: u64, bios: &mut Bios) -> i64 {
    let bio = Object(bios.next as *const u8);
    let mut file = FileKey::default();
    if !file_of_bio::<Untyped>(bio, &mut file) {
        return 1;
    }
    if file != bios.file {
        match sole_dirtier(&file) {
            Some(owner)
                if owner.pid == bios.owner.pid
                    && owner.start_boottime == bios.owner.start_boottime => {}
            _ => return 1,
        }
        bios.file = file;
    }
    bios.next = Untyped::load(bio, offset!(bio_next));
    i64::from(bios.next == 0)
}

#[inline(always)]
fn sole_dirtier(file: &FileKey) -> Option<&'static Owner> {
    let dirtier = dirtier(file)?;
    (dirtier.shared == 0 && dirtier.owner.pid != 0).then_some(&dirtier.owner)
}

/// Finds the file whose page a bio writes back; `false` if the bio is not writeback.
#[inline(always)]
fn file_of_bio<L: Load>(bio: Object, file: &mut FileKey) -> bool {
    // struct bio_vec (include/linux/bvec.h)
    const BIO_VEC: u32 = 16;
    let index: u32 = L::load(bio, offset!(bio_index));
    // The most frequent case, with fewer calls: a single page that is not under writeback.
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
    // The tail pages of a large folio point to its head.
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
    // SAFETY: the one entry always exists.
    EPOCH
        .get_ptr_mut(0)
        .and_then(|epoch| unsafe { epoch.as_mut() })
}
