//! Records that the iterator `names` writes: arguments and environments of the followed processes.

/// Longest part of a command line, bytes.
pub const ARGS_MAX: usize = 4096;
/// Longest part of an environment, bytes. A record with both is shorter than the 32 KiB that the kernel
/// reserves for the output of an iterator.
pub const ENVIRONMENT_MAX: usize = 16 << 10;

shared! {
    /// A process. `args_len` bytes of its arguments follow, then `environment_len` bytes of its environment,
    /// both filled up to whole words of 8 bytes.
    pub struct Names {
        /// Process id in the profiler's pid namespace.
        pub pid: u32,
        /// Number of threads.
        pub threads: u32,
        /// Start of the process, ns of `CLOCK_BOOTTIME`.
        pub start_boottime: u64,
        /// Bytes of all arguments.
        pub args_total: u64,
        /// Bytes of the whole environment.
        pub environment_total: u64,
        /// Bytes of the arguments that follow.
        pub args_len: u32,
        /// Bytes of the environment that follow.
        pub environment_len: u32,
    }
}
