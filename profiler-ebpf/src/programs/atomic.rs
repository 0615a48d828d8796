//! Atomic operations on words that several CPUs write.

use core::arch::asm;

/// Adds `value` to a counter.
#[inline(always)]
pub fn add(counter: &mut u64, value: u64) {
    let counter: *mut u64 = counter;
    // SAFETY: aligned, and valid as long as the reference.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {value}", counter = in(reg) counter, value = in(reg) value);
    }
}

/// Replaces `old` by `new` unless the word has changed; returns its previous value.
#[inline(always)]
pub fn compare_exchange(word: &mut u64, old: u64, new: u64) -> u64 {
    let word: *mut u64 = word;
    let mut found = old;
    // SAFETY: aligned, and valid as long as the reference. The instruction uses r0.
    unsafe {
        asm!("r0 = cmpxchg_64({word} + 0, r0, {new})",
            word = in(reg) word, new = in(reg) new, inout("r0") found);
    }
    found
}

/// Subtracts one and returns the result; a full memory barrier.
#[inline(always)]
pub fn decrement(counter: &mut u64) -> u64 {
    let counter: *mut u64 = counter;
    let mut value = u64::MAX;
    // SAFETY: aligned, and valid as long as the reference. An atomic operation that returns the old
    // value is a full barrier.
    unsafe {
        asm!("{value} = atomic_fetch_add((u64 *)({counter} + 0), {value})",
            counter = in(reg) counter, value = inout(reg) value);
    }
    value.wrapping_sub(1)
}
