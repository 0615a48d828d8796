//! What each user of the node has of the service: places, and CPU time.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::failure::{Failure, Reason};

/// Limits of the profiles at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub sessions: usize,
    pub sessions_per_user: usize,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sessions,
            sessions_per_user,
        } = self;
        write!(f, "{sessions} profiles, {sessions_per_user} per user")
    }
}

/// Limits of the connections without a request at the same time.
const SILENT: usize = 256;
const SILENT_PER_USER: usize = 16;

/// CPU time that a user can take at once, ns: for starts of profiles, searches for jobs and ends.
const CREDIT_NS: u64 = 10_000_000_000;
/// Share of a core that a user is granted again, and one profile besides: one part of this many.
const SHARE: u64 = 10;
/// Life of a process for a client before which it has no such share: that of one which only starts and
/// ends.
const SHORT: Duration = Duration::from_secs(5);

/// The users who have connections, profiles or less than the whole credit.
#[derive(Clone, Default)]
pub struct Users(Arc<Mutex<HashMap<u32, User>>>);

#[derive(Debug, Default)]
struct User {
    /// Connections without a request.
    silent: usize,
    /// Profiles.
    sessions: usize,
    spent: Spent,
}

/// CPU time that is not granted again yet.
#[derive(Debug, Default)]
struct Spent {
    ns: u64,
    /// When it was that; `None` if nothing was ever spent.
    at: Option<Instant>,
}

impl Spent {
    fn at(&self, now: Instant) -> u64 {
        let granted = self
            .at
            .map_or(0, |at| ns(now.saturating_duration_since(at)) / SHARE);
        self.ns.saturating_sub(granted)
    }

    fn add(&mut self, ns: u64, now: Instant) {
        *self = Self {
            ns: self.at(now).saturating_add(ns),
            at: Some(now),
        };
    }

    /// Time until there is credit again, in s and at least one.
    fn wait_s(&self, now: Instant) -> Option<u64> {
        let beyond = self.at(now).checked_sub(CREDIT_NS)?;
        let wait = beyond.saturating_mul(SHARE);
        Some(wait.div_ceil(1_000_000_000).max(1))
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a place is for. A connection without a request never takes the place of a profile.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Silent,
    Session,
}

impl User {
    fn places(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Silent => &mut self.silent,
            Kind::Session => &mut self.sessions,
        }
    }

    fn has_anything(&self, now: Instant) -> bool {
        self.silent + self.sessions != 0 || self.spent.at(now) != 0
    }
}

/// One place among those of the node, which is free again when this is dropped.
pub struct Place {
    users: Users,
    uid: u32,
    kind: Kind,
}

impl Users {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, User>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of profiles.
    pub fn sessions(&self) -> usize {
        self.lock().values().map(|user| user.sessions).sum()
    }

    /// A place for a connection without a request.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn silent(&self, uid: u32) -> Result<Place, Failure> {
        self.place(uid, Kind::Silent, SILENT, SILENT_PER_USER)
    }

    /// A place for a profile.
    ///
    /// # Errors
    ///
    /// When there is none, or the user has taken too much CPU time.
    pub fn session(&self, uid: u32, quota: Quota) -> Result<Place, Failure> {
        let now = Instant::now();
        let wait = self
            .lock()
            .get(&uid)
            .and_then(|user| user.spent.wait_s(now));
        if let Some(wait) = wait {
            let why = format!(
                "profiles of this user have taken more CPU time to start and to end than a tenth \
                 of a core: try again in {wait} s"
            );
            return Err(Failure::new(Reason::Privilege, why));
        }
        self.place(uid, Kind::Session, quota.sessions, quota.sessions_per_user)
    }

    fn place(
        &self,
        uid: u32,
        kind: Kind,
        limit: usize,
        limit_per_user: usize,
    ) -> Result<Place, Failure> {
        let mut users = self.lock();
        let all: usize = users.values_mut().map(|user| *user.places(kind)).sum();
        let own = users.get_mut(&uid).map_or(0, |user| *user.places(kind));
        let (what, state) = match kind {
            Kind::Silent => ("connections without a request", "open"),
            Kind::Session => ("profiles", "running"),
        };
        let why = if own >= limit_per_user {
            format!("{own} {what} of this user are {state}, which is the limit")
        } else if all >= limit {
            format!("{all} {what} are {state}, which is the limit of the node")
        } else {
            *users.entry(uid).or_default().places(kind) += 1;
            let users = self.clone();
            return Ok(Place { users, uid, kind });
        };
        Err(Failure::new(Reason::Privilege, why))
    }
}

impl Place {
    /// Charges its user, unless that is root, for a process that took CPU time during its life. A tenth
    /// of a core is free for all but short ones: it is the budget of a profile for its samples.
    pub fn charge(&self, cpu: Duration, life: Duration) {
        if self.uid != 0 {
            let free = ns(life.saturating_sub(SHORT)) / SHARE;
            let charged = ns(cpu).saturating_sub(free);
            let mut users = self.users.lock();
            let user = users.entry(self.uid).or_default();
            user.spent.add(charged, Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        if let Some(user) = users.get_mut(&self.uid) {
            *user.places(self.kind) -= 1;
        }
        let now = Instant::now();
        users.retain(|_, user| user.has_anything(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_take_no_place_of_a_profile() {
        let users = Users::default();
        let quota = Quota {
            sessions: 2,
            sessions_per_user: 1,
        };
        let silent: Vec<_> = (0..SILENT_PER_USER)
            .map(|_| users.silent(1).expect("a place"))
            .collect();
        assert!(users.silent(1).is_err());
        drop(users.silent(2).expect("a place"));
        let first = users.session(1, quota).expect("a place");
        assert!(users.session(1, quota).is_err());
        let _second = users.session(2, quota).expect("a place");
        let refused = users.session(3, quota).err().expect("no place");
        assert_eq!(
            refused.message,
            "2 profiles are running, which is the limit of the node"
        );
        drop(first);
        assert_eq!(users.sessions(), 1);
        drop(users.session(3, quota).expect("a place"));
        drop(silent);
        assert_eq!(users.lock().len(), 1);
    }

    #[test]
    fn cpu_time_is_granted_again_at_a_tenth_of_a_core() {
        let now = Instant::now();
        let after = |s| now + Duration::from_secs(s);
        let mut spent = Spent::default();
        assert_eq!(spent.wait_s(now), None);
        spent.add(CREDIT_NS - 1, now);
        assert_eq!(spent.wait_s(now), None);
        spent.add(2_000_000_001, now);
        assert_eq!(spent.wait_s(now), Some(20));
        assert_eq!(spent.wait_s(after(19)), Some(1));
        assert_eq!(spent.wait_s(after(21)), None);
        assert_eq!(spent.at(after(21)), CREDIT_NS - 100_000_000);
        assert_eq!(spent.at(after(1000)), 0);
    }

    #[test]
    fn only_costs_beyond_the_budget_of_a_profile_are_charged() {
        let users = Users::default();
        let quota = Quota {
            sessions: 9,
            sessions_per_user: 9,
        };
        let (much, hour) = (Duration::from_secs(300), Duration::from_secs(3600));
        let session = |uid| users.session(uid, quota);
        session(1).expect("a place").charge(much, hour);
        session(1)
            .expect("it was free")
            .charge(much, Duration::ZERO);
        let refused = session(1).err().expect("it was charged");
        assert!(refused.message.contains("try again in 29"), "{refused}");
        drop(session(2).expect("another user"));
        session(0).expect("a place").charge(much, Duration::ZERO);
        drop(session(0).expect("root"));
        assert_eq!(users.lock().len(), 1);
    }
}
