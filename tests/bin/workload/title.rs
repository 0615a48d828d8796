//! A process that changes its title, as setproctitle(3) does.

use std::fs;

/// Overwrites the arguments, with their last NUL, and the begin of the environment; then sleeps.
pub fn main() {
    let stat = fs::read_to_string("/proc/self/stat").expect("stat");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    // proc_pid_stat(5), where the state is field 3.
    let field = |number: usize| {
        let text = fields.split_ascii_whitespace().nth(number - 3);
        text.expect("a field").parse::<usize>().expect("a number")
    };
    let (start, end, environment) = (field(48), field(49), field(50));
    assert!(start < end && end <= environment);
    let title = [vec![b't'; environment - start], b"itle\0".to_vec()].concat();
    // SAFETY: the program does not use arguments and environment any more; the latter is longer.
    unsafe {
        std::ptr::copy_nonoverlapping(title.as_ptr(), start as *mut u8, title.len());
    }
    loop {
        std::thread::park();
    }
}
