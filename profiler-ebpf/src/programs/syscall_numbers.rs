//! Numbers and arguments of system calls on files and sockets. A call that the architecture does
//! not have gets an unused number.

use super::kernel::{Object, offset};

/// Set in the numbers of x32.
pub const X32_BIT: u32 = if cfg!(bpf_target_arch = "x86_64") {
    1 << 30
} else {
    0
};

macro_rules! numbers {
    ($($name:ident = $x86_64:literal, $aarch64:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: u32 = if cfg!(bpf_target_arch = "x86_64") {
                $x86_64
            } else {
                $aarch64
            };
        )*
    };
}

numbers! {
    READ = 0, 63;
    WRITE = 1, 64;
    OPEN = 2, 0xffff_0001;
    RT_SIGRETURN = 15, 139;
    PREAD64 = 17, 67;
    PWRITE64 = 18, 68;
    READV = 19, 65;
    WRITEV = 20, 66;
    SENDFILE = 40, 71;
    GETSOCKOPT = 55, 209;
    FSYNC = 74, 82;
    FDATASYNC = 75, 83;
    RENAME = 82, 0xffff_0002;
    MKDIR = 83, 0xffff_0003;
    RMDIR = 84, 0xffff_0004;
    CREAT = 85, 0xffff_0005;
    UNLINK = 87, 0xffff_0006;
    OPENAT = 257, 56;
    MKDIRAT = 258, 34;
    UNLINKAT = 263, 35;
    RENAMEAT = 264, 38;
    SPLICE = 275, 76;
    PREADV = 295, 69;
    PWRITEV = 296, 70;
    RENAMEAT2 = 316, 276;
    COPY_FILE_RANGE = 326, 285;
    PREADV2 = 327, 286;
    PWRITEV2 = 328, 287;
    OPENAT2 = 437, 437;
}

/// Argument `index` (0 to 2) of the call that starts.
#[inline(always)]
pub fn argument(regs: Object, index: u32) -> u64 {
    if cfg!(bpf_target_arch = "x86_64") {
        match index {
            0 => regs.get(offset!(regs_di)),
            1 => regs.get(offset!(regs_si)),
            _ => regs.get(offset!(regs_dx)),
        }
    } else if index == 0 {
        regs.get(offset!(regs_orig_x0))
    } else {
        regs.get(offset!(regs_regs) + 8 * index)
    }
}
