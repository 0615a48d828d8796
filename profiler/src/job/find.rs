//! Search for a job on this node: by its cgroup, through its scheduler, or by environments.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use super::{
    FoundJob, JobId, Method, Request, Scheduler, Step,
    cgroups::{self, JobRef},
    environment_search::{self, alive, claims},
    id::is_sluid,
    identify::identify,
    owner,
    scheduler_command::{self, JobState, QueryError, unrecognized},
};
use crate::{
    failure::{Failure, Reason},
    host::Host,
    procfs::process_cgroup,
};

/// Period of the search for cgroups.
const CGROUP_PERIOD: Duration = Duration::from_millis(50);
/// Period of queries to the scheduler and of searches of all environments.
const QUERY_PERIOD: Duration = Duration::from_secs(1);
/// Wait before the first report, and between two reports.
const FIRST_REPORT: Duration = Duration::from_secs(2);
const REPORT_PERIOD: Duration = Duration::from_secs(15);

/// Finds a job, and waits for it if it has no process yet, or if its owner is needed and not known
/// yet. `report` receives a line with the reason for waiting.
///
/// # Errors
///
/// If the job is over or unknown, or has no process within the time limit.
pub fn find(
    host: &Host,
    request: &Request,
    needs_owner: bool,
    report: impl Fn(&str),
) -> Result<FoundJob, Failure> {
    let (scheduler, id) = identify(host, request)?;
    if request.step.is_some() && scheduler != Scheduler::Slurm {
        let message = format!("--step: jobs of {scheduler} have no steps");
        return Err(Failure::new(Reason::Usage, message));
    }
    let mut search = Search {
        host,
        scheduler,
        step: request.step.clone(),
        has_final_id: scheduler != Scheduler::Slurm
            || is_sluid(&id)
            || id.bytes().all(|byte| byte.is_ascii_digit()),
        owner: owner::from_own_environment(scheduler, &id),
        needs_owner,
        id,
        can_query: true,
        is_confirmed: false,
        is_of_root: false,
        state: Cow::Borrowed(""),
        unrecognized: BTreeSet::new(),
        notes: Vec::new(),
        unanswered: None,
        wait: request.wait,
        report: &report,
    };
    let begin = Instant::now();
    let mut queried: Option<Instant> = None;
    let mut report_at = FIRST_REPORT;
    loop {
        if search.has_final_id
            && let Some(found) = search.by_cgroup()
        {
            return Ok(found);
        }
        if queried.is_none_or(|at| at.elapsed() >= QUERY_PERIOD) {
            if let Some(found) = search.query()? {
                return Ok(found);
            }
            queried = Some(Instant::now());
        }
        let (waited, wait) = (begin.elapsed(), request.wait);
        if waited >= wait {
            return Err(search.timed_out(wait));
        }
        if waited >= report_at {
            report(&format!(
                "waiting for job {} ({scheduler}) on this node{}: {} of {} s (--wait)",
                search.job().name(),
                search.state,
                waited.as_secs(),
                wait.as_secs_f64()
            ));
            report_at = waited + REPORT_PERIOD;
        }
        thread::sleep(CGROUP_PERIOD);
    }
}

struct Search<'a> {
    host: &'a Host,
    scheduler: Scheduler,
    id: JobId,
    step: Option<Step>,
    /// Whether `id` is the one in paths and environments, and not an id of an array task.
    has_final_id: bool,
    owner: Option<u32>,
    needs_owner: bool,
    /// Whether the scheduler has answered so far.
    can_query: bool,
    /// Whether the scheduler has said that the job is not over.
    is_confirmed: bool,
    /// Whether there are processes, of root, that do not tell the owner.
    is_of_root: bool,
    /// State of a job without processes, for messages.
    state: Cow<'static, str>,
    /// Words for its state that were reported as not known.
    unrecognized: BTreeSet<String>,
    notes: Vec<String>,
    /// Why the scheduler was not queried again.
    unanswered: Option<String>,
    /// How long a process of the job is waited for.
    wait: Duration,
    report: &'a dyn Fn(&str),
}

