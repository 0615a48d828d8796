//! Batch jobs: whose process it is, and the processes of one job on this node.
//!
//! [`cgroup_path`] and [`environment`] are pure: what a cgroup's path and an environment say. [`trust`] decides which cgroups prove
//! a job. [`find`] looks for the processes of a job, [`scheduler_command`] asks its scheduler, [`watcher`] goes on doing both while the
//! job runs.

pub mod cgroup_path;
mod cgroups;
pub mod environment;
pub mod find;
pub mod ipc;
pub mod scheduler_command;
pub mod trust;
pub mod watcher;

use std::{
    collections::HashMap,
    fmt, fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::ValueEnum;

pub use self::{
    cgroup_path::Place,
    cgroups::{Directory, has_jobs},
    environment::Stated,
    find::{Found, Method},
    watcher::Watcher,
};
use crate::procfs::process_file::{self, SMALL_MAX};

/// What runs batch jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Scheduler {
    /// Slurm
    Slurm,
    /// PBS Professional, OpenPBS
    Pbs,
    /// OAR
    Oar,
    /// Flux
    Flux,
    /// None: the job is a scope or service of systemd
    None,
}

impl Scheduler {
    /// As its users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Oar => "OAR",
            Self::Flux => "Flux",
            Self::None => "systemd",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Processes without a cgroup of the job that are named to the programs at a time.
pub const ROOTS_MAX: usize = 4096;

/// What `--job` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The job; that of the environment when left out.
    pub id: Option<String>,
    /// Detected when left out.
    pub scheduler: Option<Scheduler>,
    /// How long to wait for its first process.
    pub wait: Duration,
}

/// Whether a text can be the name of a job: it becomes an argument of commands.
pub fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "._-+[]:@\\".contains(c);
    (1..=128).contains(&text.len()) && !text.starts_with('-') && text.chars().all(fits)
}

/// Name of the run of a job, which every node finds by itself: `slurm-4711`. What fits no directory becomes `_`.
pub fn run_id(scheduler: Scheduler, id: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._-+[]".contains(c);
    let id: String = id.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    format!("{}-{id}", scheduler.name().to_lowercase())
}

/// The job, step and rank of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Job.
    pub job: Option<Arc<str>>,
    /// What runs it.
    pub scheduler: Option<Scheduler>,
    /// Its step.
    pub step: Option<Arc<str>>,
    /// Rank of MPI, or number of the task in its step.
    pub rank: Option<u32>,
    /// Whether the job is known from a cgroup that only root or the scheduler can create.
    by_cgroup: bool,
}

impl Membership {
    /// The job, and what it is known from.
    pub fn job(&self) -> Option<(&Arc<str>, Method)> {
        let method = if self.by_cgroup {
            Method::Cgroup
        } else {
            Method::Environment
        };
        self.job.as_ref().map(|job| (job, method))
    }

    /// The batch job that a cgroup proves; a unit of systemd is none.
    pub fn proven(&self) -> Option<&Arc<str>> {
        let is_proven = self.by_cgroup && self.scheduler != Some(Scheduler::None);
        self.job.as_ref().filter(|_| is_proven)
    }

    /// Takes over where the process is; `job` is the name that users know the job by.
    pub fn is_in(&mut self, place: &Place, job: Arc<str>) {
        if self.job.as_ref() != Some(&job) {
            *self = Self::default();
        }
        self.job = Some(job);
        self.scheduler = Some(place.scheduler);
        self.by_cgroup = true;
        if let Some(step) = &place.step {
            self.step = Some(step.as_str().into());
        }
        self.rank = self.rank.or(place.task);
    }

