//! Heap of the threads that write the runs of jobs.

/// Limits glibc to two heaps. Each thread would get one of its own, which never shrinks; with
/// threads that come and go with the jobs, two shared heaps take half the memory.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two integers; glibc synchronizes it with other threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Returns free memory of ended threads to the kernel.
pub fn trim_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer; glibc locks its heaps.
    unsafe {
        libc::malloc_trim(0);
    }
}
