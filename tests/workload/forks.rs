//! A fork storm: so many processes a second, each of which ends at once.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Forks until it is killed.
pub fn main(per_second: u32) {
    let pause = Duration::from_secs(1) / per_second;
    let begin = Instant::now();
    for number in 1.. {
        // SAFETY: the child of this process, which has one thread, does nothing but end.
        match unsafe { libc::fork() } {
            // SAFETY: ends this process.
            0 => unsafe { libc::_exit(0) },
            child => {
                assert!(child > 0, "{}", std::io::Error::last_os_error());
                // SAFETY: waits for that child, and wants to know nothing of it.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
        let due = pause * number;
        sleep(due.saturating_sub(begin.elapsed()));
    }
}
