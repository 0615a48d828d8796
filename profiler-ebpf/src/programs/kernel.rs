//! Access to kernel structs, at offsets that are constants once the program is loaded.

use core::{
    arch::asm,
    ffi::c_void,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{
    EbpfContext,
    helpers::{
        bpf_probe_read_kernel,
        generated::{bpf_ktime_get_ns, bpf_loop},
    },
};

use super::namespace::namespace;
use crate::{
    config::Config,
    offsets::{MISSING, Offsets},
    record::{Permissions, Totals},
};

/// Offsets in the running kernel; set by the profiler before load.
#[unsafe(no_mangle)]
static OFFSETS: Offsets = Offsets::NONE;

/// Settings; set by the profiler before load.
#[unsafe(no_mangle)]
static CONFIG: Config = Config::UNSET;

/// A pointer to a kernel object, whose type the verifier knows from BTF.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Object(pub *const u8);

/// Offset of a member, [`MISSING`] if this kernel does not have it.
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: a read-only global; volatile, because its value is set after compilation.
        unsafe {
            core::ptr::read_volatile(&raw const (*$crate::programs::kernel::offsets_ptr()).$field)
        }
    };
}
/// A setting.
macro_rules! config {
    ($field:ident) => {
        // SAFETY: a read-only global; volatile, because its value is set after compilation.
        unsafe {
            core::ptr::read_volatile(&raw const (*$crate::programs::kernel::config_ptr()).$field)
        }
    };
}
pub(crate) use {config, offset};

/// For [`offset!`].
#[inline(always)]
pub fn offsets_ptr() -> *const Offsets {
    &raw const OFFSETS
}

/// For [`config!`].
#[inline(always)]
pub fn config_ptr() -> *const Config {
    &raw const CONFIG
}

impl Object {
    /// A scalar member; 0 if the pointer is stale.
    #[inline(always)]
    pub fn get<T: Copy>(self, offset: u32) -> T {
        // SAFETY: a load through a BTF pointer. The verifier checks type and bounds, and the kernel
        // turns a fault into 0.
        unsafe { read_volatile(self.0.add(offset as usize).cast::<T>()) }
    }

    /// A scalar member; 0 if this kernel does not have it.
    #[inline(always)]
    pub fn get_or_zero<T: Copy + Default>(self, offset: u32) -> T {
        if offset == MISSING {
            T::default()
        } else {
            self.get(offset)
        }
    }

    /// A pointer member.
    ///
    /// The verifier of Linux 6.18 searches all types of the kernel by name (a millisecond) each time
    /// it passes this for an object that it trusts: an argument of a tracepoint, the current task.
    /// To be called before the program branches, once for each member.
    #[inline(always)]
    pub fn object(self, offset: u32) -> Self {
        Self(self.get(offset))
    }

    /// The pointer as a number.
    #[inline(always)]
    pub fn address(&self) -> u64 {
        number(&raw const self.0).unwrap_or(0)
    }

    /// Whether the pointer is null.
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// Argument `N` of a hook where other kernels have another number for it. The compiler would make one load
/// with a computed offset out of two loads by `ctx.arg`, and the verifier demands constant ones.
#[inline(always)]
pub fn argument<const N: usize>(ctx: &impl EbpfContext) -> u64 {
    let value;
    // SAFETY: the verifier checks that the hook has the argument.
    unsafe {
        asm!("{value} = *(u64 *)({ctx} + {offset})",
            value = lateout(reg) value, ctx = in(reg) ctx.as_ptr(), offset = const N * 8,
            options(pure, readonly, nostack));
    }
    value
}

/// A value at any kernel address; `None` if it cannot be read.
#[inline(always)]
pub fn read<T>(address: *const T) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address) }.ok()
}

/// A pointer as a number. The verifier does not allow arithmetic on pointers; Linux 6.1 allows it
/// with offsets whose bounds it knows.
#[inline(always)]
pub fn number<T>(pointer: *const *const T) -> Option<u64> {
    read(pointer.cast())
}

/// Runs `body(0 … times - 1, state)` until it returns 1. The verifier checks the body of bpf_loop
/// once, but every iteration of a loop, of which there are therefore at most `MAX`.
#[inline(always)]
pub fn repeat<const MAX: u32, T>(
    times: u32,
    body: extern "C" fn(u64, &mut T) -> i64,
    state: &mut T,
) {
    if config!(has_loop) == 0 {
        let mut count = 0;
        while count < MAX && count < times && body(count.into(), state) == 0 {
            count += 1;
        }
        return;
    }
    let state: *mut T = state;
    // SAFETY: the body gets the state with which it is declared.
    unsafe {
        bpf_loop(times, body as *mut c_void, state.cast(), 0);
    }
}

