//! Marks that are lost, or stored without their intended meaning, counted by cause and user.

use std::collections::BTreeMap;

use crate::{support::log::harmless, warning};

/// Number of users with separate counts; the losses of other users are counted together.
const USERS: usize = 64;

/// Why a mark is not stored, or not as intended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Not JSON, or not according to the grammar.
    Malformed,
    /// Larger than [`super::MAX_BYTES`].
    Oversized,
    /// Rate limit on marks exceeded.
    TooFast,
    /// Rate limit on bytes exceeded.
    TooMuch,
    /// The sender, or the process in `pid`, is not in the target.
    Refused,
    /// Quota of open regions exceeded.
    TooManyOpen,
    /// Dropped by the sender: the socket was full.
    Dropped,
    /// The queue was full before the next reading.
    NoRoom,
    /// An end without a start. It is stored.
    Unmatched,
    /// A start with the id of an open region. It is stored.
    Duplicate,
}

impl Loss {
    const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Oversized,
        Self::TooFast,
        Self::TooMuch,
        Self::Refused,
        Self::TooManyOpen,
        Self::Dropped,
        Self::NoRoom,
        Self::Unmatched,
        Self::Duplicate,
    ];

    /// Name of the loss in table `overhead`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::TooFast => "too_fast",
            Self::TooMuch => "too_much",
            Self::Refused => "refused",
            Self::TooManyOpen => "too_many_open",
            Self::Dropped => "socket_full",
            Self::NoRoom => "no_room",
            Self::Unmatched => "end_without_start",
            Self::Duplicate => "duplicate_id",
        }
    }

    /// Whether the mark is not stored at all.
    pub fn is_lost(self) -> bool {
        !matches!(self, Self::Unmatched | Self::Duplicate)
    }

    /// Explanation for the user.
    pub fn why(self) -> &'static str {
        match self {
            Self::Malformed => "not according to docs/regions.md",
            Self::Oversized => "larger than 8 KiB",
            Self::TooFast => {
                "more than 5,000 per second from a process, 10,000 from a user, or 20,000 from all"
            }
            Self::TooMuch => "more than 256 KiB per second from a user, or 1 MiB from all",
            Self::Refused => "from or about a process outside the target",
            Self::TooManyOpen => "too many regions are open",
            Self::Dropped => "the sender reported that the socket was full",
            Self::NoRoom => "too many were queued for a reading",
            Self::Unmatched => "they end a region that is not open",
            Self::Duplicate => "they start a region with the id of an open region",
        }
    }
}

/// Number of marks of each kind.
type Counts = [u64; Loss::ALL.len()];

/// Losses in total and by user.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    all: Counts,
    /// By uid; `None`: the users beyond [`USERS`].
    users: BTreeMap<Option<u32>, Counts>,
}

impl Losses {
    /// Counts marks of a user, and reports the first of each kind with its `origin`.
    pub fn add(&mut self, loss: Loss, count: u64, uid: u32, origin: impl FnOnce() -> String) {
        let index = loss as usize;
        if self.all[index] == 0 {
            let result = if loss.is_lost() {
                "lost"
            } else {
                "stored as sent"
            };
            let origin = harmless(&origin());
            warning!("profiler: mark {result}, {origin} (further ones are only counted)");
        }
        self.all[index] = self.all[index].saturating_add(count);
        let of_user = self.of_user(Some(uid));
        of_user[index] = of_user[index].saturating_add(count);
    }

    /// Adds the counts of `others`, without reporting them.
    pub fn merge(&mut self, others: &Self) {
        let add = |to: &mut Counts, counts: &Counts| {
            for (to, count) in to.iter_mut().zip(counts) {
                *to = to.saturating_add(*count);
            }
        };
        add(&mut self.all, &others.all);
        for (uid, counts) in &others.users {
            add(self.of_user(*uid), counts);
        }
    }

    fn of_user(&mut self, uid: Option<u32>) -> &mut Counts {
        let known = self.users.contains_key(&uid) || self.users.len() < USERS;
        self.users.entry(uid.filter(|_| known)).or_default()
    }

    /// Number of marks of each kind.
    pub fn totals(&self) -> impl Iterator<Item = (Loss, u64)> + use<> {
        Loss::ALL.into_iter().zip(self.all)
    }

    /// Lost marks by uid; `None`: users without separate counts.
    pub fn of_users(&self) -> impl Iterator<Item = (Option<u32>, Loss, u64)> {
        self.users.iter().flat_map(|(uid, counts)| {
            let each = Loss::ALL.into_iter().zip(counts);
            let lost = each.filter(|(loss, count)| loss.is_lost() && **count != 0);
            lost.map(|(loss, count)| (*uid, loss, *count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_per_user() {
        let mut losses = Losses::default();
        let add = |losses: &mut Losses, loss, count, uid| losses.add(loss, count, uid, String::new);
        add(&mut losses, Loss::Dropped, u64::MAX, 1);
        add(&mut losses, Loss::Dropped, 5, 2);
        add(&mut losses, Loss::Duplicate, 5, 2);
        let of_users: Vec<_> = losses.of_users().collect();
        assert_eq!(
            of_users,
            [
                (Some(1), Loss::Dropped, u64::MAX),
                (Some(2), Loss::Dropped, 5)
            ]
        );
        for uid in 0..1000 {
            add(&mut losses, Loss::Refused, 1, uid);
        }
        assert!(losses.users.len() <= USERS + 1);
        let refused = losses
            .of_users()
            .filter(|(_, loss, _)| *loss == Loss::Refused);
        assert_eq!(refused.map(|(_, _, count)| count).sum::<u64>(), 1000);
        let mut twice = losses.clone();
        twice.merge(&losses);
        let counts = |losses: &Losses| losses.totals().map(|(_, count)| count).collect::<Vec<_>>();
        let doubled = counts(&losses)
            .into_iter()
            .map(|count| count.saturating_mul(2));
        assert_eq!(counts(&twice), doubled.collect::<Vec<_>>());
        let dropped = twice
            .of_users()
            .find(|(uid, loss, _)| (*uid, *loss) == (Some(2), Loss::Dropped));
        assert_eq!(dropped.map(|(_, _, count)| count), Some(10));
    }
}
