//! The maps, and how entries get into them.

use core::{
    arch::asm,
    ffi::c_void,
    ptr::{null, null_mut},
};

use aya_ebpf::{
    btf_maps::{Array, HashMap, PerCpuArray, RingBuf},
    helpers::generated::{
        bpf_get_current_task_btf, bpf_map_lookup_percpu_elem, bpf_task_storage_delete,
        bpf_task_storage_get,
    },
    macros::btf_map,
};

use super::kernel::{Object, Task, config, number, offset, read};
use crate::wire::{
    CGROUPS_MAX, CPUS_MAX, Control, Counters, Environment, ExecBuffer, Map, Namespace, Process,
    ProcessRecord, TaskState, Thread, ThreadEnd,
};

/// `BPF_MAP_TYPE_TASK_STORAGE`: a value attached to a task, freed with it.
#[repr(C)]
pub struct TaskStorage<T> {
    r#type: *const [i32; 29],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; 1],
}

// SAFETY: only a description for the loader; nothing is stored in it.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    const fn new() -> Self {
        Self {
            r#type: null(),
            key: null(),
            value: null(),
            max_entries: null(),
            map_flags: null(),
        }
    }

    /// The value of `task`, if it has one.
    #[inline(always)]
    pub fn get(&'static self, task: Task) -> Option<&'static mut T> {
        self.get_or_insert(task, null_mut(), 0)
    }

    /// The value of `task`, which becomes `value` if it has none; `None` when there is no memory.
    #[inline(always)]
    pub fn insert(&'static self, task: Task, value: &mut T) -> Option<&'static mut T> {
        self.get_or_insert(task, value, 1)
    }

    #[inline(always)]
    fn get_or_insert(
        &'static self,
        task: Task,
        value: *mut T,
        flags: u64,
    ) -> Option<&'static mut T> {
        let map: *const Self = self;
        // SAFETY: the verifier knows the task's type; the storage lives as long as the task, and tracepoints of
        // one task do not run at the same time.
        unsafe {
            bpf_task_storage_get(
                map.cast_mut().cast(),
                task.0.0.cast_mut().cast(),
                value.cast(),
                flags,
            )
            .cast::<T>()
            .as_mut()
        }
    }

    /// Forgets the value of `task`.
    #[inline(always)]
    pub fn delete(&'static self, task: Task) {
        let map: *const Self = self;
        // SAFETY: the verifier knows the task's type. The only error is that there was no value.
        unsafe {
            bpf_task_storage_delete(map.cast_mut().cast(), task.0.0.cast_mut().cast());
        }
    }
}

/// Every followed task.
#[btf_map]
pub static TASKS: TaskStorage<TaskState> = TaskStorage::new();

/// Every followed process that has live threads, by thread group id. Sized by the controller.
#[btf_map]
pub static PROCESSES: HashMap<u32, Process, 16384, 1> = HashMap::new();

/// Processes that are targets by their pid, with their start (`CLOCK_BOOTTIME`, ns).
#[btf_map]
pub static ROOTS: HashMap<u32, u64, 4096> = HashMap::new();

/// Inodes of the directories of cgroups that are the target; a batch job can have several, one after the other.
#[btf_map]
pub static CGROUPS: HashMap<u64, u32, { CGROUPS_MAX as usize }> = HashMap::new();

/// Bytes of [`EVENTS`]: some 10,000 births, execs and ends between two readings.
pub const EVENTS_SIZE: u64 = 8 << 20;

/// Births, execs and ends.
#[btf_map]
pub static EVENTS: RingBuf<u8, { EVENTS_SIZE as usize }> = RingBuf::new();

/// Which reading is under way.
#[btf_map]
static CONTROL: Array<Control, 1> = Array::new();

/// What is counted of the whole.
#[btf_map]
static COUNTERS: Array<Counters, 1> = Array::new();

/// `__per_cpu_offset` of each CPU, found by `mark`.
#[btf_map]
static PER_CPU_OFFSET: Array<u64, { CPUS_MAX as usize }> = Array::new();

/// The controller's pid namespace.
#[btf_map]
static NAMESPACE: Array<Namespace, 1> = Array::new();

/// Room for what does not fit the stack.
#[btf_map]
static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Bytes of an environment that are looked at in one go.
pub const VARIABLE_ROOM: usize = 1024;

/// See [`scratch`].
#[repr(C)]
pub struct Scratch {
    /// Used by `process_exec`.
    pub exec: ExecBuffer,
    /// Used by `process_exec`.
    pub environment: Environment,
    /// Used by `process_exec`: one variable.
    pub variable: [u64; VARIABLE_ROOM / 8],
    /// Used at the end of a thread.
    pub end: ThreadEnd,
    /// A fresh process.
    pub process: Process,
    /// A fresh task.
    pub task: TaskState,
    /// Used by `sample`.
    pub thread: Thread,
    /// Used by `sample`.
    pub record: ProcessRecord,
}

/// Which reading is under way.
#[inline(always)]
pub fn control() -> Option<&'static Control> {
    // SAFETY: one entry that always exists.
    CONTROL
        .get_ptr(0)
        .and_then(|control| unsafe { control.as_ref() })
}

/// What is counted of the whole.
#[inline(always)]
pub fn counters() -> Option<&'static mut Counters> {
    // SAFETY: one entry that always exists; fields are only added to atomically.
    COUNTERS
        .get_ptr_mut(0)
        .and_then(|counters| unsafe { counters.as_mut() })
}

