//! Finding the processes of a job on this node: by its cgroup, else through its scheduler, else by their environments.

use std::{
    collections::HashSet,
    fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{
    Request, Scheduler, Stated,
    command::{self, Silence, State},
    folders::{self, Folder, Wanted},
    path,
};
use crate::{
    failure::{Failure, Reason},
    host::{Hierarchy, Host},
};

/// Between two looks at the cgroups while waiting for the first process.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions to the scheduler, and two looks at all environments, meanwhile.
const ASK: Duration = Duration::from_secs(1);

/// How the processes of a job are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They are members of its cgroup.
    Cgroup,
    /// The scheduler lists them.
    Scheduler,
    /// Their environments name the job.
    Environment,
}

impl Way {
    /// As `run.json` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Scheduler => "scheduler",
            Self::Environment => "environment",
        }
    }
}

/// A job with processes on this node.
#[derive(Clone, Debug)]
pub struct Found {
    /// What runs it.
    pub scheduler: Scheduler,
    /// The name that its processes know.
    pub id: String,
    /// How its processes were found.
    pub way: Way,
    /// The hierarchy in which its cgroups are; when none was found, that in which they would be looked for first.
    pub hierarchy: Option<Hierarchy>,
    /// Its cgroups.
    pub folders: Vec<Folder>,
    /// Its processes, when they are not found by cgroups.
    pub pids: Vec<u32>,
    /// What could not be done on the way, a line each.
    pub notes: Vec<String>,
}

impl Found {
    /// As `run.json` has it.
    pub fn to_json(&self) -> serde_json::Value {
        let folders: Vec<_> = self.folders.iter().map(|folder| &folder.path).collect();
        serde_json::json!({
            "id": self.id,
            "scheduler": format!("{:?}", self.scheduler).to_lowercase(),
            "found_by": self.way.name(),
            "cgroups": folders,
            "pids": self.pids,
            "notes": self.notes,
        })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} ({}, ", self.id, self.scheduler)?;
        match (self.way, self.folders.first()) {
            (Way::Cgroup, Some(folder)) => write!(f, "cgroup {})", folder.path.display()),
            (Way::Scheduler, _) => write!(f, "processes that {} lists)", self.scheduler),
            _ => write!(f, "processes whose environment names it)"),
        }
    }
}

/// Which job it is about, and who runs it.
///
/// # Errors
///
/// When nothing tells.
pub fn name(host: &Host, request: &Request) -> Result<(Scheduler, String), Failure> {
    let usage = |message: String| Err(Failure::new(Reason::Usage, message));
    if let Some(id) = request.id.as_ref().filter(|id| !super::is_id(id)) {
        return usage(format!(
            "--job {}: not the name of a job",
            id.escape_debug()
        ));
    }
    let stated = Stated::of_this_process();
    let Some(id) = &request.id else {
        // sudo and the like clean the environment, and leave the process where it is.
        let lines = fs::read_to_string(host.procfs.join("self/cgroup")).unwrap_or_default();
        let place = path::identify_all(&lines).map(|place| {
            let number = place
                .has_sluid()
                .then(|| {
                    let folder = folders::hierarchies(host)
                        .into_iter()
                        .find_map(|hierarchy| {
                            let wanted = Wanted {
                                scheduler: Scheduler::Slurm,
                                id: &place.job,
                            };
                            wanted.folders(host, &hierarchy).into_iter().next()
                        })?;
                    folder.number(host)
                })
                .flatten();
            (place.scheduler, number.unwrap_or(place.job))
        });
        let mut jobs = stated.jobs.into_iter().chain(place);
        let found =
            jobs.find(|(scheduler, _)| request.scheduler.is_none_or(|asked| asked == *scheduler));
        return match found {
            Some(found) => Ok(found),
            None => usage(
                "--job: neither the environment nor the cgroup names a job here: give its ID"
                    .to_owned(),
            ),
        };
    };
    let known = request
        .scheduler
        .or_else(|| {
            let named = stated
                .jobs
                .iter()
                .find(|(scheduler, _)| stated.is_of(*scheduler, id));
            named
                .or(stated.jobs.first())
                .map(|(scheduler, _)| *scheduler)
        })
        .or_else(|| scheduler_here(host, id));
    match known {
        Some(scheduler) => Ok((scheduler, command::normal_id(scheduler, id))),
        None => usage(format!(
            "--job {id}: no scheduler found on this node: name it with --scheduler"
        )),
    }
}

