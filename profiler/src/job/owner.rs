//! The owner of a job.

use std::collections::BTreeSet;

use super::{JobEnvironment, Scheduler};
use crate::{host::Host, procfs::process_status::real_uid, support::invoking_user};

/// Owner of the job, if this process belongs to the job or to its prolog.
pub fn from_own_environment(scheduler: Scheduler, id: &str) -> Option<u32> {
    if !JobEnvironment::of_this_process().names(scheduler, id) {
        return None;
    }
    let own = rustix::process::getuid();
    if !own.is_root() {
        return Some(own.as_raw());
    }
    // Set by slurmd in the environment of the prolog.
    let uid = std::env::var("SLURM_JOB_UID").ok()?.parse().ok()?;
    (scheduler == Scheduler::Slurm).then_some(uid)
}

/// Owner of a job with these processes. slurmstepd and its counterparts in other schedulers run as
/// root in every job.
pub fn of_members(host: &Host, members: &[u32]) -> Option<u32> {
    let users = members
        .iter()
        .filter_map(|pid| real_uid(&host.procfs, *pid));
    let users: Vec<u32> = users.collect();
    let user = users.iter().find(|uid| **uid != 0).or(users.first());
    user.copied()
}

/// The only one of these users, otherwise the invoking user if it is one of them.
pub fn among(users: &BTreeSet<u32>) -> Option<u32> {
    match users.len() {
        1 => users.first().copied(),
        _ => invoking_user::non_root_uid().filter(|uid| users.contains(uid)),
    }
}
