//! What each user of the node has of the service: places.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// The users who have connections or profiles.
#[derive(Clone, Default)]
pub struct Users(Arc<Mutex<HashMap<u32, User>>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct User {
    /// Connections without a request.
    silent: usize,
    /// Profiles.
    sessions: usize,
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
    /// When there is none.
    pub fn session(&self, uid: u32, quota: Quota) -> Result<Place, Failure> {
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

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        if let Some(user) = users.get_mut(&self.uid) {
            *user.places(self.kind) -= 1;
        }
        users.retain(|_, user| *user != User::default());
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
}
