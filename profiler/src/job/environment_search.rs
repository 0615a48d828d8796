//! Search for the processes of a job by their environments.

use std::path::Path;

use super::{JobEnvironment, Scheduler, cgroups::JobRef};
use crate::{
    host::Host,
    procfs::{process_list::pids, process_stat, process_status::real_uid},
};

/// Generations of ancestors that are searched for the daemons of Slurm.
const GENERATIONS_MAX: usize = 64;

/// A process with an environment that names the job.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// Environments that are in memory at a time.
const AT_ONCE: usize = 64;

/// Processes with environments that name the job, and its step if one is meant: those of its owner,
/// or of all users if it is unknown. This process, its children, and prolog and epilog of the job are
/// excluded.
pub fn claims(procfs: &Path, job: JobRef<'_>, owner: Option<u32>) -> Vec<Claim> {
    let names = |environment: JobEnvironment| {
        environment.names(job.scheduler, job.id)
            && (job.step.is_none() || job.step.map(|step| &**step) == environment.step.as_deref())
    };
    let is_excluded = |pid: u32| {
        is_own(procfs, pid) || (job.scheduler == Scheduler::Slurm && is_prolog(procfs, pid))
    };
    // Only the memory of processes that can be of the job is read.
    let is_of_owner = |pid: &u32| owner.is_none() || real_uid(procfs, *pid) == owner;
    let candidates: Vec<u32> = pids(procfs).filter(is_of_owner).collect();
    let mut claims = Vec::new();
    for pids in candidates.chunks(AT_ONCE) {
        for (pid, environment) in pids.iter().zip(JobEnvironment::read_all(procfs, pids)) {
            if environment.is_some_and(names)
                && !is_excluded(*pid)
                && let Some(uid) = real_uid(procfs, *pid)
            {
                claims.push(Claim { pid: *pid, uid });
            }
        }
    }
    claims
}

pub fn of_user(claims: &[Claim], uid: u32) -> Vec<u32> {
    let claims = claims.iter().filter(|claim| claim.uid == uid);
    claims.map(|claim| claim.pid).collect()
}

/// Processes of the job's owner with environments that name the job; none if the owner is unknown.
pub fn processes(procfs: &Path, job: JobRef<'_>, owner: Option<u32>) -> Vec<u32> {
    owner.map_or_else(Vec::new, |owner| {
        of_user(&claims(procfs, job, Some(owner)), owner)
    })
}

/// Removes processes that have ended, this process and its children.
pub fn alive(host: &Host, mut pids: Vec<u32>) -> Vec<u32> {
    pids.retain(|pid| !is_own(&host.procfs, *pid) && host.procfs.join(pid.to_string()).exists());
    pids
}

/// Whether a process belongs to a prolog or epilog of Slurm, and not to a job.
fn is_prolog(procfs: &Path, pid: u32) -> bool {
    slurm_daemon(procfs, pid).as_deref() == Some("slurmd")
}

/// The nearest ancestor among the daemons of Slurm: slurmd in prologs, slurmstepd in jobs.
pub fn slurm_daemon(procfs: &Path, pid: u32) -> Option<String> {
    let stat = |pid: i32| process_stat::of_process(procfs, pid.cast_unsigned());
    let ancestors = std::iter::successors(stat(pid.cast_signed()), |child| stat(child.ppid));
    let mut daemons = ancestors
        .take(GENERATIONS_MAX)
        .map(|ancestor| ancestor.comm)
        .filter(|comm| ["slurmd", "slurmstepd"].contains(&comm.as_str()));
    daemons.next()
}

/// Whether a process is this one or a child of it, such as a command of the scheduler.
fn is_own(procfs: &Path, pid: u32) -> bool {
    let own = std::process::id();
    let parent = || {
        let stat = process_stat::of_process(procfs, pid)?;
        Some(stat.ppid.cast_unsigned())
    };
    pid == own || parent() == Some(own)
}
