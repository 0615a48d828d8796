//! Kernels for arm64.

use std::arch::{asm, is_aarch64_feature_detected};

use super::kernel::{Form, Kernel, Precision};

/// Registers for the values x: enough for four instructions per cycle with a latency of six cycles.
pub const REGISTERS: usize = 24;

/// Lines of a macro, one for each register that holds an x.
macro_rules! for_each_x {
    ($line:ident $arguments:tt) => {
        for_each_x!(
            $line $arguments;
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11"
            "12" "13" "14" "15" "16" "17" "18" "19" "20" "21" "22" "23"
        )
    };
    ($line:ident $arguments:tt; $($x:literal)*) => {
        concat!($($line!($x $arguments), "\n"),*)
    };
}

/// Loads a register from its place in the state, or stores it.
macro_rules! transfer {
    ($x:literal ($instruction:literal $register:literal $tail:literal)) => {
        concat!(
            $instruction,
            " ",
            $register,
            $x,
            ", [{state}, #{size}*",
            $x,
            $tail,
            "]"
        )
    };
}

/// The instruction on each x; `$shape` is the arrangement of a register, `$operands` the other
/// operands.
macro_rules! each {
    ($x:literal ($instruction:literal $register:literal $shape:literal $operands:literal)) => {
        concat!($instruction, " ", $register, $x, $shape, ", ", $operands)
    };
    ($($argument:literal),*) => { for_each_x!(each ($($argument)*)) };
}

/// The instruction on each x, with x as the first source operand as well.
macro_rules! twice {
    ($x:literal ($instruction:literal $register:literal $shape:literal $operands:literal)) => {
        concat!(
            $instruction, " ", $register, $x, $shape, ", ", $register, $x, $shape, ", ", $operands
        )
    };
    ($($argument:literal),*) => { for_each_x!(twice ($($argument)*)) };
}

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
                    for_each_x!(transfer ("ldr" $register $tail)),
                    transfer!("24" ("ldr" $register $tail)),
                    transfer!("25" ("ldr" $register $tail)),
                    "2:",
                    $($instruction,)*
                    "subs {iterations}, {iterations}, #1",
                    "b.ne 2b",
                    for_each_x!(transfer ("str" $register $tail)),
                    state = in(reg) state,
                    iterations = inout(reg) iterations => _,
                    size = const $size,
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
                    out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                    out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _,
                    out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _,
                    out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("p0") _,
                    options(nostack),
                );
            }
        }
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
