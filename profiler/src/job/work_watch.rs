//! When the lack of work ends the profiling of a job.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    FoundJob, JobEnvironment, Scheduler, cgroup_path, environment_search,
    work::{Finding, Job, ProcReader, SrunSearch, WorkSearch},
};
use crate::procfs::process_cgroup;

/// Successive searches that must find that the script waits.
const CONFIRMATIONS: u32 = 2;
/// Default of `--idle-timeout` for a profiler that is part of the job.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why profiling ends although the job is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The script of the job waits for the profiler.
    ScriptWaits,
    /// This node has had no work for this time.
    NoWork(Duration),
    /// Another node announced the end, and this one has no work.
    Announced,
}

impl End {
    /// Message about the job of this name.
    pub(super) fn reason(self, job: &str) -> String {
        match self {
            Self::ScriptWaits => format!("job {job} waits only for the profiler"),
            Self::NoWork(time) => format!(
                "job {job} has had no work on this node for {} s (--idle-timeout)",
                time.as_secs_f64()
            ),
            Self::Announced => format!(
                "job {job} has no work on this node, and its script waits only for the profiler"
            ),
        }
    }
}

/// The rule that decides from the results of searches.
#[derive(Debug, Default)]
struct EndRule {
    idle_timeout: Option<Duration>,
    /// Whether another node announced the end of the work.
    announced: bool,
    /// Time of the last work.
    last_work: Option<Instant>,
    /// Successive searches that found that the script waits.
    waiting: u32,
}

impl EndRule {
    /// Applies a result. A profiler outside of the job does not delay the end of the job, and can
    /// wait for it.
    fn apply(&mut self, now: Instant, finding: Finding, is_inside: bool) -> Option<End> {
        if let Finding::Work(_) = finding {
            self.last_work = Some(now);
        }
        self.waiting = match finding {
            Finding::Waiting if is_inside => self.waiting + 1,
            _ => 0,
        };
        if self.waiting >= CONFIRMATIONS {
            return Some(End::ScriptWaits);
        }
        if self.announced && finding == Finding::Idle {
            return Some(End::Announced);
        }
        let idle_timeout = self.idle_timeout.or(is_inside.then_some(IDLE_TIMEOUT))?;
        let idle = now.saturating_duration_since(self.last_work?);
        (idle >= idle_timeout).then_some(End::NoWork(idle_timeout))
    }
}

/// Watches whether a job has work on this node.
pub(super) struct WorkWatch {
    procfs: PathBuf,
    program: String,
    search: WorkSearch,
    srun: SrunSearch,
    rule: EndRule,
    /// Whether this process is part of the job.
    is_inside: bool,
    /// Whether this process can be part of the job: not in a systemd unit, which is not a batch job,
    /// and not if it came into the job from outside, such as by ssh.
    can_be_inside: bool,
}

impl WorkWatch {
    pub(super) fn new(procfs: PathBuf, job: &FoundJob, idle_timeout: Option<Duration>) -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = PathBuf::from(program);
        let cgroups = process_cgroup::own(&procfs).unwrap_or_default();
        let cgroup = cgroup_path::identify_all(&cgroups);
        Self {
            program: program
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            search: WorkSearch::default(),
            srun: SrunSearch::new(&procfs),
            rule: EndRule {
                idle_timeout,
                ..EndRule::default()
            },
            is_inside: is_started_by(job, &procfs),
            can_be_inside: job.scheduler != Scheduler::None
                && cgroup.is_none_or(|cgroup| cgroup.step.as_deref() != Some("extern")),
            procfs,
        }
    }

    /// Applies that the process that worked at the last search still exists. Returns whether it
    /// does; otherwise [`Self::search`] is needed.
    pub(super) fn still_works(&mut self) -> bool {
        let reader = ProcReader(&self.procfs);
        let witness = self.search.witness(&reader);
        if let Some(pid) = witness {
            self.rule
                .apply(Instant::now(), Finding::Work(pid), self.is_inside);
        }
        witness.is_some()
    }

    /// Searches the members of the job for work.
    pub(super) fn search(&mut self, members: &HashSet<u32>) -> Option<End> {
        let own = std::process::id();
        self.is_inside |= members.contains(&own) && self.can_be_inside;
        let job = Job {
            members,
            own,
            program: &self.program,
            srun: self.srun.find(members),
        };
        let finding = self.search.search(&ProcReader(&self.procfs), &job);
        self.rule.apply(Instant::now(), finding, self.is_inside)
    }

    /// Applies that another node announced the end of the work.
    pub(super) fn set_announced(&mut self) {
        self.rule.announced = true;
    }

    /// Whether the script of the job runs on this node.
    pub(super) fn has_script(&self) -> bool {
        self.search.has_script()
    }
}