/// This CPU's scratch; programs that use one field never interrupt one another.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    // SAFETY: one entry that always exists.
    SCRATCH
        .get_ptr_mut(0)
        .and_then(|scratch| unsafe { scratch.as_mut() })
}

/// Distance of a CPU's copy of a per-CPU variable from the variable's per-CPU address; 0 when not known.
#[inline(always)]
pub fn per_cpu_offset(cpu: u32) -> u64 {
    // SAFETY: only read by copy.
    PER_CPU_OFFSET
        .get_ptr(cpu)
        .map_or(0, |offset| unsafe { *offset })
}

/// Finds [`per_cpu_offset`] of every CPU: kallsyms lists data only with `CONFIG_KALLSYMS_ALL`, but a per-CPU map
/// of our own has the same distances between its value on a CPU and its per-CPU address.
#[inline(always)]
pub fn find_per_cpu_offsets() {
    if per_cpu_offset(0) != 0 {
        return;
    }
    let map: *const c_void = (&raw const SCRATCH).cast();
    // struct bpf_array (include/linux/bpf.h)
    let Some(address) = number(&raw const map) else {
        return;
    };
    let Some(base) = read((address + u64::from(offset!(array_pptrs))) as *const u64) else {
        return;
    };
    let mut cpu = 0;
    while cpu < CPUS_MAX && cpu < config!(cpus) {
        let key = 0_u32;
        // SAFETY: key and map are of the types that the helper expects.
        let value: *const c_void =
            unsafe { bpf_map_lookup_percpu_elem(map.cast_mut(), (&raw const key).cast(), cpu) };
        if value.is_null() {
            return;
        }
        if let (Some(value), Some(offset)) =
            (number(&raw const value), PER_CPU_OFFSET.get_ptr_mut(cpu))
        {
            // SAFETY: an entry of the array; only `mark` writes it.
            unsafe { *offset = value.wrapping_sub(base) };
        }
        cpu += 1;
    }
}

/// The task that runs.
#[inline(always)]
pub fn current() -> Task {
    // SAFETY: a helper without preconditions.
    Task(Object(
        unsafe { bpf_get_current_task_btf() }.cast_const().cast(),
    ))
}

/// The controller's pid namespace.
#[inline(always)]
pub fn namespace() -> Option<&'static Namespace> {
    // SAFETY: one entry that always exists.
    NAMESPACE
        .get_ptr(0)
        .and_then(|namespace| unsafe { namespace.as_ref() })
}

/// Finds [`namespace`]: `mark` runs in the context of the controller.
#[inline(always)]
pub fn find_namespace() {
    let pid = current().0.object(offset!(task_thread_pid));
    let level: u32 = pid.get(offset!(pid_level));
    let upid = u64::from(offset!(pid_numbers)) + u64::from(level) * u64::from(config!(upid_size));
    let Some(pid) = number(&raw const pid.0) else {
        return;
    };
    let address = pid.wrapping_add(upid + u64::from(offset!(upid_ns)));
    if let (Some(address), Some(namespace)) =
        (read(address as *const u64), NAMESPACE.get_ptr_mut(0))
    {
        // SAFETY: an entry of the array; only `mark` writes it.
        unsafe {
            (*namespace).address = address;
            (*namespace).level = u64::from(level);
            (*namespace).controller = u64::from(current().tgid());
        }
    }
}

/// The entry of a process.
#[inline(always)]
pub fn process(tgid: u32) -> Option<&'static mut Process> {
    // SAFETY: freed by the kernel only after the program has ended; fields that several CPUs write are only added to
    // atomically.
    PROCESSES
        .get_ptr_mut(&tgid)
        .and_then(|process| unsafe { process.as_mut() })
}

/// Adds `value` to a counter that other CPUs add to.
#[inline(always)]
pub fn add(counter: &mut u64, value: u64) {
    let counter: *mut u64 = counter;
    // SAFETY: aligned, and valid for as long as the reference it came from.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {value}", counter = in(reg) counter, value = in(reg) value);
    }
}

/// Counts an entry that found no room.
#[inline(always)]
pub fn dropped(map: Map) {
    if let Some(counters) = counters() {
        add(&mut counters.dropped[map as usize], 1);
    }
}

/// Replaces `old` by `new` unless another CPU has; returns what was there.
#[inline(always)]
pub fn compare_exchange(word: &mut u64, old: u64, new: u64) -> u64 {
    let word: *mut u64 = word;
    let mut found = old;
    // SAFETY: aligned, and valid for as long as the reference it came from. The instruction works with r0.
    unsafe {
        asm!("r0 = cmpxchg_64({word} + 0, r0, {new})",
            word = in(reg) word, new = in(reg) new, inout("r0") found);
    }
    found
}

/// Subtracts one and returns what is left; ordered with all that was written before.
#[inline(always)]
pub fn decrement(counter: &mut u64) -> u64 {
    let counter: *mut u64 = counter;
    let mut value = u64::MAX;
    // SAFETY: as above. Reading the old value makes the operation a full barrier.
    unsafe {
        asm!("{value} = atomic_fetch_add((u64 *)({counter} + 0), {value})",
            counter = in(reg) counter, value = inout(reg) value);
    }
    value.wrapping_sub(1)
}
