//! Arguments and environments of all processes, in one pass.

use core::ffi::c_void;

use aya_ebpf::{
    btf_maps::Array,
    helpers::generated::{bpf_copy_from_user_task, bpf_seq_write},
    macros::btf_map,
};

use super::{
    iter::arguments,
    kernel::{Object, Task, offset},
};
use crate::{
    maps::TASKS,
    names::{ARGS_MAX, ENVIRONMENT_MAX, Names},
};

/// Memory for one record. One thread reads the iterator.
#[btf_map]
static NAMES: Array<Buffer, 1> = Array::new();

/// Bytes for [`whole_words`].
const PADDING: usize = 8;

/// [`Names`] with what follows them.
#[repr(C)]
struct Buffer {
    header: Names,
    args: [u8; ARGS_MAX + PADDING],
    environment: [u8; ENVIRONMENT_MAX + PADDING],
}

/// Writes the arguments and the environment of every followed process. The program can sleep: it waits for
/// pages that are not in memory, also for those of a file system that the process serves itself.
#[unsafe(link_section = "iter.s/task")]
#[unsafe(no_mangle)]
fn names(ctx: *mut c_void) -> i32 {
    let Some((seq, task)) = arguments(ctx) else {
        return 0;
    };
    if task.tid() != task.tgid() || TASKS.get(task).is_none() {
        return 0;
    }
    // SAFETY: the one entry always exists.
    let Some(buffer) = NAMES
        .get_ptr_mut(0)
        .and_then(|buffer| unsafe { buffer.as_mut() })
    else {
        return 0;
    };
    let (mm, signal) = (task.memory(), task.signal());
    let header = &mut buffer.header;
    header.pid = task.visible_pid();
    header.threads = signal.get(offset!(signal_nr_threads));
    header.start_boottime = task.start();
    let (mut args, mut environment) = (Range::EMPTY, Range::EMPTY);
    if !mm.is_null() {
        args = Range::of(mm, offset!(mm_arg_start), offset!(mm_arg_end));
        environment = Range::of(mm, offset!(mm_env_start), offset!(mm_env_end));
    }
    header.args_total = args.length;
    header.environment_total = environment.length;
    let args_len = copy(task, args, &mut buffer.args);
    let environment_len = copy(task, environment, &mut buffer.environment);
    (header.args_len, header.environment_len) = (args_len, environment_len);
    write(seq, (&raw const *header).cast(), size_of::<Names>() as u32);
    write(seq, buffer.args.as_ptr(), whole_words(args_len));
    write(
        seq,
        buffer.environment.as_ptr(),
        whole_words(environment_len),
    );
    0
}

/// Memory of a process.
struct Range {
    start: u64,
    length: u64,
}

impl Range {
    const EMPTY: Self = Self {
        start: 0,
        length: 0,
    };

    #[inline(always)]
    fn of(mm: Object, start: u32, end: u32) -> Self {
        let start: u64 = mm.get(start);
        Self {
            start,
            length: mm.get::<u64>(end).saturating_sub(start),
        }
    }
}

/// Copies the beginning of a range. Returns its length; 0 if it cannot be read.
#[inline(always)]
fn copy<const SPACE: usize>(task: Task, from: Range, to: &mut [u8; SPACE]) -> u32 {
    let most = (SPACE - PADDING) as u64;
    let length = if from.length < most {
        from.length
    } else {
        most
    };
    // SAFETY: the helper checks the address, and the verifier that `to` has as many bytes.
    let error = unsafe {
        bpf_copy_from_user_task(
            to.as_mut_ptr().cast(),
            length as u32,
            from.start as *const _,
            task.0.0.cast_mut().cast(),
            0,
        )
    };
    if error == 0 { length as u32 } else { 0 }
}

/// The length rounded up, so that all records begin at a word.
#[inline(always)]
fn whole_words(length: u32) -> u32 {
    (length + 7) & !7
}

#[inline(always)]
fn write(seq: Object, from: *const u8, length: u32) {
    // SAFETY: the verifier checks the length.
    unsafe {
        bpf_seq_write(seq.0.cast_mut().cast(), from.cast_mut().cast(), length);
    }
}
