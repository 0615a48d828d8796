//! Kernels for arm64.

use std::arch::{asm, is_aarch64_feature_detected};

use crate::state::{Form, Kernel, Precision};

/// Defines a function that loads the registers, repeats the instructions, and stores the registers.
/// `$register` is the kind of register, `$size` their distance: in bytes or, with `$tail`, in
/// vectors.
macro_rules! code {
    ($name:ident, $start:literal, $register:literal, $size:literal, $tail:literal, [$($instruction:expr),*]) => {
        unsafe fn $name(state: *mut u8, iterations: u64) {
            // SAFETY: see `Kernel::code`.
            unsafe {
                asm!(
                    $start,
                    concat!("ldr ", $register, "16, [{state}, #0*{size}", $tail, "]"),
                    concat!("ldr ", $register, "17, [{state}, #1*{size}", $tail, "]"),
                    concat!("ldr ", $register, "18, [{state}, #2*{size}", $tail, "]"),
                    concat!("ldr ", $register, "19, [{state}, #3*{size}", $tail, "]"),
                    concat!("ldr ", $register, "20, [{state}, #4*{size}", $tail, "]"),
                    concat!("ldr ", $register, "21, [{state}, #5*{size}", $tail, "]"),
                    concat!("ldr ", $register, "22, [{state}, #6*{size}", $tail, "]"),
                    concat!("ldr ", $register, "23, [{state}, #7*{size}", $tail, "]"),
                    concat!("ldr ", $register, "24, [{state}, #8*{size}", $tail, "]"),
                    concat!("ldr ", $register, "25, [{state}, #9*{size}", $tail, "]"),
                    "2:",
                    $($instruction,)*
                    "subs {iterations}, {iterations}, #1",
                    "b.ne 2b",
                    concat!("str ", $register, "16, [{state}, #0*{size}", $tail, "]"),
                    concat!("str ", $register, "17, [{state}, #1*{size}", $tail, "]"),
                    concat!("str ", $register, "18, [{state}, #2*{size}", $tail, "]"),
                    concat!("str ", $register, "19, [{state}, #3*{size}", $tail, "]"),
                    concat!("str ", $register, "20, [{state}, #4*{size}", $tail, "]"),
                    concat!("str ", $register, "21, [{state}, #5*{size}", $tail, "]"),
                    concat!("str ", $register, "22, [{state}, #6*{size}", $tail, "]"),
                    concat!("str ", $register, "23, [{state}, #7*{size}", $tail, "]"),
                    state = in(reg) state,
                    iterations = inout(reg) iterations => _,
                    size = const $size,
                    out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _,
                    out("v21") _, out("v22") _, out("v23") _, out("v24") _, out("v25") _,
                    out("p0") _,
                    options(nostack),
                );
            }
        }
    };
}

/// The instruction on each x; `$shape` is the arrangement of a register, `$operands` the other
/// operands.
macro_rules! each {
    ($instruction:literal, $register:literal, $shape:literal, $operands:literal) => {
        each!($instruction, $register, $shape, $operands; "16" "17" "18" "19" "20" "21" "22" "23")
    };
    ($instruction:literal, $register:literal, $shape:literal, $operands:literal; $($x:literal)*) => {
        concat!($($instruction, " ", $register, $x, $shape, ", ", $operands, "\n"),*)
    };
}

/// The instruction on each x, with x as the first source operand as well.
macro_rules! twice {
    ($instruction:literal, $register:literal, $shape:literal, $operands:literal) => {
        twice!($instruction, $register, $shape, $operands; "16" "17" "18" "19" "20" "21" "22" "23")
    };
    ($instruction:literal, $register:literal, $shape:literal, $operands:literal; $($x:literal)*) => {
        concat!($(
            $instruction, " ", $register, $x, $shape, ", ", $register, $x, $shape, ", ", $operands, "\n"
        ),*)
    };
}