    /// Takes over what the environment says, which is inherited and can be of another job.
    pub fn states(&mut self, stated: &Stated) {
        let ours = match &self.job {
            Some(job) => {
                let job: &str = job;
                stated.jobs.iter().find(|(scheduler, id)| match scheduler {
                    Scheduler::Pbs => cgroup_path::same_pbs_job(job, id),
                    _ => job == id,
                })
            }
            None => None,
        };
        let first = stated.jobs.first();
        match (ours.or(first), ours.is_some()) {
            // A rank of no job; or who has cleaned the environment of all but that.
            (None, _) => {}
            (Some((scheduler, _)), true) => {
                if *scheduler == Scheduler::Slurm && self.step.is_none() {
                    self.step = stated.step.as_deref().map(Into::into);
                } else if !self.by_cgroup {
                    self.step = stated.step.as_deref().map(Into::into).or(self.step.take());
                }
            }
            (Some(_), false) if self.by_cgroup => return,
            (Some((scheduler, id)), false) => {
                *self = Self {
                    job: Some(id.as_str().into()),
                    scheduler: Some(*scheduler),
                    step: stated.step.as_deref().map(Into::into),
                    rank: None,
                    by_cgroup: false,
                };
            }
        }
        self.rank = stated.rank.or(self.rank);
    }
}

/// The numbers of jobs whose directories are named by SLUIDs.
#[derive(Debug, Default)]
pub struct Numbers {
    known: HashMap<String, Arc<str>>,
    /// Until when those that no process could tell are left alone.
    unknown_until: HashMap<String, Instant>,
}

impl Numbers {
    /// More jobs than a node runs at a time; the numbers of older ones can be read again.
    const MAX: usize = 4096;
    /// After a search in vain, the next one waits this long: it reads all processes of the job.
    const RETRY: Duration = Duration::from_secs(1);

    /// Whether the name is known that users know the job of a place by.
    pub fn has(&self, place: &Place) -> bool {
        !place.has_sluid() || self.known.contains_key(&place.job)
    }

    /// The name that users know the job of a place by; its SLUID, until [`Self::has`].
    pub fn of(&self, place: &Place) -> Arc<str> {
        let number = self.known.get(&place.job).filter(|_| place.has_sluid());
        number.cloned().unwrap_or_else(|| place.job.as_str().into())
    }

    /// The number of the job whose cgroup is this directory, if its name does not tell and a process in it does.
    pub fn find(&mut self, procfs: &Path, directory: &Path, place: &Place) -> Option<Arc<str>> {
        if !place.has_sluid() {
            return None;
        }
        if self.has(place) {
            return Some(self.of(place));
        }
        let now = Instant::now();
        let is_early = |until: &Instant| now < *until;
        if self.unknown_until.get(&place.job).is_some_and(is_early) {
            return None;
        }
        self.unknown_until.retain(|_, until| is_early(until));
        let Some(number) = slurm_number(procfs, directory) else {
            self.unknown_until
                .insert(place.job.clone(), now + Self::RETRY);
            return None;
        };
        self.learn(&place.job, number.into());
        Some(self.of(place))
    }

    /// Takes over the number of the job of a place.
    pub fn learn_of(&mut self, place: &Place, number: Arc<str>) {
        if !self.has(place) {
            self.learn(&place.job, number);
        }
    }

    /// Takes over what has been found out elsewhere.
    pub fn learn(&mut self, sluid: &str, number: Arc<str>) {
        if self.known.len() >= Self::MAX {
            self.known.clear();
        }
        self.known.insert(sluid.to_owned(), number);
    }

    /// The number of a job that was first known by its SLUID only.
    pub fn known(&self, job: &Arc<str>) -> Arc<str> {
        self.known.get(&**job).unwrap_or(job).clone()
    }
}

/// The number of the job of Slurm in whose cgroup `directory` is: from the title of slurmstepd, `slurmstepd: [7.batch]`. What
/// the job's own processes say of themselves proves nothing.
pub fn slurm_number(procfs: &Path, directory: &Path) -> Option<String> {
    cgroups::members(directory)
        .into_iter()
        .filter(|pid| is_slurmstepd(procfs, *pid))
        .find_map(|pid| {
            let title = process_file::read(procfs, pid, "cmdline", SMALL_MAX).ok()?;
            number_in_title(&String::from_utf8_lossy(&title.bytes))
        })
}

