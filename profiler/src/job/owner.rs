//! The owner of a job.

use std::collections::BTreeSet;

use super::{JobEnvironment, Scheduler, trust};
use crate::{
    host::Host,
    procfs::{process_stat, process_status::real_uid},
    support::invoking_user,
};

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

/// Real uids of the processes that a job runs, without daemons of its scheduler.
pub fn users(host: &Host, members: &[u32]) -> Vec<u32> {
    let user = |pid: &u32| {
        let uid = real_uid(&host.procfs, *pid)?;
        let comm = process_stat::of_process(&host.procfs, *pid)?.comm;
        (!is_step_daemon(uid, &comm)).then_some(uid)
    };
    members.iter().filter_map(user).collect()
}

/// Whether a process is the daemon that Slurm starts as root for each step, in the cgroup of the
/// job. It is there before the processes of the job, and can stay after their end.
pub fn is_step_daemon(uid: u32, comm: &str) -> bool {
    uid == 0 && comm == "slurmstepd"
}

/// Owner of a job with processes of these users. Root and the account of the scheduler run daemons and
/// prologs in the jobs of all users, so that their processes prove nothing; a systemd unit has no
/// other owner than its processes.
pub fn of_users(scheduler: Scheduler, users: &[u32]) -> Option<u32> {
    let accounts = trust::accounts(scheduler);
    let user = users.iter().find(|uid| !accounts.contains(uid));
    let root = users.first().filter(|_| scheduler == Scheduler::None);
    user.or(root).copied()
}

/// The only one of these users, otherwise the invoking user if it is one of them.
pub fn among(users: &BTreeSet<u32>) -> Option<u32> {
    match users.len() {
        1 => users.first().copied(),
        _ => invoking_user::non_root_uid().filter(|uid| users.contains(uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_root_prove_no_owner() {
        assert_eq!(of_users(Scheduler::Slurm, &[0, 1000, 0]), Some(1000));
        assert_eq!(of_users(Scheduler::Slurm, &[0]), None);
        assert_eq!(of_users(Scheduler::None, &[0]), Some(0));
        assert_eq!(of_users(Scheduler::None, &[]), None);
    }
}