code!(
    scalar_sp,
    "",
    "s",
    4,
    "",
    [
        twice!("fmul", "s", "", "s24"),
        twice!("fadd", "s", "", "s25")
    ]
);
code!(
    scalar_dp,
    "",
    "d",
    8,
    "",
    [
        twice!("fmul", "d", "", "d24"),
        twice!("fadd", "d", "", "d25")
    ]
);
code!(
    fma_scalar_sp,
    "",
    "s",
    4,
    "",
    [twice!("fmadd", "s", "", "s24, s25")]
);
code!(
    fma_scalar_dp,
    "",
    "d",
    8,
    "",
    [twice!("fmadd", "d", "", "d24, d25")]
);
code!(
    neon_sp,
    "",
    "q",
    16,
    "",
    [
        twice!("fmul", "v", ".4s", "v24.4s"),
        twice!("fadd", "v", ".4s", "v25.4s")
    ]
);
code!(
    neon_dp,
    "",
    "q",
    16,
    "",
    [
        twice!("fmul", "v", ".2d", "v24.2d"),
        twice!("fadd", "v", ".2d", "v25.2d")
    ]
);
code!(
    fma_neon_sp,
    "",
    "q",
    16,
    "",
    [each!("fmla", "v", ".4s", "v24.4s, v25.4s")]
);
code!(
    fma_neon_dp,
    "",
    "q",
    16,
    "",
    [each!("fmla", "v", ".2d", "v24.2d, v25.2d")]
);
code!(
    fma_sve_sp,
    ".arch_extension sve\nptrue p0.s",
    "z",
    1,
    ", mul vl",
    [each!("fmad", "z", ".s", "p0/m, z24.s, z25.s")]
);
code!(
    fma_sve_dp,
    ".arch_extension sve\nptrue p0.d",
    "z",
    1,
    ", mul vl",
    [each!("fmad", "z", ".d", "p0/m, z24.d, z25.d")]
);

/// Length of an SVE vector in bytes; 0 without SVE.
fn sve_bytes() -> usize {
    if !is_aarch64_feature_detected!("sve") {
        return 0;
    }
    let bytes;
    // SAFETY: the machine has SVE.
    unsafe {
        asm!(
            ".arch_extension sve",
            "cntb {bytes}",
            bytes = out(reg) bytes,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    bytes
}

/// All kernels of this architecture, supported by this machine or not.
pub fn all() -> Vec<Kernel> {
    use Form::{Added, Fused, Two};
    use Precision::{Double, Single};
    macro_rules! kernel {
        ($name:literal, $precision:ident, $lanes:expr, $form:ident, $feature:tt, $code:ident) => {
            Kernel {
                name: $name,
                precision: $precision,
                lanes: || $lanes,
                form: $form,
                is_supported: || is_aarch64_feature_detected!($feature),
                code: $code,
            }
        };
    }
    vec![
        kernel!("scalar-sp", Single, 1, Two, "fp", scalar_sp),
        kernel!("scalar-dp", Double, 1, Two, "fp", scalar_dp),
        kernel!("fma-scalar-sp", Single, 1, Fused, "fp", fma_scalar_sp),
        kernel!("fma-scalar-dp", Double, 1, Fused, "fp", fma_scalar_dp),
        kernel!("neon-sp", Single, 4, Two, "neon", neon_sp),
        kernel!("neon-dp", Double, 2, Two, "neon", neon_dp),
        kernel!("fma-neon-sp", Single, 4, Added, "neon", fma_neon_sp),
        kernel!("fma-neon-dp", Double, 2, Added, "neon", fma_neon_dp),
        kernel!(
            "fma-sve-sp",
            Single,
            sve_bytes() / 4,
            Fused,
            "sve",
            fma_sve_sp
        ),
        kernel!(
            "fma-sve-dp",
            Double,
            sve_bytes() / 8,
            Fused,
            "sve",
            fma_sve_dp
        ),
    ]
}
