//! Gauges of a process: memory, threads, file descriptors, state.

/// Memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident.
    pub rss: u64,
    /// Resident pages of files and of shared memory.
    pub shared: u64,
    /// Swapped out (`VmSwap`).
    pub swap: u64,
    /// Address space.
    pub vms: u64,
    /// Text of the program.
    pub text: u64,
    /// Data and stack.
    pub data: u64,
}

/// Values of the last reading.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub(super) memory: Option<Memory>,
    pub(super) threads: Option<u32>,
    pub(super) fds: Option<u32>,
    pub(super) cpu: Option<u32>,
    /// As [`state_letter`]; empty without a reading.
    pub(super) state: &'static str,
}

/// Bits of `task_struct.__state` or `exit_state` for a letter in `/proc/PID/stat`.
pub(super) fn state_of_letter(letter: char) -> u32 {
    match letter {
        'S' => 0x1,
        'D' => 0x2,
        'T' => 0x4,
        't' => 0x8,
        'X' => 0x10,
        'Z' => 0x20,
        'P' => 0x40,
        'I' => 0x402,
        // The kernel names all other states R.
        _ => 0,
    }
}

/// State letter as in `/proc/PID/stat` (`get_task_state` in fs/proc/array.c).
pub(super) fn state_letter(state: u32, exit_state: u32) -> &'static str {
    const TASK_IDLE: u32 = 0x402;
    const TASK_REPORT: u32 = 0x7f;
    if state & TASK_IDLE == TASK_IDLE {
        return "I";
    }
    match u32::BITS - ((state | exit_state) & TASK_REPORT).leading_zeros() {
        0 => "R",
        1 => "S",
        2 => "D",
        3 => "T",
        4 => "t",
        5 => "X",
        6 => "Z",
        _ => "P",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `task_state_array` in fs/proc/array.c.
    #[test]
    fn letters_of_the_kernel_are_kept() {
        for letter in "RSDTtXZPI".chars() {
            assert_eq!(state_letter(state_of_letter(letter), 0), letter.to_string());
        }
    }
}
