//! Statistics of the kernel about a program.

use std::os::fd::BorrowedFd;

use super::syscall::{Command, bpf, number};

/// Runs of a program since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs, while `kernel.bpf_stats_enabled` is on.
    pub runs: u64,
    /// Time of the runs, ns.
    pub run_ns: u64,
    /// Runs that were skipped because the program was already running on that CPU.
    pub missed: u64,
}

/// The first part of `struct bpf_prog_info` (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    /// Members from `type` to `prog_tags`.
    before: [u64; 24],
    run_time_ns: u64,
    run_cnt: u64,
    recursion_misses: u64,
}

const _: () = assert!(std::mem::offset_of!(ProgInfo, run_time_ns) == 192);

/// `union bpf_attr`, for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct InfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

/// Reads the statistics of a program.
pub fn stats(program: BorrowedFd<'_>) -> Option<Stats> {
    let mut info = ProgInfo::default();
    let mut attr = InfoAttr {
        fd: number(program),
        length: u32::try_from(size_of::<ProgInfo>()).ok()?,
        info: (&raw mut info) as u64,
    };
    // SAFETY: the attributes of the command, and `info` of that length, whose arrays have length 0.
    unsafe { bpf(Command::ObjGetInfoByFd, &mut attr) }.ok()?;
    Some(Stats {
        runs: info.run_cnt,
        run_ns: info.run_time_ns,
        missed: info.recursion_misses,
    })
}