/// Whether a process is slurmstepd: root's, and running a program of that name. A user can choose title and name of what he
/// runs, but a program with the set-user-ID bit has another file.
fn is_slurmstepd(procfs: &Path, pid: u32) -> bool {
    let exe = || fs::read_link(procfs.join(format!("{pid}/exe"))).ok();
    user_of(procfs, pid) == Some(0)
        && exe().is_some_and(|exe| exe.file_name() == Some("slurmstepd".as_ref()))
}

/// The real user of a process. The owner of its directory in /proc is root's as soon as it is not dumpable.
pub(crate) fn user_of(procfs: &Path, pid: u32) -> Option<u32> {
    let status = fs::read_to_string(procfs.join(format!("{pid}/status"))).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

/// The number in the title of slurmstepd.
fn number_in_title(title: &str) -> Option<String> {
    let name = title.strip_prefix("slurmstepd: [")?;
    let (number, _) = name.split_once(['.', ']'])?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(text: &str) -> Stated {
        Stated::of(text.split(' ').map(str::as_bytes))
    }

    fn place(path: &str) -> Place {
        cgroup_path::identify(path).expect("a job")
    }

    #[track_caller]
    fn check(membership: &Membership, job: &str, step: Option<&str>, rank: Option<u32>) {
        let names = (
            membership.job.as_deref(),
            membership.step.as_deref(),
            membership.rank,
        );
        assert_eq!(names, (Some(job), step, rank));
    }

    #[test]
    fn cgroup_and_environment_together() {
        let mut task = Membership::default();
        task.is_in(&place("/slurm/uid_0/job_7"), "7".into());
        check(&task, "7", None, None);
        // Its program was started, and ended before its cgroup could be read.
        task.states(&stated("SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3"));
        check(&task, "7", Some("1"), Some(3));
        task.is_in(&place("/slurm/uid_0/job_7/step_1"), "7".into());
        check(&task, "7", Some("1"), Some(3));
        // A program with another environment, or none, is still there.
        task.states(&stated("PATH=/bin"));
        check(&task, "7", Some("1"), Some(3));
        task.states(&stated("SLURM_JOB_ID=8 SLURM_STEP_ID=0 SLURM_PROCID=0"));
        check(&task, "7", Some("1"), Some(3));
        // mpirun's ranks.
        task.states(&stated(
            "SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3 PMIX_RANK=9",
        ));
        check(&task, "7", Some("1"), Some(9));
    }

    #[test]
    fn environment_alone() {
        let mut shell = Membership::default();
        shell.states(&stated("SLURM_JOB_ID=7"));
        check(&shell, "7", None, None);
        shell.states(&stated("SLURM_JOB_ID=7 OMPI_COMM_WORLD_RANK=1"));
        check(&shell, "7", None, Some(1));
        shell.states(&stated("OAR_JOB_ID=5"));
        check(&shell, "5", None, None);
        let mut nobody = Membership::default();
        nobody.states(&stated("PMI_RANK=1"));
        assert_eq!((nobody.job, nobody.rank), (None, Some(1)));
    }

    #[test]
    fn a_cgroup_of_another_job_counts_more() {
        let mut task = Membership::default();
        task.states(&stated("SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3"));
        task.is_in(&place("/slurm/uid_0/job_8/step_0"), "8".into());
        check(&task, "8", Some("0"), None);
    }

    #[test]
    fn names() {
        for id in [
            "7",
            "7.server",
            "12_3",
            "7[2].server",
            "ƒ2Rt",
            "s5K1KKYAYG5D00",
            "run-u1.service",
        ] {
            assert!(is_id(id), "{id}");
        }
        for not in ["", "-7", "a b", "a/b", "7;x", "$x", &"7".repeat(129)] {
            assert!(!is_id(not), "{not}");
        }
        assert_eq!(
            number_in_title("slurmstepd: [7.batch]").as_deref(),
            Some("7")
        );
        assert_eq!(number_in_title("slurmstepd: [12.0]").as_deref(), Some("12"));
        for not in ["", "slurmstepd", "slurmstepd: []", "slurmstepd: [x.0]"] {
            assert_eq!(number_in_title(not), None);
        }
    }
}
