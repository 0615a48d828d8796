//! Finding the processes of a job on this node: by its cgroup, else through its scheduler, else by their environments.

use std::{
    collections::{BTreeSet, HashSet},
    fmt, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{
    Request, Scheduler, Stated, cgroup_path,
    cgroups::{self, Directory, Wanted},
    scheduler_command::{self, Silence, State},
    user_of,
};
use crate::{
    failure::{Failure, Reason},
    host::{Hierarchy, Host},
    procfs::process_file::{self, SMALL_MAX},
};

/// Between two looks at the cgroups while waiting for the first process.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions to the scheduler, and two looks at all environments, meanwhile.
const ASK: Duration = Duration::from_secs(1);

/// How the processes of a job are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// They are members of its cgroup.
    Cgroup,
    /// The scheduler lists them.
    Scheduler,
    /// Their environments name the job.
    Environment,
}

impl Method {
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
    pub method: Method,
    /// The hierarchy in which its cgroups are; when none was found, that in which they would be looked for first.
    pub hierarchy: Option<Hierarchy>,
    /// Its cgroups.
    pub directories: Vec<Directory>,
    /// Its processes, when they are not found by cgroups.
    pub pids: Vec<u32>,
    /// Whose it is: what processes of other users say of themselves counts for nothing.
    pub owner: Option<u32>,
    /// What could not be done on the way, a line each.
    pub notes: Vec<String>,
}

