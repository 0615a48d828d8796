//! Whether an error in a table would be noticed: every bit of the event code and the unit mask is flipped, one at a time.

use perfevents::{Event, Uarch};

use super::libpfm::Libpfm;

/// How many of how many errors the comparison tells.
pub fn caught(libpfm: &Libpfm, events: &[(&Uarch, &str, &Event)]) -> (usize, usize) {
    let (mut caught, mut errors) = (0, 0);
    for (uarch, name, event) in events {
        let Some(theirs) = libpfm.compare(uarch, name, event) else {
            continue;
        };
        for field in ["event", "umask"] {
            for bit in 0..u8::BITS {
                let mut wrong = (*event).clone();
                *wrong.code.entry(field.to_owned()).or_default() ^= 1 << bit;
                errors += 1;
                caught += usize::from(!theirs.agrees(&wrong));
            }
        }
    }
    (caught, errors)
}