/// Whether a process of the job started this process, by its environment. Slurm's prologs have one
/// that names the job as well.
fn is_started_by(job: &FoundJob, procfs: &Path) -> bool {
    let environment = JobEnvironment::of_this_process();
    let daemon = environment_search::slurm_daemon(procfs, std::process::id());
    environment.names(job.scheduler, &job.id)
        && job.owner == Some(rustix::process::getuid().as_raw())
        && (job.step.is_none() || job.step.as_deref() == environment.step.as_deref())
        && (job.scheduler != Scheduler::Slurm || daemon.as_deref() == Some("slurmstepd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Finding = Finding::Work(7);

    /// Applies one result each second, and returns the end with its second.
    fn end(idle_timeout: Option<u64>, is_inside: bool, findings: &[Finding]) -> Option<(u64, End)> {
        let mut rule = EndRule {
            idle_timeout: idle_timeout.map(Duration::from_secs),
            ..EndRule::default()
        };
        let begin = Instant::now();
        (0..).zip(findings).find_map(|(second, finding)| {
            let now = begin + Duration::from_secs(second);
            Some((second, rule.apply(now, *finding, is_inside)?))
        })
    }

    fn then(finding: Finding, count: usize, next: &[Finding]) -> Vec<Finding> {
        let mut findings = vec![finding; count];
        findings.extend(next);
        findings
    }

    #[test]
    fn script_that_waits_ends_the_run() {
        let findings = [WORK, Finding::Waiting, Finding::Waiting];
        assert_eq!(end(None, true, &findings), Some((2, End::ScriptWaits)));
        // Also without any work before, and whatever --idle-timeout is.
        assert_eq!(
            end(Some(60), true, &findings[1..]),
            Some((1, End::ScriptWaits))
        );
        let interrupted = [Finding::Waiting, WORK, Finding::Waiting, Finding::Idle];
        assert_eq!(end(None, true, &interrupted), None);
        assert_eq!(end(None, false, &findings), None);
    }

    #[test]
    fn pause_longer_than_the_idle_timeout_ends_the_run() {
        let pause = then(WORK, 3, &then(Finding::Idle, 20, &[WORK]));
        let five = End::NoWork(IDLE_TIMEOUT);
        assert_eq!(end(None, true, &pause), Some((7, five)));
        assert_eq!(end(Some(30), true, &pause), None);
        let given = End::NoWork(Duration::from_secs(10));
        assert_eq!(end(Some(10), true, &pause), Some((12, given)));
    }

    #[test]
    fn first_work_is_waited_for() {
        let idle = vec![Finding::Idle; 1000];
        assert_eq!(end(None, true, &idle), None);
        assert_eq!(end(Some(1), true, &idle), None);
    }

    #[test]
    fn announced_end_applies_to_a_node_without_work() {
        let mut rule = EndRule {
            announced: true,
            ..EndRule::default()
        };
        assert_eq!(rule.apply(Instant::now(), WORK, true), None);
        let end = rule.apply(Instant::now(), Finding::Idle, true);
        assert_eq!(end, Some(End::Announced));
    }

    #[test]
    fn profiler_outside_of_the_job_has_an_idle_timeout_only_on_request() {
        let pause = then(WORK, 1, &[Finding::Idle; 1000]);
        assert_eq!(end(None, false, &pause), None);
        let given = End::NoWork(Duration::from_secs(10));
        assert_eq!(end(Some(10), false, &pause), Some((10, given)));
    }
}