impl Found {
    /// As `run.json` has it.
    pub fn to_json(&self) -> serde_json::Value {
        let directories: Vec<_> = self
            .directories
            .iter()
            .map(|directory| &directory.path)
            .collect();
        serde_json::json!({
            "id": self.id,
            "scheduler": format!("{:?}", self.scheduler).to_lowercase(),
            "found_by": self.method.name(),
            "cgroups": directories,
            "pids": self.pids,
            "uid": self.owner,
            "notes": self.notes,
        })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} ({}, ", self.id, self.scheduler)?;
        match (self.method, self.directories.first()) {
            (Method::Cgroup, Some(directory)) => write!(f, "cgroup {})", directory.path.display()),
            (Method::Scheduler, _) => write!(f, "processes that {} lists)", self.scheduler),
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
        let place = cgroup_path::identify_all(&lines).map(|place| {
            let number = place
                .has_sluid()
                .then(|| {
                    let directory =
                        cgroups::hierarchies(host)
                            .into_iter()
                            .find_map(|hierarchy| {
                                let wanted = Wanted {
                                    scheduler: Scheduler::Slurm,
                                    id: &place.job,
                                };
                                wanted.directories(host, &hierarchy).into_iter().next()
                            })?;
                    directory.number(host)
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
        Some(scheduler) => Ok((scheduler, scheduler_command::normal_id(scheduler, id))),
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
    let hierarchies = cgroups::hierarchies(host);
    let has = |scheduler| {
        let id = scheduler_command::normal_id(scheduler, id);
        let wanted = Wanted { scheduler, id: &id };
        hierarchies
            .iter()
            .any(|hierarchy| !wanted.directories(host, hierarchy).is_empty())
    };
    let all = SIGNS
        .iter()
        .map(|(scheduler, ..)| *scheduler)
        .chain([Scheduler::None]);
    all.into_iter()
        .find(|scheduler| has(*scheduler))
        .or_else(|| {
            let running: HashSet<String> = pids(&host.procfs)
                .filter_map(|pid| process_file::read(&host.procfs, pid, "comm", SMALL_MAX).ok())
                .map(|comm| String::from_utf8_lossy(&comm.bytes).trim_end().to_owned())
                .collect();
            let mut signs = SIGNS.iter();
            let sign =
                signs.find(|(_, daemons, _)| daemons.iter().any(|name| running.contains(*name)));
            sign.map(|(scheduler, ..)| *scheduler)
        })
        .or_else(|| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let is_there = |name: &str| {
                std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
            };
            SIGNS
                .iter()
                .find(|(.., name)| is_there(name))
                .map(|(scheduler, ..)| *scheduler)
        })
}

/// How long nothing is reported of waiting, and then between two reports.
const UNCHANGED: Duration = Duration::from_secs(2);
const REPORT: Duration = Duration::from_secs(15);

/// Finds the first processes of a job, and waits for them if it has none yet; `report` is given lines that say what is being
/// waited for.
///
/// # Errors
///
/// When it is over or unknown, or nobody comes in time.
pub fn find(host: &Host, request: &Request, report: impl Fn(&str)) -> Result<Found, Failure> {
    let (scheduler, id) = name(host, request)?;
    let mut search = Search {
        host,
        scheduler,
        // Else a name that is not the one in paths and environments.
        is_name: scheduler != Scheduler::Slurm
            || cgroup_path::is_sluid(&id)
            || id.bytes().all(|byte| byte.is_ascii_digit()),
        owner: owner_here(scheduler, &id),
        id,
        may_ask: true,
        waits: "",
        notes: Vec::new(),
    };
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    let mut report_at = UNCHANGED;
    loop {
        if search.is_name
            && let Some(found) = search.by_cgroup()
        {
            return Ok(found);
        }
        if asked.is_none_or(|at| at.elapsed() >= ASK) {
            if let Some(found) = search.ask()? {
                return Ok(found);
            }
            asked = Some(Instant::now());
        }
        let (waited, wait) = (begin.elapsed(), request.wait);
        if waited >= wait {
            return Err(search.in_vain(wait));
        }
        if waited >= report_at {
            report(&format!(
                "waiting for job {} ({scheduler}) on this node{}: {} of {} s (--wait)",
                search.id,
                search.waits,
                waited.as_secs(),
                wait.as_secs_f64()
            ));
            report_at = waited + REPORT;
        }
        thread::sleep(LOOK);
    }
}

/// A job that is looked for.
struct Search<'a> {
    host: &'a Host,
    scheduler: Scheduler,
    id: String,
    is_name: bool,
    owner: Option<u32>,
    may_ask: bool,
    /// What the scheduler says of a job without processes.
    waits: &'static str,
    notes: Vec<String>,
}

impl Search<'_> {
    fn by_cgroup(&mut self) -> Option<Found> {
        let found = by_cgroup(self.host, self.scheduler, &self.id)?;
        Some(Found {
            owner: self.owner.or(found.owner),
            notes: std::mem::take(&mut self.notes),
            ..found
        })
    }

    /// Asks the scheduler, and looks at all environments.
    fn ask(&mut self) -> Result<Option<Found>, Failure> {
        if self.may_ask {
            self.ask_how_it_stands()?;
        }
        // It may have begun while the scheduler thought.
        if let Some(found) = self.by_cgroup() {
            return Ok(Some(found));
        }
        if self.may_ask
            && let Ok(pids) = scheduler_command::processes(self.scheduler, &self.id)
        {
            let pids = alive(self.host, pids);
            if !pids.is_empty() {
                self.owner = self.owner.or_else(|| owner_of(self.host, &pids));
                return Ok(Some(self.without_cgroup(Method::Scheduler, pids)));
            }
        }
        Ok(self.by_environment())
    }

    fn by_environment(&mut self) -> Option<Found> {
        let claims = claims(&self.host.procfs, self.scheduler, &self.id);
        let users: BTreeSet<u32> = claims.iter().map(|(_, uid)| *uid).collect();
        let Some(owner) = self.owner.or_else(|| the_one(&users)) else {
            if !users.is_empty() {
                let users: Vec<_> = users.iter().map(|uid| format!("uid {uid}")).collect();
                self.note(format!(
                    "processes of several users ({}) name job {}, and neither a cgroup nor {} tells whose it is",
                    users.join(", "),
                    self.id,
                    self.scheduler
                ));
            }
            return None;
        };
        if users.iter().any(|uid| *uid != owner) {
            self.note(format!(
                "job {} belongs to uid {owner}: processes of other users that name it are ignored",
                self.id
            ));
        }
        let pids = of_user(claims, owner);
        if pids.is_empty() {
            return None;
        }
        self.owner = Some(owner);
        Some(self.without_cgroup(Method::Environment, pids))
    }

    fn ask_how_it_stands(&mut self) -> Result<(), Failure> {
        let (scheduler, id) = (self.scheduler, &self.id);
        let gone = |message: String| Err(Failure::new(Reason::Target, message));
        match scheduler_command::standing(scheduler, id) {
            Ok(standing) => {
                match standing.state {
                    State::Unknown => return gone(format!("{scheduler} knows no job {id}")),
                    State::Over(state) => {
                        return gone(format!("job {id} is over ({scheduler}: {state})"));
                    }
                    State::Waiting => self.waits = ", it has not started",
                    State::Running => self.waits = ", though it runs",
                }
                self.owner = standing.owner.or(self.owner);
                if let Some(id) = standing.id {
                    self.id = id;
                }
            }
            Err(Silence::None(_)) => {
                self.may_ask = false;
                return Ok(());
            }
            Err(silence) => {
                self.may_ask = false;
                let note = format!("cannot ask {scheduler} about job {id}: {silence}");
                self.note(note);
            }
        }
        self.is_name = true;
        Ok(())
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn without_cgroup(&mut self, method: Method, pids: Vec<u32>) -> Found {
        Found {
            scheduler: self.scheduler,
            id: self.id.clone(),
            method,
            hierarchy: cgroups::hierarchies(self.host).into_iter().next(),
            directories: Vec::new(),
            pids,
            owner: self.owner,
            notes: std::mem::take(&mut self.notes),
        }
    }

    fn in_vain(self, wait: Duration) -> Failure {
        let mut message = format!(
            "job {} ({}) has no process on this node{}; waited {} s (--wait)",
            self.id,
            self.scheduler,
            self.waits,
            wait.as_secs_f64()
        );
        for note in self.notes {
            message = format!("{message}; {note}");
        }
        Failure::new(Reason::Target, message)
    }
}

/// Whose the job is, as this process knows if it belongs to the job itself or to its prolog.
fn owner_here(scheduler: Scheduler, id: &str) -> Option<u32> {
    if !Stated::of_this_process().is_of(scheduler, id) {
        return None;
    }
    let own = rustix::process::getuid();
    if !own.is_root() {
        return Some(own.as_raw());
    }
    // slurmd tells its prolog.
    let told = std::env::var("SLURM_JOB_UID").ok()?.parse().ok()?;
    (scheduler == Scheduler::Slurm).then_some(told)
}

/// The user of a job with these processes. slurmstepd, and the shepherds of others, are root's in everybody's job.
fn owner_of(host: &Host, members: &[u32]) -> Option<u32> {
    let users = members.iter().filter_map(|pid| user_of(&host.procfs, *pid));
    let users: Vec<u32> = users.collect();
    let user = users.iter().find(|uid| **uid != 0).or(users.first());
    user.copied()
}

/// The only one of these users, or the one that asks.
fn the_one(users: &BTreeSet<u32>) -> Option<u32> {
    match users.len() {
        1 => users.first().copied(),
        _ => cgroups::asking_user().filter(|uid| users.contains(uid)),
    }
}

fn by_cgroup(host: &Host, scheduler: Scheduler, id: &str) -> Option<Found> {
    let wanted = Wanted { scheduler, id };
    cgroups::hierarchies(host)
        .into_iter()
        .find_map(|hierarchy| {
            let directories = wanted.directories(host, &hierarchy);
            let members = directories
                .iter()
                .map(|directory| cgroups::members(&directory.path));
            let members: Vec<u32> = members.flatten().collect();
            (!members.is_empty()).then(|| Found {
                scheduler,
                id: directories
                    .first()
                    .and_then(|directory| directory.number(host))
                    .unwrap_or_else(|| id.to_owned()),
                method: Method::Cgroup,
                hierarchy: Some(hierarchy),
                directories,
                pids: Vec::new(),
                owner: owner_of(host, &members),
                notes: Vec::new(),
            })
        })
}

/// Those that are there, and are not ours.
pub(super) fn alive(host: &Host, mut pids: Vec<u32>) -> Vec<u32> {
    pids.retain(|pid| !is_ours(&host.procfs, *pid) && host.procfs.join(pid.to_string()).exists());
    pids
}

/// Processes of its owner whose environments name the job.
pub(super) fn by_environment(
    procfs: &Path,
    scheduler: Scheduler,
    id: &str,
    owner: Option<u32>,
) -> Vec<u32> {
    owner.map_or_else(Vec::new, |owner| {
        of_user(claims(procfs, scheduler, id), owner)
    })
}

fn of_user(claims: Vec<(u32, u32)>, user: u32) -> Vec<u32> {
    let own = claims.into_iter().filter(|(_, uid)| *uid == user);
    own.map(|(pid, _)| pid).collect()
}

/// Processes whose environments name the job, and their users; not this one, nor the commands that it runs, nor what the
/// node does for the job before and after it.
fn claims(procfs: &Path, scheduler: Scheduler, id: &str) -> Vec<(u32, u32)> {
    let names = |pid: &u32| {
        Stated::read(procfs, *pid).is_some_and(|stated| stated.is_of(scheduler, id))
            && !is_ours(procfs, *pid)
            && !(scheduler == Scheduler::Slurm && is_of_slurmd(procfs, *pid))
    };
    let claims = pids(procfs).filter(names);
    claims
        .filter_map(|pid| Some((pid, user_of(procfs, pid)?)))
        .collect()
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
    let owner = match by_cgroup(host, scheduler, &id) {
        Some(found) => found.owner,
        None => owner_of(
            host,
            &scheduler_command::processes(scheduler, &id).unwrap_or_default(),
        ),
    };
    let own = rustix::process::geteuid().as_raw();
    owner.filter(|owner| *owner != own).map(|owner| (id, owner))
}