/// The scheduler that has a cgroup for the job, else whose daemon runs or whose commands are installed.
fn scheduler_here(host: &Host, id: &str) -> Option<Scheduler> {
    const SIGNS: [(Scheduler, &[&str], &str); 4] = [
        (Scheduler::Slurm, &["slurmd", "slurmctld"], "scontrol"),
        (Scheduler::Pbs, &["pbs_mom", "pbs_server.bin"], "pbsnodes"),
        (Scheduler::Oar, &["Almighty"], "oarstat"),
        (Scheduler::Flux, &["flux-broker"], "flux"),
    ];
    let hierarchies = folders::hierarchies(host);
    let has = |scheduler| {
        let id = command::normal_id(scheduler, id);
        let wanted = Wanted { scheduler, id: &id };
        hierarchies
            .iter()
            .any(|hierarchy| !wanted.folders(host, hierarchy).is_empty())
    };
    let all = SIGNS
        .iter()
        .map(|(scheduler, ..)| *scheduler)
        .chain([Scheduler::None]);
    all.into_iter()
        .find(|scheduler| has(*scheduler))
        .or_else(|| {
            let running: HashSet<String> = pids(&host.procfs)
                .filter_map(|pid| fs::read_to_string(host.procfs.join(format!("{pid}/comm"))).ok())
                .map(|comm| comm.trim_end().to_owned())
                .collect();
            let mut signs = SIGNS.iter();
            let sign =
                signs.find(|(_, daemons, _)| daemons.iter().any(|name| running.contains(*name)));
            sign.map(|(scheduler, ..)| *scheduler)
        })
        .or_else(|| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let is_there =
                |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
            SIGNS
                .iter()
                .find(|(.., name)| is_there(name))
                .map(|(scheduler, ..)| *scheduler)
        })
}

/// Finds the first processes of a job, and waits for them if it has none yet.
///
/// # Errors
///
/// When it is over or unknown, or nobody comes in time.
pub fn find(host: &Host, request: &Request) -> Result<Found, Failure> {
    let gone = |message: String| Failure::new(Reason::Target, message);
    let (scheduler, mut id) = name(host, request)?;
    let mut notes = Vec::new();
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    // A name that is not the one in paths and environments.
    let mut is_name = scheduler != Scheduler::Slurm
        || path::is_sluid(&id)
        || id.bytes().all(|byte| byte.is_ascii_digit());
    let mut may_ask = true;
    let mut waits = "";
    loop {
        if is_name && let Some(found) = by_cgroup(host, scheduler, &id) {
            return Ok(Found { notes, ..found });
        }
        if asked.is_none_or(|at| at.elapsed() >= ASK) {
            if may_ask {
                match command::standing(scheduler, &id) {
                    Ok(standing) => {
                        match standing.state {
                            State::Unknown => {
                                return Err(gone(format!("{scheduler} knows no job {id}")));
                            }
                            State::Over(state) => {
                                return Err(gone(format!(
                                    "job {id} is over ({scheduler}: {state})"
                                )));
                            }
                            State::Waiting => waits = ", it has not started",
                            State::Running => waits = ", though it runs",
                        }
                        id = standing.id.unwrap_or(id);
                        is_name = true;
                    }
                    Err(Silence::None(_)) => may_ask = false,
                    Err(silence) => {
                        may_ask = false;
                        is_name = true;
                        notes.push(format!("cannot ask {scheduler} about job {id}: {silence}"));
                    }
                }
            }
            // It may have begun while the scheduler thought.
            if let Some(found) = by_cgroup(host, scheduler, &id) {
                return Ok(Found { notes, ..found });
            }
            if may_ask && let Ok(pids) = command::processes(scheduler, &id) {
                let pids = alive(host, pids);
                if !pids.is_empty() {
                    return Ok(Found {
                        notes,
                        ..without_cgroup(host, scheduler, id, Way::Scheduler, pids)
                    });
                }
            }
            let pids = by_environment(&host.procfs, scheduler, &id);
            if !pids.is_empty() {
                return Ok(Found {
                    notes,
                    ..without_cgroup(host, scheduler, id, Way::Environment, pids)
                });
            }
            asked = Some(Instant::now());
        }
        if begin.elapsed() >= request.wait {
            let mut message = format!(
                "job {id} ({scheduler}) has no process on this node{waits}; waited {} s (--wait)",
                request.wait.as_secs_f64()
            );
            for note in notes {
                message = format!("{message}; {note}");
            }
            return Err(gone(message));
        }
        thread::sleep(LOOK);
    }
}

