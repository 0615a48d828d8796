//! Memory and open files of a process.

use super::{
    kernel::{Object, Task, config, offset, read, repeat},
    per_cpu::{CPUS_MAX, per_cpu_offset},
};
use crate::record::{FDS_UNKNOWN, ProcessRecord};

/// Largest table of file descriptors in which the open ones are counted.
const FDS_MAX: u32 = 1 << 20;
/// The same without bpf_loop.
const FDS_MAX_UNROLLED: u32 = 1 << 14;

/// The four counters of `mm->rss_stat`, without the parts that CPUs hold back.
#[inline(always)]
pub fn resident(mm: Object) -> [i64; 4] {
    let first = offset!(mm_rss_stat);
    if config!(rss_percpu) == 0 {
        // The verifier of Linux 6.1 rejects direct loads from `atomic_long_t count[]`.
        let count = |index: u32| {
            read(
                mm.0.wrapping_add((first + 8 * index) as usize)
                    .cast::<i64>(),
            )
            .unwrap_or(0)
        };
        return [count(0), count(1), count(2), count(3)];
    }
    let first = first + offset!(percpu_counter_count);
    let step = config!(percpu_counter_size);
    [
        mm.get(first),
        mm.get(first + step),
        mm.get(first + 2 * step),
        mm.get(first + 3 * step),
    ]
}

/// Sets the memory of a process, which is `mm`.
#[inline(always)]
pub fn report_memory(task: Task, mm: Object, to: &mut ProcessRecord) {
    to.has_mm = u32::from(!mm.is_null());
    to.rss = [0; 4];
    to.rss_per_cpu = [0; 4];
    to.rss_exact = 0;
    if mm.is_null() {
        return;
    }
    to.hiwater_rss = mm.get(offset!(mm_hiwater_rss));
    to.total_vm = mm.get(offset!(mm_total_vm));
    to.data_vm = mm.get(offset!(mm_data_vm));
    to.stack_vm = mm.get(offset!(mm_stack_vm));
    to.start_code = mm.get(offset!(mm_start_code));
    to.end_code = mm.get(offset!(mm_end_code));
    to.rss = resident(mm);
    if config!(rss_percpu) == 0 {
        to.rss_exact = 1;
    } else if per_cpu_offset(0) != 0 {
        to.rss_per_cpu = held_back(mm);
        to.rss_exact = 1;
    }
    // If the task has released its memory in the meantime, the values are invalid.
    if !task.has_memory(mm) {
        to.has_mm = 0;
    }
}

/// Largest resident set of a task that still has its memory, pages; 0 if it has none.
#[inline(always)]
pub fn peak_resident(task: Task) -> u64 {
    let mm = task.memory();
    if mm.is_null() {
        return 0;
    }
    let noted: u64 = mm.get(offset!(mm_hiwater_rss));
    let [mut file, mut anonymous, _, mut shared] = resident(mm);
    if config!(rss_percpu) != 0 && per_cpu_offset(0) != 0 {
        let parts = held_back(mm);
        file += parts[0];
        anonymous += parts[1];
        shared += parts[3];
    }
    let present = file + anonymous + shared;
    if present > noted as i64 {
        present as u64
    } else {
        noted
    }
}

/// The parts of the four counters that CPUs hold back.
#[inline(always)]
fn held_back(mm: Object) -> [i64; 4] {
    let step = config!(percpu_counter_size);
    let counters = offset!(mm_rss_stat) + offset!(percpu_counter_counters);
    let parts: [u64; 4] = [
        mm.get(counters),
        mm.get(counters + step),
        mm.get(counters + 2 * step),
        mm.get(counters + 3 * step),
    ];
    let mut sums = PerCpuSums {
        parts,
        sums: [0; 4],
    };
    repeat::<CPUS_MAX, _>(config!(cpus), add_cpu, &mut sums);
    sums.sums
}

/// Sums of four `percpu_counter`.
struct PerCpuSums {
    /// Per-CPU addresses of their parts.
    parts: [u64; 4],
    sums: [i64; 4],
}

/// Adds the parts of one CPU.
extern "C" fn add_cpu(cpu: u64, sums: &mut PerCpuSums) -> i64 {
    let base = per_cpu_offset(cpu as u32);
    let mut part = 0;
    while part < 4 {
        let address = sums.parts[part].wrapping_add(base) as *const i32;
        sums.sums[part] += read(address).map_or(0, i64::from);
        part += 1;
    }
    0
}

/// Number of open file descriptors of a `files_struct`: bits that are set in `fdt->open_fds`.
#[inline(always)]
pub fn open_fds(files: Object) -> u32 {
    if files.is_null() {
        return FDS_UNKNOWN;
    }
    let table = files.object(offset!(files_fdt));
    let size: u32 = table.get(offset!(fdtable_max_fds));
    let most = if config!(has_loop) == 0 {
        FDS_MAX_UNROLLED
    } else {
        FDS_MAX
    };
    if size > most {
        return FDS_UNKNOWN;
    }
    let words: *const u64 = table.get(offset!(fdtable_open_fds));
    let mut bits = Bits { words, count: 0 };
    repeat::<{ FDS_MAX_UNROLLED / 64 }, _>(size / 64, add_bits, &mut bits);
    bits.count
}

/// Bits that are set in some words.
struct Bits {
    words: *const u64,
    count: u32,
}

/// Adds the bits of one word.
extern "C" fn add_bits(word: u64, bits: &mut Bits) -> i64 {
    bits.count += ones(read(bits.words.wrapping_add(word as usize)).unwrap_or(0));
    0
}

/// Number of bits that are set, for which BPF has no instruction.
#[inline(always)]
fn ones(mut word: u64) -> u32 {
    word -= (word >> 1) & 0x5555_5555_5555_5555;
    word = (word & 0x3333_3333_3333_3333) + ((word >> 2) & 0x3333_3333_3333_3333);
    word = (word + (word >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    (word.wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32
}
