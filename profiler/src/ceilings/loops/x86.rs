//! Kernels for x86-64.

use std::arch::{asm, is_x86_feature_detected};

use super::kernel::{Form, Kernel, Precision};

/// Registers for the values x: enough for two instructions per cycle with a latency of six cycles.
pub const REGISTERS: usize = 12;

/// Lines of a macro, one for each register that holds an x.
macro_rules! for_each_x {
    ($line:ident $arguments:tt) => {
        for_each_x!($line $arguments; "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11")
    };
    ($line:ident $arguments:tt; $($x:literal)*) => {
        concat!($($line!($x $arguments), "\n"),*)
    };
}

/// Loads a register from its place in the state.
macro_rules! load {
    ($x:literal ($load:literal $register:literal)) => {
        concat!($load, " ", $register, $x, ", [{state} + {size}*", $x, "]")
    };
}

/// Stores a register.
macro_rules! store {
    ($x:literal ($load:literal $register:literal)) => {
        concat!($load, " [{state} + {size}*", $x, "], ", $register, $x)
    };
}

/// x = x op register, with SSE's two operands.
macro_rules! two {
    ($x:literal ($instruction:literal $register:literal $operand:literal)) => {
        concat!($instruction, " ", $register, $x, ", ", $register, $operand)
    };
    ($($argument:literal),*) => { for_each_x!(two ($($argument)*)) };
}

/// x = x op register, with AVX's three operands.
macro_rules! three {
    ($x:literal ($instruction:literal $register:literal $operand:literal)) => {
        concat!($instruction, " ", $register, $x, ", ", $register, $x, ", ", $register, $operand)
    };
    ($($argument:literal),*) => { for_each_x!(three ($($argument)*)) };
}

/// x = x * m + c.
macro_rules! fused {
    ($x:literal ($instruction:literal $register:literal)) => {
        concat!($instruction, " ", $register, $x, ", ", $register, "12, ", $register, "13")
    };
    ($($argument:literal),*) => { for_each_x!(fused ($($argument)*)) };
}

/// Defines a function that loads the registers, repeats the instructions, and stores the registers.
/// `$register` is the kind of register, `$size` its size in bytes.
macro_rules! code {
    ($name:ident, $register:literal, $size:literal, $load:literal, [$($instruction:expr),*], $end:literal) => {
        unsafe fn $name(state: *mut u8, iterations: u64) {
            // SAFETY: see `Kernel::code`.
            unsafe {
                asm!(
                    for_each_x!(load ($load $register)),
                    load!("12" ($load $register)),
                    load!("13" ($load $register)),
                    "2:",
                    $($instruction,)*
                    "dec {iterations}",
                    "jnz 2b",
                    for_each_x!(store ($load $register)),
                    $end,
                    state = in(reg) state,
                    iterations = inout(reg) iterations => _,
                    size = const $size,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                    out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                    out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                    options(nostack),
                );
            }
        }
    };
}

code!(
    scalar_sp,
    "xmm",
    4,
    "movss",
    [two!("mulss", "xmm", "12"), two!("addss", "xmm", "13")],
    ""
);
code!(
    scalar_dp,
    "xmm",
    8,
    "movsd",
    [two!("mulsd", "xmm", "12"), two!("addsd", "xmm", "13")],
    ""
);
code!(
    sse_sp,
    "xmm",
    16,
    "movups",
    [two!("mulps", "xmm", "12"), two!("addps", "xmm", "13")],
    ""
);
code!(
    sse_dp,
    "xmm",
    16,
    "movupd",
    [two!("mulpd", "xmm", "12"), two!("addpd", "xmm", "13")],
    ""
);
code!(
    avx_sp,
    "ymm",
    32,
    "vmovups",
    [three!("vmulps", "ymm", "12"), three!("vaddps", "ymm", "13")],
    "vzeroupper"
);
code!(
    avx_dp,
    "ymm",
    32,
    "vmovupd",
    [three!("vmulpd", "ymm", "12"), three!("vaddpd", "ymm", "13")],
    "vzeroupper"
);
code!(
    fma_scalar_sp,
    "xmm",
    4,
    "vmovss",
    [fused!("vfmadd213ss", "xmm")],
    "vzeroupper"
);
code!(
    fma_scalar_dp,
    "xmm",
    8,
    "vmovsd",
    [fused!("vfmadd213sd", "xmm")],
    "vzeroupper"
);
code!(
    fma_sp,
    "ymm",
    32,
    "vmovups",
    [fused!("vfmadd213ps", "ymm")],
    "vzeroupper"
);
code!(
    fma_dp,
    "ymm",
    32,
    "vmovupd",
    [fused!("vfmadd213pd", "ymm")],
    "vzeroupper"
);
code!(
    avx512_sp,
    "zmm",
    64,
    "vmovups",
    [three!("vmulps", "zmm", "12"), three!("vaddps", "zmm", "13")],
    "vzeroupper"
);
code!(
    avx512_dp,
    "zmm",
    64,
    "vmovupd",
    [three!("vmulpd", "zmm", "12"), three!("vaddpd", "zmm", "13")],
    "vzeroupper"
);
code!(
    fma512_sp,
    "zmm",
    64,
    "vmovups",
    [fused!("vfmadd213ps", "zmm")],
    "vzeroupper"
);
code!(
    fma512_dp,
    "zmm",
    64,
    "vmovupd",
    [fused!("vfmadd213pd", "zmm")],
    "vzeroupper"
);

/// All kernels of this architecture, supported by this machine or not.
pub fn all() -> Vec<Kernel> {
    use Form::{Fused, Two};
    use Precision::{Double, Single};
    macro_rules! kernel {
        ($name:literal, $precision:ident, $lanes:literal, $form:ident, $feature:tt, $code:ident) => {
            Kernel {
                name: $name,
                precision: $precision,
                lanes: || $lanes,
                form: $form,
                is_supported: || is_x86_feature_detected!($feature),
                code: $code,
            }
        };
    }
    vec![
        kernel!("scalar-sp", Single, 1, Two, "sse2", scalar_sp),
        kernel!("scalar-dp", Double, 1, Two, "sse2", scalar_dp),
        kernel!("sse-sp", Single, 4, Two, "sse2", sse_sp),
        kernel!("sse-dp", Double, 2, Two, "sse2", sse_dp),
        kernel!("avx-sp", Single, 8, Two, "avx", avx_sp),
        kernel!("avx-dp", Double, 4, Two, "avx", avx_dp),
        kernel!("fma-scalar-sp", Single, 1, Fused, "fma", fma_scalar_sp),
        kernel!("fma-scalar-dp", Double, 1, Fused, "fma", fma_scalar_dp),
        kernel!("fma-avx2-sp", Single, 8, Fused, "fma", fma_sp),
        kernel!("fma-avx2-dp", Double, 4, Fused, "fma", fma_dp),
        kernel!("avx512-sp", Single, 16, Two, "avx512f", avx512_sp),
        kernel!("avx512-dp", Double, 8, Two, "avx512f", avx512_dp),
        kernel!("fma-avx512-sp", Single, 16, Fused, "avx512f", fma512_sp),
        kernel!("fma-avx512-dp", Double, 8, Fused, "avx512f", fma512_dp),
    ]
}
