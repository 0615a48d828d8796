//! Kernels for x86-64.

use std::arch::{asm, is_x86_feature_detected};

use crate::state::{Form, Kernel, Precision};

/// Defines a function that loads the registers, repeats the instructions, and stores the registers.
/// `$register` is the kind of register, `$size` its size in bytes.
macro_rules! code {
    ($name:ident, $register:literal, $size:literal, $load:literal, [$($instruction:expr),*], $end:literal) => {
        unsafe fn $name(state: *mut u8, iterations: u64) {
            // SAFETY: see `Kernel::code`.
            unsafe {
                asm!(
                    concat!($load, " ", $register, "0, [{state}]"),
                    concat!($load, " ", $register, "1, [{state} + 1*{size}]"),
                    concat!($load, " ", $register, "2, [{state} + 2*{size}]"),
                    concat!($load, " ", $register, "3, [{state} + 3*{size}]"),
                    concat!($load, " ", $register, "4, [{state} + 4*{size}]"),
                    concat!($load, " ", $register, "5, [{state} + 5*{size}]"),
                    concat!($load, " ", $register, "6, [{state} + 6*{size}]"),
                    concat!($load, " ", $register, "7, [{state} + 7*{size}]"),
                    concat!($load, " ", $register, "8, [{state} + 8*{size}]"),
                    concat!($load, " ", $register, "9, [{state} + 9*{size}]"),
                    "2:",
                    $($instruction,)*
                    "dec {iterations}",
                    "jnz 2b",
                    concat!($load, " [{state}], ", $register, "0"),
                    concat!($load, " [{state} + 1*{size}], ", $register, "1"),
                    concat!($load, " [{state} + 2*{size}], ", $register, "2"),
                    concat!($load, " [{state} + 3*{size}], ", $register, "3"),
                    concat!($load, " [{state} + 4*{size}], ", $register, "4"),
                    concat!($load, " [{state} + 5*{size}], ", $register, "5"),
                    concat!($load, " [{state} + 6*{size}], ", $register, "6"),
                    concat!($load, " [{state} + 7*{size}], ", $register, "7"),
                    $end,
                    state = in(reg) state,
                    iterations = inout(reg) iterations => _,
                    size = const $size,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                    out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                    options(nostack),
                );
            }
        }
    };
}

/// x = x op register, with SSE's two operands.
macro_rules! two {
    ($instruction:literal, $register:literal, $operand:literal) => {
        two!($instruction, $register, $operand; "0" "1" "2" "3" "4" "5" "6" "7")
    };
    ($instruction:literal, $register:literal, $operand:literal; $($x:literal)*) => {
        concat!($($instruction, " ", $register, $x, ", ", $register, $operand, "\n"),*)
    };
}

/// x = x op register, with AVX's three operands.
macro_rules! three {
    ($instruction:literal, $register:literal, $operand:literal) => {
        three!($instruction, $register, $operand; "0" "1" "2" "3" "4" "5" "6" "7")
    };
    ($instruction:literal, $register:literal, $operand:literal; $($x:literal)*) => {
        concat!($(
            $instruction, " ", $register, $x, ", ", $register, $x, ", ", $register, $operand, "\n"
        ),*)
    };
}

/// x = x * m + c.
macro_rules! fused {
    ($instruction:literal, $register:literal) => {
        fused!($instruction, $register; "0" "1" "2" "3" "4" "5" "6" "7")
    };
    ($instruction:literal, $register:literal; $($x:literal)*) => {
        concat!($(
            $instruction, " ", $register, $x, ", ", $register, "8, ", $register, "9\n"
        ),*)
    };
}

code!(
    scalar_sp,
    "xmm",
    4,
    "movss",
    [two!("mulss", "xmm", "8"), two!("addss", "xmm", "9")],
    ""
);
code!(
    scalar_dp,
    "xmm",
    8,
    "movsd",
    [two!("mulsd", "xmm", "8"), two!("addsd", "xmm", "9")],
    ""
);
code!(
    sse_sp,
    "xmm",
    16,
    "movups",
    [two!("mulps", "xmm", "8"), two!("addps", "xmm", "9")],
    ""
);
code!(
    sse_dp,
    "xmm",
    16,
    "movupd",
    [two!("mulpd", "xmm", "8"), two!("addpd", "xmm", "9")],
    ""
);
code!(
    avx_sp,
    "ymm",
    32,
    "vmovups",
    [three!("vmulps", "ymm", "8"), three!("vaddps", "ymm", "9")],
    "vzeroupper"
);
code!(
    avx_dp,
    "ymm",
    32,
    "vmovupd",
    [three!("vmulpd", "ymm", "8"), three!("vaddpd", "ymm", "9")],
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
    [three!("vmulps", "zmm", "8"), three!("vaddps", "zmm", "9")],
    "vzeroupper"
);
code!(
    avx512_dp,
    "zmm",
    64,
    "vmovupd",
    [three!("vmulpd", "zmm", "8"), three!("vaddpd", "zmm", "9")],
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
