//! A command line longer than the machine's memory. A process can move its arguments within its
//! address space with `prctl(PR_SET_MM_MAP)`.

use std::{fs, io::Read as _, ptr};

/// linux/prctl.h
#[repr(C)]
struct PrctlMmMap {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arg_start: u64,
    arg_end: u64,
    env_start: u64,
    env_end: u64,
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

const PR_SET_MM: i32 = 35;
const PR_SET_MM_MAP: libc::c_ulong = 14;

/// Uses `bytes` zeros, which occupy no memory, as arguments and environment of this process, and
/// waits for the end of stdin.
pub fn main(bytes: usize) {
    // SAFETY: a new private mapping.
    let zeros = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(
        zeros,
        libc::MAP_FAILED,
        "{}",
        std::io::Error::last_os_error()
    );
    let stat = fs::read_to_string("/proc/self/stat").expect("stat");
    let (_, after_name) = stat.rsplit_once(')').expect("a name");
    // proc_pid_stat(5) numbers fields from 1; the field after the name is the third.
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |number: usize| -> u64 { fields[number - 3].parse().expect("a number") };
    let start = zeros.addr() as u64;
    let end = start + bytes as u64;
    // SAFETY: an increment of 0 only returns the end of the heap.
    let brk = unsafe { libc::sbrk(0) };
    let map = PrctlMmMap {
        start_code: field(26),
        end_code: field(27),
        start_data: field(45),
        end_data: field(46),
        start_brk: field(47),
        brk: brk.addr() as u64,
        start_stack: field(28),
        arg_start: start,
        arg_end: end,
        env_start: start,
        env_end: end,
        auxv: 0,
        auxv_size: 0,
        exe_fd: u32::MAX,
    };
    // SAFETY: only arguments and environment change, to a mapping of this process.
    let result = unsafe {
        libc::prctl(
            PR_SET_MM,
            PR_SET_MM_MAP,
            &raw const map,
            size_of::<PrctlMmMap>(),
            0,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    super::acknowledge();
    let _ = std::io::stdin().read(&mut [0]);
}
