//! Which batch job, step and rank a program is started for: what its environment says of that, and nothing else of it.

use aya_ebpf::helpers::generated::bpf_probe_read_user_str;

use super::{
    kernel::{Object, Task, offset, repeat},
    lifecycle::send,
    maps::{VARIABLE_ROOM, scratch},
};
use crate::wire::{ENVIRONMENT_HEADER, VARIABLE_MAX, VARIABLES, event};

/// Strings that are looked at; an environment has some dozens.
const STRINGS_MAX: u32 = 1024;

/// Tells the variables of the program that the current task, with the memory `mm`, is about to run.
#[inline(always)]
pub fn report(task: Task, mm: Object) {
    let Some(scratch) = scratch() else { return };
    let environment = &mut scratch.environment;
    environment.event = event::ENVIRONMENT;
    environment.pid = task.visible_pid();
    environment.start_boottime = task.leader().start();
    let mut scan = Scan {
        address: mm.get(offset!(mm_env_start)),
        end: mm.get(offset!(mm_env_end)),
        count: 0,
        inside: 0,
    };
    repeat(STRINGS_MAX, look, &mut scan);
    environment.torn = u32::from(scan.address < scan.end);
    let count = if scan.count < VARIABLES.len() as u32 {
        scan.count
    } else {
        VARIABLES.len() as u32
    };
    environment.count = count;
    if count != 0 || environment.torn != 0 {
        let size = ENVIRONMENT_HEADER as u64 + u64::from(count) * VARIABLE_MAX as u64;
        send(&raw const *environment, size, false);
    }
}

/// How far the environment was looked at.
struct Scan {
    address: u64,
    end: u64,
    count: u32,
    /// Whether the address is within a string that had no room.
    inside: u32,
}

/// Looks at one string.
extern "C" fn look(_: u64, scan: &mut Scan) -> i64 {
    let Some(scratch) = scratch() else { return 1 };
    if scan.address >= scan.end {
        return 1;
    }
    let variable = &mut scratch.variable;
    let length = read_string(variable.as_mut_ptr().cast(), VARIABLE_ROOM as u32, scan);
    if length <= 0 {
        return 1;
    }
    let begins = scan.inside == 0;
    let place = scan.count;
    if begins && is_wanted(variable) && place < VARIABLES.len() as u32 {
        let to = &mut scratch.environment.variables[place as usize];
        read_string(to.as_mut_ptr(), VARIABLE_MAX as u32, scan);
        scan.count = place + 1;
    }
    // The last byte of what had no room is a NUL that is not there.
    scan.inside = u32::from(length == VARIABLE_ROOM as i64);
    scan.address += length as u64 - u64::from(scan.inside);
    0
}

#[inline(always)]
fn read_string(to: *mut u8, room: u32, scan: &Scan) -> i64 {
    // SAFETY: there is that much room; the helper checks the address, which is in the memory of the current task.
    unsafe { bpf_probe_read_user_str(to.cast(), room, scan.address as *const _) }
}

/// The beginnings of [`VARIABLES`] with their `=`, as words, and which of their bytes count.
const NAMES: [([u64; 3], [u64; 3]); VARIABLES.len()] = {
    let mut names = [([0; 3], [0; 3]); VARIABLES.len()];
    let mut name = 0;
    while name < names.len() {
        let text = VARIABLES[name].as_bytes();
        let (mut bytes, mut mask) = ([0; 24], [0; 24]);
        let mut at = 0;
        while at <= text.len() {
            bytes[at] = if at < text.len() { text[at] } else { b'=' };
            mask[at] = 0xff;
            at += 1;
        }
        names[name] = (words(&bytes), words(&mask));
        name += 1;
    }
    names
};

const fn words(bytes: &[u8; 24]) -> [u64; 3] {
    let mut words = [0; 3];
    let mut word = 0;
    while word < 3 {
        let (mut of, mut at) = ([0; 8], 0);
        while at < 8 {
            of[at] = bytes[word * 8 + at];
            at += 1;
        }
        words[word] = u64::from_ne_bytes(of);
        word += 1;
    }
    words
}

#[inline(always)]
fn is_wanted(variable: &[u64; VARIABLE_ROOM / 8]) -> bool {
    let mut wanted = false;
    let mut name = 0;
    while name < NAMES.len() {
        let (text, mask) = NAMES[name];
        wanted |= variable[0] & mask[0] == text[0]
            && variable[1] & mask[1] == text[1]
            && variable[2] & mask[2] == text[2];
        name += 1;
    }
    wanted
}
