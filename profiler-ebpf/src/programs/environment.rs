//! Variables of an environment that name the batch job, step and rank of a program. Other variables
//! are not sent.

use aya_ebpf::helpers::generated::bpf_probe_read_user_str;

use super::{
    kernel::{Object, Task, offset, repeat},
    lifecycle::{Wakeup, send},
    scratch::{VARIABLE_SPACE, scratch},
};
use crate::event::{self, Environment, VARIABLE_MAX, VARIABLES};

/// Limit of the variables that are searched. A usual environment has some dozens.
const STRINGS_MAX: u32 = 1024;
/// The same without bpf_loop.
const STRINGS_MAX_UNROLLED: u32 = 256;

/// Reports the variables of the program that the current task, with the memory `mm`, is about to
/// run.
#[inline(always)]
pub fn report(task: Task, mm: Object) {
    let Some(scratch) = scratch() else { return };
    let environment = &mut scratch.environment;
    environment.kind = event::ENVIRONMENT;
    environment.pid = task.visible_pid();
    environment.start_boottime = task.leader().start();
    scratch.scan = Scan {
        address: mm.get(offset!(mm_env_start)),
        end: mm.get(offset!(mm_env_end)),
        count: 0,
        in_string: 0,
    };
    repeat::<STRINGS_MAX_UNROLLED, _>(STRINGS_MAX, check_string, &mut ());
    environment.truncated = u32::from(scratch.scan.address < scratch.scan.end);
    let count = if scratch.scan.count < VARIABLES.len() as u32 {
        scratch.scan.count
    } else {
        VARIABLES.len() as u32
    };
    environment.count = count;
    if count != 0 || environment.truncated != 0 {
        let size = Environment::HEADER as u64 + u64::from(count) * VARIABLE_MAX as u64;
        send(&raw const *environment, size, Wakeup::WhenHalfFull);
    }
}

/// State of the search. It is not on the stack, where the verifier would distinguish its values and
/// check each iteration of a loop with each of them.
#[repr(C)]
pub struct Scan {
    address: u64,
    end: u64,
    count: u32,
    /// Whether the address is inside a string that was too long for the buffer.
    in_string: u32,
}

/// Checks one string, or a part of one.
extern "C" fn check_string(_: u64, (): &mut ()) -> i64 {
    let Some(scratch) = scratch() else { return 1 };
    let scan = &mut scratch.scan;
    if scan.address >= scan.end {
        return 1;
    }
    let variable = &mut scratch.variable;
    let length = read_string(variable.as_mut_ptr().cast(), VARIABLE_SPACE as u32, scan);
    if length <= 0 {
        return 1;
    }
    let is_start = scan.in_string == 0;
    let index = scan.count;
    if is_start && is_job_variable(variable) && index < VARIABLES.len() as u32 {
        let to = &mut scratch.environment.variables[index as usize];
        read_string(to.as_mut_ptr(), VARIABLE_MAX as u32, scan);
        scan.count = index + 1;
    }
    // If the string was too long, the helper has put the NUL in place of its next byte.
    scan.in_string = u32::from(length == VARIABLE_SPACE as i64);
    scan.address += length as u64 - u64::from(scan.in_string);
    0
}

#[inline(always)]
fn read_string(to: *mut u8, size: u32, scan: &Scan) -> i64 {
    // SAFETY: `to` has `size` bytes. The helper checks the address, which is in the memory of the
    // current task.
    unsafe { bpf_probe_read_user_str(to.cast(), size, scan.address as *const _) }
}

/// [`VARIABLES`] with their `=`, as words, and a mask of their bytes.
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
        let (mut part, mut at) = ([0; 8], 0);
        while at < 8 {
            part[at] = bytes[word * 8 + at];
            at += 1;
        }
        words[word] = u64::from_ne_bytes(part);
        word += 1;
    }
    words
}

#[inline(always)]
fn is_job_variable(variable: &[u64; VARIABLE_SPACE / 8]) -> bool {
    let mut found = false;
    let mut name = 0;
    while name < NAMES.len() {
        let (text, mask) = NAMES[name];
        found |= variable[0] & mask[0] == text[0]
            && variable[1] & mask[1] == text[1]
            && variable[2] & mask[2] == text[2];
        name += 1;
    }
    found
}
