//! Reads memory with the widest vectors of the CPU. Written in assembly, because a compiler removes
//! loads of values that are not used.

use std::arch::asm;

/// Bytes read in one iteration of the longest loop.
const BLOCK: usize = 512;

/// A part of memory, aligned so that no vector lies in two lines of a cache.
#[derive(Clone)]
#[repr(align(64))]
struct Block(#[expect(dead_code, reason = "read by address")] [u8; BLOCK]);

/// Memory that is read.
pub struct Loads {
    blocks: Vec<Block>,
    pass: unsafe fn(*const u8, usize),
}

impl Loads {
    /// With at least this number of bytes. They are written here, so that the pages are allocated
    /// before the measurement, and near this CPU.
    pub fn new(bytes: usize) -> Self {
        Self {
            blocks: vec![Block([1; BLOCK]); bytes.div_ceil(BLOCK).max(1)],
            pass: widest(),
        }
    }

    /// Bytes read in one iteration.
    pub fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK) as u64
    }

    pub fn run(&self, iterations: u64) {
        for _ in 0..iterations {
            // SAFETY: all bytes are in the blocks, and the CPU has the instructions.
            unsafe { (self.pass)(self.blocks.as_ptr().cast(), self.blocks.len() * BLOCK) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn widest() -> unsafe fn(*const u8, usize) {
    use std::arch::is_x86_feature_detected;
    if is_x86_feature_detected!("avx512f") {
        load_avx512
    } else if is_x86_feature_detected!("avx") {
        load_avx
    } else {
        load_sse
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! loads {
    ($name:ident, $load:literal, $register:literal, $size:literal, $end:literal) => {
        loads!($name, $load, $register, $size, $end; "0" "1" "2" "3" "4" "5" "6" "7");
    };
    ($name:ident, $load:literal, $register:literal, $size:literal, $end:literal; $($x:literal)*) => {
        /// Reads `bytes`, a positive multiple of [`BLOCK`].
        ///
        /// # Safety
        ///
        /// The bytes can be read, their start is aligned, and the CPU has the instruction.
        unsafe fn $name(start: *const u8, bytes: usize) {
            // SAFETY: the caller's.
            unsafe {
                asm!(
                    "2:",
                    $(concat!($load, " ", $register, $x, ", [{at} + {size}*", $x, "]"),)*
                    "add {at}, {size}*8",
                    "cmp {at}, {end}",
                    "jb 2b",
                    $end,
                    at = inout(reg) start => _,
                    end = in(reg) start.wrapping_add(bytes),
                    size = const $size,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
loads!(load_sse, "movaps", "xmm", 16, "");
#[cfg(target_arch = "x86_64")]
loads!(load_avx, "vmovaps", "ymm", 32, "vzeroupper");
#[cfg(target_arch = "x86_64")]
loads!(load_avx512, "vmovaps", "zmm", 64, "vzeroupper");

#[cfg(target_arch = "aarch64")]
fn widest() -> unsafe fn(*const u8, usize) {
    load_neon
}

/// Reads `bytes`, a positive multiple of [`BLOCK`].
///
/// # Safety
///
/// The bytes can be read.
#[cfg(target_arch = "aarch64")]
unsafe fn load_neon(start: *const u8, bytes: usize) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "2:",
            "ldp q0, q1, [{at}]",
            "ldp q2, q3, [{at}, #32]",
            "ldp q4, q5, [{at}, #64]",
            "ldp q6, q7, [{at}, #96]",
            "add {at}, {at}, #128",
            "cmp {at}, {end}",
            "b.lo 2b",
            at = inout(reg) start => _,
            end = in(reg) start.wrapping_add(bytes),
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            out("v4") _, out("v5") _, out("v6") _, out("v7") _,
            options(nostack, readonly),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The loop ends at the last block: one more page is not there to be read.
    #[test]
    fn loads_end_with_the_memory() {
        for bytes in [1, BLOCK, 4096 - BLOCK, 1 << 20] {
            let loads = Loads::new(bytes);
            assert_eq!(loads.bytes(), bytes.next_multiple_of(BLOCK) as u64);
            loads.run(2);
        }
    }

    /// A loop that a compiler had removed would take no time.
    #[test]
    fn more_bytes_take_more_time() {
        let loads = Loads::new(1 << 14);
        let time = |iterations| {
            let times = (0..5).map(|_| {
                let start = Instant::now();
                loads.run(iterations);
                start.elapsed()
            });
            times.min().expect("five")
        };
        let (few, many) = (time(1_000), time(8_000));
        assert!(many > 4 * few, "{few:?}, {many:?}");
        // No core reads more than 1 TB/s.
        assert!(
            many.as_secs_f64() > 8_000.0 * f64::from(1 << 14) / 1e12,
            "{many:?}"
        );
    }
}
