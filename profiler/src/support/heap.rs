//! Settings of glibc's heap.

/// Size from which blocks are mapped, bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 4 << 20;

/// Returns blocks of 4 MiB and more to the kernel as soon as they are freed. By default, glibc
/// keeps them after the first one: those of the kernel's type information, 10 MB, to the end of the
/// run.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two integers; glibc synchronizes it with other threads.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Limits glibc to this many heaps. Each thread would get one of its own, which never shrinks; with
/// threads that come and go with the jobs, two shared heaps take half the memory.
pub fn share(
    #[cfg_attr(not(target_env = "gnu"), expect(unused_variables, reason = "glibc"))] heaps: i32,
) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two integers; glibc synchronizes it with other threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, heaps);
    }
}

/// Returns free memory to the kernel.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer; glibc locks its heaps.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Empties a vector that each sample fills. Its space is kept if this sample and the one before, with
/// `before` values, have needed a quarter of it.
pub fn empty<T>(values: &mut Vec<T>, before: &mut usize) {
    let previous = std::mem::replace(before, values.len());
    let needed = values.len().min(previous);
    values.clear();
    if values.capacity() > 4 * needed {
        values.shrink_to(2 * needed);
    }
}