/// `CLOCK_MONOTONIC`, ns.
#[inline(always)]
pub fn ktime() -> u64 {
    // SAFETY: a helper without preconditions.
    unsafe { bpf_ktime_get_ns() }
}

/// Copies a struct of 8-byte words. The compiler turns a plain assignment into a loop over bytes.
#[inline(always)]
pub fn copy<T>(to: &mut T, from: &T) {
    let (to, from): (*mut T, *const T) = (to, from);
    let mut word = 0;
    while word < size_of::<T>() / 8 {
        // SAFETY: within both structs, which are aligned for words.
        unsafe {
            write_volatile(
                to.cast::<u64>().add(word),
                read_volatile(from.cast::<u64>().add(word)),
            );
        }
        word += 1;
    }
}

/// Zeroes a struct of 8-byte words, for which zeros are valid.
#[inline(always)]
pub fn clear<T>(to: &mut T) {
    let to: *mut T = to;
    let mut word = 0;
    while word < size_of::<T>() / 8 {
        // SAFETY: within the struct, which is aligned for words.
        unsafe {
            write_volatile(to.cast::<u64>().add(word), 0);
        }
        word += 1;
    }
}

/// `struct task_struct`.
#[derive(Clone, Copy)]
pub struct Task(pub Object);

impl Task {
    /// Thread group id in the initial pid namespace, by which processes are found in maps.
    #[inline(always)]
    pub fn tgid(self) -> u32 {
        self.0.get(offset!(task_tgid))
    }

    /// Thread id in the initial pid namespace.
    #[inline(always)]
    pub fn tid(self) -> u32 {
        self.0.get(offset!(task_pid))
    }

    /// The thread group leader.
    #[inline(always)]
    pub fn leader(self) -> Self {
        Self(self.0.object(offset!(task_group_leader)))
    }

    /// A thread of the parent process.
    #[inline(always)]
    pub fn parent(self) -> Self {
        Self(self.0.object(offset!(task_real_parent)))
    }

    /// Start of the thread, ns of `CLOCK_BOOTTIME`.
    #[inline(always)]
    pub fn start(self) -> u64 {
        self.0.get(offset!(task_start_boottime))
    }

    /// The run queue (`struct rq`) of its CPU. Needs `task_cfs_rq`.
    #[inline(always)]
    pub fn runqueue(self) -> Object {
        let queue = self.0.object(offset!(task_cfs_rq));
        queue.object(offset!(cfs_rq_rq))
    }

    /// Clock of the CPU's run queue, which a switch has just updated, ns. All times of `sched_info`
    /// are on this clock. Needs `task_cfs_rq`.
    #[inline(always)]
    pub fn runqueue_clock(self) -> u64 {
        self.runqueue().get(offset!(rq_clock))
    }

    /// Clock of the CPU's run queue when the scheduler last updated the time of this running task.
    ///
    /// `se.exec_start` is a time on `rq.clock_task`, from which the time of interrupts and of the
    /// hypervisor is excluded (kernel/sched/core.c, update_rq_clock_task).
    #[inline(always)]
    pub fn time_updated(self) -> u64 {
        let updated: u64 = self.0.get(offset!(task_exec_start));
        if offset!(task_cfs_rq) == MISSING || offset!(cfs_rq_rq) == MISSING {
            return updated;
        }
        let runqueue = self.runqueue();
        let clock: u64 = runqueue.get(offset!(rq_clock));
        updated + clock.saturating_sub(runqueue.get(offset!(rq_clock_task)))
    }

    /// Thread id in the profiler's pid namespace (`task_struct.thread_pid->numbers[level].nr`); 0
    /// outside it.
    #[inline(always)]
    pub fn visible_tid(self) -> u32 {
        // A constant, so that the verifier skips the rest.
        if config!(in_pid_namespace) == 0 {
            return self.tid();
        }
        let Some(namespace) = namespace() else {
            return 0;
        };
        let pid = self.0.object(offset!(task_thread_pid));
        if u64::from(pid.get::<u32>(offset!(pid_level))) < namespace.level {
            return 0;
        }
        let upid =
            u64::from(offset!(pid_numbers)) + namespace.level * u64::from(config!(upid_size));
        let Some(pid) = number(&raw const pid.0) else {
            return 0;
        };
        let upid = pid.wrapping_add(upid);
        let address = read((upid + u64::from(offset!(upid_ns))) as *const u64);
        if address != Some(namespace.address) {
            return 0;
        }
        read(upid as *const u32).unwrap_or(0)
    }

