//! A fork storm: processes that end immediately, at a constant rate.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Forks until it is killed.
pub fn main(per_second: u32) {
    let pause = Duration::from_secs(1) / per_second;
    let begin = Instant::now();
    for number in 1.. {
        // SAFETY: this process has one thread, and the child only ends.
        match unsafe { libc::fork() } {
            // SAFETY: ends this process.
            0 => unsafe { libc::_exit(0) },
            child => {
                assert!(child > 0, "{}", std::io::Error::last_os_error());
                // SAFETY: the child exists; a null pointer means that its status is not stored.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
        let due = pause * number;
        sleep(due.saturating_sub(begin.elapsed()));
    }
}