impl Search<'_> {
    fn job(&self) -> JobRef<'_> {
        JobRef {
            scheduler: self.scheduler,
            id: &self.id,
            step: self.step.as_ref(),
        }
    }

    fn by_cgroup(&mut self) -> Option<FoundJob> {
        let found = by_cgroup(self.host, self.job())?;
        let owner = self.owner.or(found.owner);
        self.accepts(owner).then(|| FoundJob {
            owner,
            unrecognized: std::mem::take(&mut self.unrecognized),
            notes: std::mem::take(&mut self.notes),
            ..found
        })
    }

    /// Whether processes in cgroups, or listed by the scheduler, prove a job. Without an owner, they
    /// are root's, which the scheduler must confirm if it can.
    fn accepts(&mut self, owner: Option<u32>) -> bool {
        let is_confirmed = !self.needs_owner && (self.is_confirmed || !self.can_query);
        self.is_of_root = owner.is_none();
        owner.is_some() || is_confirmed
    }

    /// Queries the scheduler, then searches all environments.
    fn query(&mut self) -> Result<Option<FoundJob>, Failure> {
        if self.can_query {
            self.query_status()?;
        }
        // The job may have started during the query.
        if let Some(found) = self.by_cgroup() {
            return Ok(Some(found));
        }
        if self.can_query
            && let Ok(pids) = scheduler_command::processes(self.scheduler, &self.job().name())
        {
            let pids = alive(self.host, pids);
            if !pids.is_empty() {
                if let Some(found) = self.by_cgroup() {
                    return Ok(Some(found));
                }
                let users = owner::users(self.host, &pids);
                let owner = self
                    .owner
                    .or_else(|| owner::of_users(self.scheduler, &users));
                if self.accepts(owner) {
                    self.owner = owner;
                    let users = users.into_iter().collect();
                    return Ok(Some(self.without_cgroup(Method::Scheduler, pids, users)));
                }
            }
        }
        let found = self.by_environment();
        // A process joins the cgroup of its job before it has the environment.
        Ok(match found {
            Some(found) => self.by_cgroup().or(Some(found)),
            None => None,
        })
    }

    fn query_status(&mut self) -> Result<(), Failure> {
        let (scheduler, id) = (self.scheduler, &self.id);
        let gone = |message: String| Err(Failure::new(Reason::Target, message));
        match scheduler_command::status(scheduler, id) {
            Ok(status) => {
                match status.state {
                    JobState::Unknown => {
                        return gone(format!("job {id} is unknown to {scheduler}"));
                    }
                    JobState::Over(state) => {
                        return gone(format!("job {id} is over ({scheduler}: {state})"));
                    }
                    JobState::Waiting => {
                        self.is_confirmed = true;
                        self.state = ", it has not started".into();
                    }
                    JobState::Running => {
                        self.is_confirmed = true;
                        self.state = ", although it is running".into();
                    }
                    JobState::Unrecognized(word) => {
                        self.state = format!(", its state is {word}").into();
                        if !self.unrecognized.contains(&word) {
                            (self.report)(&unrecognized(scheduler, id, &word));
                            self.unrecognized.insert(word);
                        }
                    }
                }
                self.owner = status.owner.or(self.owner);
                if let Some(id) = status.id {
                    self.id = id;
                }
            }
            Err(QueryError::Unsupported(_)) => {
                self.can_query = false;
                return Ok(());
            }
            Err(error) => {
                self.can_query = false;
                let note = format!("cannot query {scheduler} about job {id}: {error}");
                // At once if the wait for its processes is long.
                if self.wait >= FIRST_REPORT {
                    (self.report)(&format!("{note}; searching for its processes"));
                }
                self.unanswered = Some(note);
            }
        }
        self.has_final_id = true;
        Ok(())
    }

    fn by_environment(&mut self) -> Option<FoundJob> {
        let claims = claims(&self.host.procfs, self.job(), self.owner);
        let users: BTreeSet<u32> = claims.iter().map(|claim| claim.uid).collect();
        let Some(owner) = self.owner.or_else(|| owner::among(&users)) else {
            if !users.is_empty() {
                let users: Vec<_> = users.iter().map(|uid| format!("uid {uid}")).collect();
                self.note(format!(
                    "processes of several users ({}) name job {}, and its owner is unknown: no \
                     cgroup proves it, and {} does not report it",
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
        let pids = environment_search::of_user(&claims, owner);
        if pids.is_empty() {
            return None;
        }
        self.owner = Some(owner);
        Some(self.without_cgroup(Method::Environment, pids, BTreeSet::from([owner])))
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn without_cgroup(&mut self, method: Method, pids: Vec<u32>, users: BTreeSet<u32>) -> FoundJob {
        FoundJob {
            scheduler: self.scheduler,
            id: self.id.clone(),
            step: self.step.clone(),
            method,
            hierarchy: cgroups::hierarchies(self.host).into_iter().next(),
            directories: Vec::new(),
            pids,
            owner: self.owner,
            users,
            unrecognized: std::mem::take(&mut self.unrecognized),
            notes: std::mem::take(&mut self.notes),
        }
    }

    fn timed_out(self, wait: Duration) -> Failure {
        let found = if self.is_of_root {
            "only processes of root, which do not tell its owner,"
        } else {
            "no process"
        };
        let mut message = format!(
            "job {} ({}) has {found} on this node{}; waited {} s (--wait)",
            self.job().name(),
            self.scheduler,
            self.state,
            wait.as_secs_f64()
        );
        for note in self.notes.into_iter().chain(self.unanswered) {
            message = format!("{message}; {note}");
        }
        Failure::new(Reason::Target, message)
    }
}

fn by_cgroup(host: &Host, job: JobRef<'_>) -> Option<FoundJob> {
    cgroups::hierarchies(host)
        .into_iter()
        .find_map(|hierarchy| {
            let directories = job.directories(host, &hierarchy);
            let members: Vec<u32> = directories
                .iter()
                .flat_map(|directory| process_cgroup::all_members(&directory.path))
                .collect();
            let users = owner::users(host, &members);
            let owner = directories.iter().find_map(|directory| directory.owner);
            (!users.is_empty()).then(|| FoundJob {
                scheduler: job.scheduler,
                id: directories
                    .first()
                    .and_then(|directory| JobId::try_from(directory.job_id(host)?).ok())
                    .unwrap_or_else(|| job.id.clone()),
                step: job.step.cloned(),
                method: Method::Cgroup,
                hierarchy: Some(hierarchy),
                directories,
                pids: Vec::new(),
                owner: owner.or_else(|| owner::of_users(job.scheduler, &users)),
                users: users.into_iter().collect(),
                unrecognized: BTreeSet::new(),
                notes: Vec::new(),
            })
        })
}
