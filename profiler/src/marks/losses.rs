//! Marks that are not stored as they were meant: what they are counted as, and whose they are.

use std::collections::BTreeMap;

use crate::{report, support::log::harmless};

/// Users whose losses are told apart; those of others are added up.
const USERS: usize = 64;

/// What happens to marks that are not stored as they were meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Not JSON, or not what the grammar says.
    Malformed,
    /// More than [`super::MAX_BYTES`].
    Oversized,
    /// More per second than is allowed.
    TooFast,
    /// More bytes per second than are allowed.
    TooMuch,
    /// The sender, or whom it names, is not of the target.
    Refused,
    /// More regions are open than is allowed.
    TooManyOpen,
    /// The senders could not send them: the socket was full.
    Dropped,
    /// No reading came in time.
    NoRoom,
    /// An end without a start. It is stored.
    Unmatched,
    /// A start with the id of a region that is open. It is stored.
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

    /// The name of its row in table `overhead`.
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

    /// Whether nothing of the mark is stored.
    pub fn is_lost(self) -> bool {
        !matches!(self, Self::Unmatched | Self::Duplicate)
    }

    /// What it means, for people.
    pub fn why(self) -> &'static str {
        match self {
            Self::Malformed => "not a mark as docs/regions.md has them",
            Self::Oversized => "larger than 8 KiB",
            Self::TooFast => {
                "more than 5,000 per second from a process, 10,000 from a user, or 20,000 from all"
            }
            Self::TooMuch => "more than 256 KiB per second from a user, or 1 MiB from all",
            Self::Refused => "not from or for a process of the target",
            Self::TooManyOpen => "too many regions are open",
            Self::Dropped => "the sender reported that the socket was full",
            Self::NoRoom => "too many waited for a reading",
            Self::Unmatched => "they end a region that is not open",
            Self::Duplicate => "they start a region with the id of one that is open",
        }
    }
}

/// How many of each kind.
type Counts = [u64; Loss::ALL.len()];

/// What was lost, and whose it was.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    all: Counts,
    /// By user; `None`: those beyond [`USERS`].
    users: BTreeMap<Option<u32>, Counts>,
}

impl Losses {
    /// Counts marks of a user; the first of each kind is reported on stderr, with what `whose` says.
    pub fn add(&mut self, loss: Loss, count: u64, uid: u32, whose: impl FnOnce() -> String) {
        let place = loss as usize;
        if self.all[place] == 0 {
            let what = if loss.is_lost() {
                "lost"
            } else {
                "stored as it came"
            };
            let whose = harmless(&whose().chars().take(200).collect::<String>());
            report!("profiler: a mark is {what}, {whose} (more of this kind are counted only)");
        }
        self.all[place] = self.all[place].saturating_add(count);
        let of_user = self.of_user(Some(uid));
        of_user[place] = of_user[place].saturating_add(count);
    }

    /// Adds others, of which nothing is reported.
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

    /// How many of each kind there were.
    pub fn totals(&self) -> impl Iterator<Item = (Loss, u64)> + use<> {
        Loss::ALL.into_iter().zip(self.all)
    }

    /// Those that are lost, by user; `None`: of users who are not told apart.
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
    fn losses_are_of_the_user_who_made_them() {
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