    /// Process id in the profiler's pid namespace; 0 outside it.
    #[inline(always)]
    pub fn visible_pid(self) -> u32 {
        if config!(in_pid_namespace) == 0 {
            return self.tgid();
        }
        self.leader().visible_tid()
    }

    /// Real user id and present permissions, with its memory.
    #[inline(always)]
    pub fn user(self, mm: Object) -> (u32, Permissions) {
        user(self.cred(), mm)
    }

    /// `struct cred`: its user.
    #[inline(always)]
    pub fn cred(self) -> Object {
        self.0.object(offset!(task_cred))
    }

    /// `files_struct`; null for exiting tasks.
    #[inline(always)]
    pub fn files(self) -> Object {
        self.0.object(offset!(task_files))
    }

    /// `mm_struct`; null for kernel threads and exiting tasks.
    #[inline(always)]
    pub fn memory(self) -> Object {
        self.0.object(offset!(task_mm))
    }

    /// Whether its memory is still this. Another load by [`Object::object`] would cost a millisecond.
    #[inline(always)]
    pub fn has_memory(self, mm: Object) -> bool {
        let member = self.0.0.wrapping_add(offset!(task_mm) as usize);
        read(member.cast::<*const u8>()) == Some(mm.0)
    }

    /// `signal_struct`, which the threads of a process share.
    #[inline(always)]
    pub fn signal(self) -> Object {
        self.0.object(offset!(task_signal))
    }

    /// Copies `comm`.
    #[inline(always)]
    pub fn comm(self, to: &mut [u8; 16]) {
        let from = offset!(task_comm);
        let first: u64 = self.0.get(from);
        let second: u64 = self.0.get(from + 8);
        to[..8].copy_from_slice(&first.to_ne_bytes());
        to[8..].copy_from_slice(&second.to_ne_bytes());
    }

    /// Sets the counters that the kernel maintains, without the time in flight.
    #[inline(always)]
    pub fn totals(self, to: &mut Totals) {
        let task = self.0;
        to.utime = task.get(offset!(task_utime));
        to.stime = task.get(offset!(task_stime));
        to.oncpu = task.get(offset!(task_sum_exec_runtime));
        to.run_delay = task.get_or_zero(offset!(task_run_delay));
        to.run_count = task.get_or_zero(offset!(task_pcount));
        to.nvcsw = task.get(offset!(task_nvcsw));
        to.nivcsw = task.get(offset!(task_nivcsw));
        to.migrations = task.get(offset!(task_nr_migrations));
        to.min_flt = task.get(offset!(task_min_flt));
        to.maj_flt = task.get(offset!(task_maj_flt));
        io_totals(task, offset!(task_ioac), to);
    }
}

/// Real user id and permissions of a `struct cred`, and of a process with this memory.
#[inline(always)]
pub fn user(cred: Object, mm: Object) -> (u32, Permissions) {
    const DUMPABLE: u64 = 0x3;
    let id = |offset| cred.get::<u32>(offset);
    let (uid, gid) = (id(offset!(cred_uid)), id(offset!(cred_gid)));
    let ids_differ = (uid ^ id(offset!(cred_euid)))
        | (uid ^ id(offset!(cred_suid)))
        | (gid ^ id(offset!(cred_egid)))
        | (gid ^ id(offset!(cred_sgid)));
    let dumpable = match offset!(mm_flags) {
        MISSING => Permissions::DUMPABLE_BY_USER,
        offset => {
            let flags: u64 = mm.get(offset);
            (flags & DUMPABLE) as u32
        }
    };
    let permissions = Permissions {
        ids_differ,
        dumpable,
    };
    (uid, permissions)
}

/// Sets the counters of a `struct task_io_accounting` at `offset` of `object`.
#[inline(always)]
pub fn io_totals(object: Object, offset: u32, to: &mut Totals) {
    if offset == MISSING {
        return;
    }
    macro_rules! copy {
        ($($to:ident = $from:ident),*) => {$(
            let member = offset!($from);
            to.$to = if member == MISSING { 0 } else { object.get(offset + member) };
        )*};
    }
    copy!(
        rchar = ioac_rchar,
        wchar = ioac_wchar,
        syscr = ioac_syscr,
        syscw = ioac_syscw,
        read_bytes = ioac_read_bytes,
        write_bytes = ioac_write_bytes,
        cancelled_write_bytes = ioac_cancelled_write_bytes
    );
}
