//! Which job is meant by `--job`, and which scheduler runs it.

use std::collections::HashSet;

use super::{
    JobEnvironment, JobId, Request, Scheduler, cgroup_path,
    cgroups::{self, JobRef},
    id::normalized,
};
use crate::{
    failure::{Failure, Reason},
    host::Host,
    procfs::{
        process_cgroup,
        process_file::{self, SMALL_MAX},
        process_list::pids,
    },
};

/// Signs of a scheduler on a node: its daemons, and a command of it.
const SIGNS: [(Scheduler, &[&str], &str); 4] = [
    (Scheduler::Slurm, &["slurmd", "slurmctld"], "scontrol"),
    (Scheduler::Pbs, &["pbs_mom", "pbs_server.bin"], "pbsnodes"),
    (Scheduler::Oar, &["Almighty"], "oarstat"),
    (Scheduler::Flux, &["flux-broker"], "flux"),
];

/// Scheduler and id of the requested job.
///
/// # Errors
///
/// If the request has no id and this process is in no job, or if the scheduler is unknown.
pub fn identify(host: &Host, request: &Request) -> Result<(Scheduler, JobId), Failure> {
    let usage = |message: String| Failure::new(Reason::Usage, message);
    let environment = JobEnvironment::of_this_process();
    let Some(id) = &request.id else {
        // sudo removes the variables, but the process stays in its cgroup.
        let mut jobs = environment.jobs.into_iter().chain(own_cgroup(host));
        let is_requested =
            |job: &(Scheduler, JobId)| request.scheduler.is_none_or(|asked| asked == job.0);
        return jobs
            .find(is_requested)
            .ok_or_else(|| usage("not inside a batch job; use --job ID".to_owned()));
    };
    let scheduler = request
        .scheduler
        .or_else(|| {
            let mut schedulers = environment.jobs.iter().map(|(scheduler, _)| *scheduler);
            let first = schedulers.clone().next();
            schedulers
                .find(|scheduler| environment.names(*scheduler, id))
                .or(first)
        })
        .or_else(|| scheduler_with_cgroup(host, id))
        .or_else(|| running_scheduler(host))
        .or_else(installed_scheduler);
    match scheduler {
        Some(scheduler) => Ok((scheduler, normalized(scheduler, id.clone()))),
        None => Err(usage(format!(
            "--job {id}: no scheduler found on this node: select it with --scheduler"
        ))),
    }
}

/// The job of this process's cgroup.
fn own_cgroup(host: &Host) -> Option<(Scheduler, JobId)> {
    let lines = process_cgroup::own(&host.procfs).unwrap_or_default();
    let cgroup = cgroup_path::identify_all(&lines)?;
    let id = JobId::try_from(cgroup.job.clone()).ok()?;
    let number = || {
        let job = JobRef {
            scheduler: Scheduler::Slurm,
            id: &id,
            step: None,
        };
        let hierarchies = cgroups::hierarchies(host);
        let mut directories = hierarchies
            .iter()
            .filter_map(|hierarchy| job.directories(host, hierarchy).into_iter().next());
        JobId::try_from(directories.next()?.job_id(host)?).ok()
    };
    let number = if cgroup.has_sluid() { number() } else { None };
    Some((cgroup.scheduler, number.unwrap_or(id)))
}

fn scheduler_with_cgroup(host: &Host, id: &JobId) -> Option<Scheduler> {
    let hierarchies = cgroups::hierarchies(host);
    let has_cgroup = |scheduler: &Scheduler| {
        let id = normalized(*scheduler, id.clone());
        let job = JobRef {
            scheduler: *scheduler,
            id: &id,
            step: None,
        };
        hierarchies
            .iter()
            .any(|hierarchy| !job.directories(host, hierarchy).is_empty())
    };
    let schedulers = SIGNS.iter().map(|(scheduler, ..)| *scheduler);
    schedulers.chain([Scheduler::None]).find(has_cgroup)
}

fn running_scheduler(host: &Host) -> Option<Scheduler> {
    let running: HashSet<String> = pids(&host.procfs)
        .filter_map(|pid| process_file::read(&host.procfs, pid, "comm", SMALL_MAX).ok())
        .map(|comm| String::from_utf8_lossy(&comm.bytes).trim_end().to_owned())
        .collect();
    SIGNS
        .iter()
        .find(|(_, daemons, _)| daemons.iter().any(|name| running.contains(*name)))
        .map(|(scheduler, ..)| *scheduler)
}

fn installed_scheduler() -> Option<Scheduler> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |name: &str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    SIGNS
        .iter()
        .find(|(.., command)| is_installed(command))
        .map(|(scheduler, ..)| *scheduler)
}
