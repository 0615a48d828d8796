//! Messages of a task: bytes and calls by class, in the storage of the task, where they need neither
//! a hash nor an atomic operation. Readings, and the end of the task, add them to `NET_IO`.

use super::Direction;
use crate::{
    maps::{MESSAGES, Messages, TASKS},
    per_key::{
        NetIo, Owner,
        net::{class, family_of, protocol_of, scope_of},
    },
    programs::{
        atomic::{add, compare_exchange},
        kernel::{Task, repeat},
        maps::{count_drop, count_drops, current},
        per_key::{find_or_insert, key},
    },
};

const FAMILIES: usize = 3;
const SCOPES: usize = 3;
/// Two protocols, with each family and scope.
const CLASSES: usize = 2 * FAMILIES * SCOPES;

/// Messages of a followed task.
#[repr(C)]
pub struct TaskMessages {
    /// Its process and thread.
    pub owner: Owner,
    /// In the order of [`number`].
    classes: [Class; CLASSES],
}

#[repr(C)]
struct Class {
    sent: Sum,
    received: Sum,
}

/// Only the task writes its counts.
#[repr(C)]
struct Sum {
    bytes: u64,
    calls: u64,
    /// Parts of them that `NET_IO` has.
    reported_bytes: u64,
    reported_calls: u64,
}

/// The messages of the current task, if it is followed.
#[inline(always)]
pub fn of_current() -> Option<&'static mut TaskMessages> {
    let task = current();
    if let Some(messages) = MESSAGES.get(task) {
        return Some(messages);
    }
    let owner = TASKS.get(task)?.owner;
    let Some(messages) = MESSAGES.insert_zeroed(task) else {
        count_drop::<Messages>();
        return None;
    };
    messages.owner = owner;
    Some(messages)
}

impl TaskMessages {
    /// Counts a message.
    #[inline(always)]
    pub fn count(&mut self, class: u64, bytes: u64, direction: Direction) {
        let Some(class) = self.classes.get_mut(number(class)) else {
            return;
        };
        let sum = if direction == Direction::Receive {
            &mut class.received
        } else {
            &mut class.sent
        };
        sum.bytes += bytes;
        sum.calls += 1;
    }

    /// Adds to `NET_IO` what it does not have yet. A reading, and the end of the task, can do this
    /// at the same time.
    #[inline(always)]
    pub fn report(&mut self) {
        let owner = self.owner;
        let mut unreported = Unreported {
            messages: self,
            owner,
        };
        repeat::<{ CLASSES as u32 }, _>(CLASSES as u32, report_class, &mut unreported);
    }
}

/// Messages that are being reported.
struct Unreported<'a> {
    messages: &'a mut TaskMessages,
    owner: Owner,
}

extern "C" fn report_class(number: u64, unreported: &mut Unreported<'_>) -> i64 {
    let number = number as usize;
    let Some(Class { sent, received }) = unreported.messages.classes.get_mut(number) else {
        return 1;
    };
    if sent.is_new() || received.is_new() {
        let (sent, received) = (sent.take(), received.take());
        let key = key(unreported.owner, class_of(number));
        if let Some(entry) = find_or_insert::<NetIo>(&key) {
            add(&mut entry.tx_bytes, sent.0);
            add(&mut entry.tx_calls, sent.1);
            add(&mut entry.rx_bytes, received.0);
            add(&mut entry.rx_calls, received.1);
        } else {
            count_drops::<NetIo>(sent.1 + received.1);
        }
    }
    0
}

impl Sum {
    #[inline(always)]
    fn is_new(&self) -> bool {
        self.calls != self.reported_calls
    }

    /// The bytes and calls that have not been reported. They are reported now.
    #[inline(always)]
    fn take(&mut self) -> (u64, u64) {
        (
            take(self.bytes, &mut self.reported_bytes),
            take(self.calls, &mut self.reported_calls),
        )
    }
}

#[inline(always)]
fn take(count: u64, reported: &mut u64) -> u64 {
    let before = *reported;
    if compare_exchange(reported, before, count) == before {
        count.wrapping_sub(before)
    } else {
        0
    }
}

/// Number of a class.
#[inline(always)]
fn number(class: u64) -> usize {
    let protocol = protocol_of(class) as usize - 1;
    (protocol * FAMILIES + family_of(class) as usize) * SCOPES + scope_of(class) as usize
}

/// The class with this number.
#[inline(always)]
fn class_of(number: usize) -> u64 {
    let protocol = number / SCOPES / FAMILIES + 1;
    let family = number / SCOPES % FAMILIES;
    class(protocol as u64, family as u64, (number % SCOPES) as u64)
}

/// A task has another owner.
#[inline(always)]
pub fn set_owner(task: Task, owner: Owner) {
    if let Some(messages) = MESSAGES.get(task)
        && messages.owner.tid != owner.tid
    {
        messages.report();
        messages.owner = owner;
    }
}

/// Adds the messages of a task to `NET_IO`.
#[inline(always)]
pub fn report_of(task: Task) {
    if let Some(messages) = MESSAGES.get(task) {
        messages.report();
    }
}