fn by_cgroup(host: &Host, scheduler: Scheduler, id: &str) -> Option<Found> {
    let wanted = Wanted { scheduler, id };
    folders::hierarchies(host)
        .into_iter()
        .find_map(|hierarchy| {
            let folders = wanted.folders(host, &hierarchy);
            let is_lived_in = folders
                .iter()
                .any(|folder| !folders::members(&folder.path).is_empty());
            is_lived_in.then(|| Found {
                scheduler,
                id: folders
                    .first()
                    .and_then(|folder| folder.number(host))
                    .unwrap_or_else(|| id.to_owned()),
                way: Way::Cgroup,
                hierarchy: Some(hierarchy),
                folders,
                pids: Vec::new(),
                notes: Vec::new(),
            })
        })
}

fn without_cgroup(
    host: &Host,
    scheduler: Scheduler,
    id: String,
    way: Way,
    pids: Vec<u32>,
) -> Found {
    Found {
        scheduler,
        id,
        way,
        hierarchy: folders::hierarchies(host).into_iter().next(),
        folders: Vec::new(),
        pids,
        notes: Vec::new(),
    }
}

/// Those that are there, and are not ours.
pub(super) fn alive(host: &Host, mut pids: Vec<u32>) -> Vec<u32> {
    pids.retain(|pid| !is_ours(&host.procfs, *pid) && host.procfs.join(pid.to_string()).exists());
    pids
}

/// Processes whose environments name the job; not this one, nor the commands that it runs, nor what the node does for the
/// job before and after it.
pub(super) fn by_environment(procfs: &Path, scheduler: Scheduler, id: &str) -> Vec<u32> {
    let names = |pid: &u32| {
        Stated::read(procfs, *pid).is_some_and(|stated| stated.is_of(scheduler, id))
            && !is_ours(procfs, *pid)
            && !(scheduler == Scheduler::Slurm && is_of_slurmd(procfs, *pid))
    };
    pids(procfs).filter(names).collect()
}

/// Whether it belongs to a prolog or epilog: these are slurmd's, the job's processes slurmstepd's or a user's.
fn is_of_slurmd(procfs: &Path, pid: u32) -> bool {
    const GENERATIONS: usize = 64;
    let stat = |pid: i32| crate::tasks::walk::stat_of(&procfs.join(pid.to_string()));
    let ancestors = std::iter::successors(stat(pid.cast_signed()), |child| stat(child.ppid));
    let mut daemons = ancestors
        .take(GENERATIONS)
        .map(|ancestor| ancestor.comm)
        .filter(|comm| ["slurmd", "slurmstepd"].contains(&comm.as_str()));
    daemons.next().as_deref() == Some("slurmd")
}

fn is_ours(procfs: &Path, pid: u32) -> bool {
    let own = std::process::id();
    let parent = || {
        let stat = crate::tasks::walk::stat_of(&procfs.join(pid.to_string()))?;
        Some(stat.ppid.cast_unsigned())
    };
    pid == own || parent() == Some(own)
}

fn pids(procfs: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(procfs).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whose a job is, when its processes are there and are another user's, and this process may not look at those.
pub fn foreign_owner(host: &Host, request: &Request) -> Option<(String, u32)> {
    let (scheduler, id) = name(host, request).ok()?;
    let mut members = match by_cgroup(host, scheduler, &id) {
        Some(found) => found
            .folders
            .iter()
            .flat_map(|folder| folders::members(&folder.path))
            .collect(),
        None => command::processes(scheduler, &id).unwrap_or_default(),
    };
    // slurmstepd, and the shepherds of others, are root's in everybody's job.
    members.sort_unstable();
    let owners = members
        .into_iter()
        .filter_map(|pid| Some(fs::metadata(host.procfs.join(pid.to_string())).ok()?.uid()));
    let own = rustix::process::geteuid().as_raw();
    let owners: Vec<u32> = owners.collect();
    let owner = owners.iter().find(|uid| **uid != 0).or(owners.first())?;
    (*owner != own).then_some((id, *owner))
}
