//! A known number of instructions.

use std::arch::asm;

/// Instructions per round.
const PER_ROUND: u64 = 2;

/// Executes two instructions `rounds` times, one of them a branch; returns the number of
/// instructions.
pub fn spin(rounds: u64) -> u64 {
    if rounds == 0 {
        return 0;
    }
    let mut left = rounds;
    // SAFETY: only decrements a register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("2:", "dec {left}", "jnz 2b", left = inout(reg) left, options(nomem, nostack));
        #[cfg(target_arch = "aarch64")]
        asm!("2:", "subs {left}, {left}, #1", "b.ne 2b", left = inout(reg) left, options(nomem, nostack));
    }
    assert_eq!(left, 0);
    rounds * PER_ROUND
}
