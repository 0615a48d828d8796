//! The batch job that the path of a cgroup names: scheduler, job, step and task.
//!
//! | scheduler | paths |
//! |---|---|
//! | Slurm, v1 | `/slurm/uid_0/job_7/step_0/task_1`, `/slurm_NODE/…` where several slurmd may run |
//! | Slurm, v2 | `/system.slice/slurmstepd.scope/job_7/step_0/user/task_1`, `NODE_slurmstepd.scope` |
//! | Slurm 26.05 | the same with a SLUID such as `s5K1KKYAYG5D00` in place of `job_7` |
//! | PBS | `/pbs_jobs.service/jobid/7.server`, `/pbspro.service/jobid/…`, `/pbspro/7.server` |
//! | PBS, v2 | `/pbs_jobs.service/jobs/…`, `/pbspro.slice/pbspro-7.server.slice` |
//! | OAR | `/oar/USER_7` |
//! | OAR, v2 | `/oar.slice/oar-u1000.slice/oar-u1000-j7.slice`, `/oar.slice/USER_7.scope` |
//! | Flux | `/…/shell-0-f2RtKLfMbN.service`, `imp-shell-…` |
//! | systemd-run | `/…/run-u7.service`, `run-r….scope` |

use super::{
    Scheduler,
    id::{flux_id, is_same_job, is_sluid, unit_stem},
};
use crate::procfs::process_cgroup;

/// A cgroup that a scheduler created for a job, identified by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCgroup {
    /// Scheduler with this layout of paths.
    pub scheduler: Scheduler,
    /// Job as named by its directory: a number, `7.server`, a SLUID, a systemd unit.
    pub job: String,
    /// Step: a number, `batch`, `extern`, `interactive`.
    pub step: Option<String>,
    /// Task number. Slurm numbers the tasks of a node in the hierarchy `memory`, and those of the
    /// whole step in `cpuacct`.
    pub task: Option<u32>,
    /// Uid of the owner, if the path contains it (`uid_1000`, `oar-u1000`).
    pub owner: Option<u32>,
    /// Length of the path up to the job's directory, bytes.
    pub directory_len: usize,
}

impl JobCgroup {
    /// Whether the directory is named by a SLUID, which does not contain the job number.
    pub fn has_sluid(&self) -> bool {
        self.scheduler == Scheduler::Slurm && is_sluid(&self.job)
    }

    /// Whether the cgroup belongs to the job with this id. The suffix of a systemd unit is
    /// optional.
    pub fn is_of(&self, scheduler: Scheduler, id: &str) -> bool {
        self.scheduler == scheduler
            && (is_same_job(scheduler, &self.job, id)
                || scheduler == Scheduler::None && unit_stem(&self.job) == Some(id))
    }
}

/// Identifies the job in a path as in `/proc/PID/cgroup`; `None` if the path has no known layout.
pub fn identify(path: &str) -> Option<JobCgroup> {
    let path = Components::of(path);
    (0..path.0.len())
        .find_map(|at| {
            slurm(&path, at)
                .or_else(|| pbs(&path, at))
                .or_else(|| oar(&path, at))
                .or_else(|| flux(&path, at))
        })
        .or_else(|| (0..path.0.len()).find_map(|at| transient_unit(&path, at)))
}

/// Finds the systemd unit `name`, with or without its suffix, in a path.
pub fn identify_unit(path: &str, name: &str) -> Option<JobCgroup> {
    let path = Components::of(path);
    let at = (0..path.0.len()).find(|at| {
        let component = path.name(*at);
        component == name || unit_stem(component) == Some(name)
    })?;
    Some(path.job_cgroup(Scheduler::None, name.to_owned(), at))
}

/// Combines the jobs that the lines of `/proc/PID/cgroup` name in all hierarchies. The task is its
/// number in the whole step, if available.
pub fn identify_all(lines: &[u8]) -> Option<JobCgroup> {
    identify_where(lines, |_, _, _| true)
}

/// Like [`identify_all`], restricted to lines accepted by `accepts(controllers, path, cgroup)`.
pub fn identify_where(
    lines: &[u8],
    mut accepts: impl FnMut(&str, &str, &JobCgroup) -> bool,
) -> Option<JobCgroup> {
    let mut best: Option<JobCgroup> = None;
    for line in process_cgroup::lines(lines) {
        // Names of jobs are ASCII; a user can give any bytes to a cgroup below.
        let path = line.path.to_string_lossy();
        let Some(mut cgroup) =
            identify(&path).filter(|cgroup| accepts(line.controllers, &path, cgroup))
        else {
            continue;
        };
        if !line.controllers.split(',').any(|name| name == "cpuacct") {
            cgroup.task = None;
        }
        let Some(combined) = &mut best else {
            best = Some(cgroup);
            continue;
        };
        // systemd-run can have started a scheduler.
        if combined.scheduler == Scheduler::None && cgroup.scheduler != Scheduler::None {
            *combined = cgroup;
        } else if combined.job == cgroup.job {
            combined.step = combined.step.take().or(cgroup.step);
            combined.task = combined.task.or(cgroup.task);
        }
    }
    best
}

/// Names of a path, each with the offset of its end.
struct Components<'a>(Vec<(&'a str, usize)>);

impl<'a> Components<'a> {
    fn of(path: &'a str) -> Self {
        let mut end = 0;
        let components = path.split('/').map(|name| {
            end += name.len() + 1;
            (name, end - 1)
        });
        Self(components.filter(|(name, _)| !name.is_empty()).collect())
    }

    /// Empty after the last component.
    fn name(&self, at: usize) -> &'a str {
        self.0.get(at).map_or("", |(name, _)| name)
    }

    fn job_cgroup(&self, scheduler: Scheduler, job: String, at: usize) -> JobCgroup {
        JobCgroup {
            scheduler,
            job,
            step: None,
            task: None,
            owner: None,
            directory_len: self.0.get(at).map_or(0, |(_, end)| *end),
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn slurm(path: &Components<'_>, at: usize) -> Option<JobCgroup> {
    let root = path.name(at);
    let (job_at, owner) = if root == "slurmstepd.scope" || root.ends_with("_slurmstepd.scope") {
        (at + 1, None)
    } else {
        let user = path.name(at + 1).strip_prefix("uid_")?;
        let is_root = root == "slurm" || root.starts_with("slurm_");
        if !is_root || !is_number(user) {
            return None;
        }
        (at + 2, user.parse().ok())
    };
    let name = path.name(job_at);
    let job = match name.strip_prefix("job_") {
        Some(number) if is_number(number) => number,
        None if is_sluid(name) => name,
        _ => return None,
    };
    let mut cgroup = path.job_cgroup(Scheduler::Slurm, job.to_owned(), job_at);
    cgroup.owner = owner;
    if let Some(step) = path.name(job_at + 1).strip_prefix("step_") {
        cgroup.step = (!step.is_empty()).then(|| step.to_owned());
        let tasks = [job_at + 2, job_at + 3].map(|at| path.name(at).strip_prefix("task_"));
        cgroup.task = tasks
            .into_iter()
            .flatten()
            .find_map(|task| task.parse().ok());
    }
    Some(cgroup)
}

fn pbs(path: &Components<'_>, at: usize) -> Option<JobCgroup> {
    let root = path.name(at);
    if !root.starts_with("pbs") {
        return None;
    }
    let (name, job_at) = if let Some(prefix) = root.strip_suffix(".slice") {
        let below = path.name(at + 1).strip_suffix(".slice")?;
        (below.strip_prefix(prefix)?.strip_prefix('-')?, at + 1)
    } else if ["jobid", "jobs"].contains(&path.name(at + 1)) {
        (path.name(at + 2), at + 2)
    } else {
        (path.name(at + 1), at + 1)
    };
    // `7.server`, `7[3].server`. Other directories of PBS begin with a letter.
    let job = unescaped(name);
    let is_job = job.starts_with(|first: char| first.is_ascii_digit());
    is_job.then(|| path.job_cgroup(Scheduler::Pbs, job, job_at))
}

/// Reverses the escapes of systemd in unit names, such as `\x2d`.
fn unescaped(name: &str) -> String {
    let mut pieces = name.split("\\x");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            text.push(char::from(code));
            text.push_str(&piece[2..]);
        } else {
            text.push_str("\\x");
            text.push_str(piece);
        }
    }
    text
}

fn oar(path: &Components<'_>, at: usize) -> Option<JobCgroup> {
    match path.name(at) {
        "oar" => {
            let (user, job) = path.name(at + 1).rsplit_once('_')?;
            let is_job = !user.is_empty() && is_number(job);
            is_job.then(|| path.job_cgroup(Scheduler::Oar, job.to_owned(), at + 1))
        }
        "oar.slice" => (at + 1..path.0.len()).find_map(|at| {
            let name = path.name(at);
            let bare = name
                .strip_suffix(".slice")
                .or_else(|| name.strip_suffix(".scope"))
                .unwrap_or(name);
            let (owner, job) = match bare.strip_prefix("oar-") {
                Some(rest) => {
                    let part = |prefix| rest.split('-').find_map(|part| part.strip_prefix(prefix));
                    (part('u'), part('j')?)
                }
                None => (None, bare.rsplit_once('_')?.1),
            };
            is_number(job).then(|| JobCgroup {
                owner: owner.and_then(|uid| uid.parse().ok()),
                ..path.job_cgroup(Scheduler::Oar, job.to_owned(), at)
            })
        }),
        _ => None,
    }
}

/// `shell-RANK-ID.service` with the rank of the broker.
fn flux(path: &Components<'_>, at: usize) -> Option<JobCgroup> {
    let name = path.name(at).strip_suffix(".service")?;
    let name = name.strip_prefix("imp-").unwrap_or(name);
    let (rank, id) = name.strip_prefix("shell-")?.split_once('-')?;
    let id = flux_id(id)?;
    is_number(rank).then(|| path.job_cgroup(Scheduler::Flux, id, at))
}

/// A unit of systemd-run.
fn transient_unit(path: &Components<'_>, at: usize) -> Option<JobCgroup> {
    let name = path.name(at);
    let is_run = name.starts_with("run-") && unit_stem(name).is_some();
    is_run.then(|| path.job_cgroup(Scheduler::None, name.to_owned(), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        path: &str,
        scheduler: Scheduler,
        job: &str,
        step: Option<&str>,
        task: Option<u32>,
        directory: &str,
    ) {
        let cgroup = identify(path).unwrap_or_else(|| panic!("{path}: no job"));
        assert_eq!(cgroup.scheduler, scheduler, "{path}");
        assert_eq!(cgroup.job, job, "{path}");
        assert_eq!(cgroup.step.as_deref(), step, "{path}");
        assert_eq!(cgroup.task, task, "{path}");
        assert_eq!(&path[..cgroup.directory_len], directory, "{path}");
    }

    #[test]
    fn slurm_paths() {
        let is = |path: &str, job: &str, step, task, directory: &str| {
            check(path, Scheduler::Slurm, job, step, task, directory);
        };
        let v1 = "/slurm/uid_0/job_1";
        is(v1, "1", None, None, v1);
        is(&format!("{v1}/step_batch"), "1", Some("batch"), None, v1);
        is(&format!("{v1}/step_0/task_3"), "1", Some("0"), Some(3), v1);
        let several = "/slurm_node-1/uid_1000/job_22";
        is(
            &format!("{several}/step_extern/task_0"),
            "22",
            Some("extern"),
            Some(0),
            several,
        );
        let v2 = "/system.slice/slurmstepd.scope/job_12";
        is(
            &format!("{v2}/step_0/user/task_1"),
            "12",
            Some("0"),
            Some(1),
            v2,
        );
        is(&format!("{v2}/step_0/slurm"), "12", Some("0"), None, v2);
        is(
            &format!("{v2}/step_batch/user/task_special"),
            "12",
            Some("batch"),
            None,
            v2,
        );
        is(
            &format!("{v2}/step_interactive/user"),
            "12",
            Some("interactive"),
            None,
            v2,
        );
        let node = "/system.slice/n1.cluster_slurmstepd.scope/job_9";
        is(node, "9", None, None, node);
        let sluid = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00";
        is(
            &format!("{sluid}/step_0/user/task_0"),
            "s5K1KKYAYG5D00",
            Some("0"),
            Some(0),
            sluid,
        );
        let inside = "/docker/1f/system.slice/slurmstepd.scope/job_4";
        is(inside, "4", None, None, inside);
        let custom = "/cluster.slice/slurmstepd.scope/job_4";
        is(custom, "4", None, None, custom);
    }

    #[test]
    fn paths_of_other_schedulers() {
        let is = |scheduler, path: &str, job: &str| check(path, scheduler, job, None, None, path);
        is(
            Scheduler::Pbs,
            "/pbspro.service/jobid/2397344.ehz100",
            "2397344.ehz100",
        );
        is(
            Scheduler::Pbs,
            "/pbs_jobs.service/jobid/7[3].opbs",
            "7[3].opbs",
        );
        is(
            Scheduler::Pbs,
            "/pbs_jobs.service/jobs/12345.gadi-pbs",
            "12345.gadi-pbs",
        );
        is(
            Scheduler::Pbs,
            "/pbspro.slice/pbspro-12.gadi\\x2dpbs.slice",
            "12.gadi-pbs",
        );
        is(Scheduler::Pbs, "/pbspro/0.headnode", "0.headnode");
        is(Scheduler::Oar, "/oar/tester_2", "2");
        is(Scheduler::Oar, "/oar/first_last_77", "77");
        is(Scheduler::Oar, "/oar.slice/tester_5.scope", "5");
        is(
            Scheduler::Oar,
            "/oar.slice/oar-u1000.slice/oar-u1000-j45670.slice",
            "45670",
        );
        let user = "/system.slice/system-flux.slice/user@500.service";
        is(
            Scheduler::Flux,
            &format!("{user}/shell-0-f2RtKLfMbN.service"),
            "f2RtKLfMbN",
        );
        is(
            Scheduler::Flux,
            &format!("{user}/imp-shell-12-f2RtKLfMbN.service"),
            "f2RtKLfMbN",
        );
        is(
            Scheduler::None,
            "/system.slice/run-u42.service",
            "run-u42.service",
        );
        let scope = "run-r0123456789abcdef0123456789abcdef.scope";
        is(Scheduler::None, &format!("/user.slice/{scope}"), scope);
        let deeper = "/oar.slice/oar-u1.slice/oar-u1-j2.slice/oar-u1-j2-s3.scope";
        let cgroup = identify(deeper).expect("a job");
        assert_eq!(
            &deeper[..cgroup.directory_len],
            "/oar.slice/oar-u1.slice/oar-u1-j2.slice"
        );
    }

    #[test]
    fn owners_in_paths() {
        for (path, owner) in [
            ("/slurm/uid_0/job_1", Some(0)),
            ("/slurm_n1/uid_65534/job_1/step_0/task_1", Some(65534)),
            ("/slurm/uid_99999999999/job_1", None),
            ("/system.slice/slurmstepd.scope/job_12", None),
            ("/oar.slice/oar-u1000.slice/oar-u1000-j4.slice", Some(1000)),
            ("/oar.slice/u7_5.scope", None),
            ("/oar/tester_2", None),
        ] {
            assert_eq!(identify(path).expect(path).owner, owner, "{path}");
        }
    }

    #[test]
    fn paths_of_no_job() {
        for path in [
            "",
            "/",
            "/user.slice/user-1000.slice/session-3.scope",
            "/system.slice/slurmd.service",
            "/system.slice/slurmstepd.scope",
            "/system.slice/slurmstepd.scope/system",
            "/slurm",
            "/slurm/uid_0",
            "/slurm/uid_x/job_1",
            "/slurm/uid_0/job_",
            "/slurm/uid_0/job_1x",
            "/slurm/uid_0/job_99999999999999999999999",
            "/slurm/job_1",
            "/slurmstepd.scope/s5K1KKYAYG5D0",
            "/slurmstepd.scope/s5K1KKYAYG5D0I",
            "/slurmstepd.scope/s5k1kkyayg5d00",
            "/system.slice/pbs.service",
            "/pbs_jobs.service/jobid",
            "/pbs_jobs.service/jobid/",
            "/pbspro.slice/pbspro-.slice",
            "/oar",
            "/oar/_7",
            "/oar/tester",
            "/oar.slice/oar-u1000.slice",
            "/system.slice/shell-0-.service",
            "/system.slice/shell-x-f2Rt.service",
            "/system.slice/run-.mount",
            "/system.slice/cron.service",
        ] {
            assert_eq!(identify(path), None, "{path}");
        }
    }

    #[test]
    fn hierarchies_are_combined() {
        let lines = "12:memory:/slurm/uid_0/job_6/step_0/task_1\n\
                     6:cpu,cpuacct:/slurm/uid_0/job_6/step_0/task_3\n\
                     4:freezer:/slurm/uid_0/job_6/step_0\n\
                     1:name=systemd:/system.slice/run-u3.service\n0::/\n";
        let cgroup = identify_all(lines.as_bytes()).expect("a job");
        assert_eq!(
            (&cgroup.job[..], cgroup.step.as_deref(), cgroup.task),
            ("6", Some("0"), Some(3))
        );
        let reversed: Vec<_> = lines.lines().rev().collect();
        let cgroup = identify_all(reversed.join("\n").as_bytes()).expect("a job");
        assert_eq!(
            (&cgroup.job[..], cgroup.step.as_deref(), cgroup.task),
            ("6", Some("0"), Some(3))
        );
        assert_eq!(identify_all(b"0::/\ngarbage\n:\n"), None);
    }

    #[test]
    fn accepts_the_spellings_of_users() {
        let pbs = identify("/pbspro.service/jobid/7.server").expect("a job");
        assert!(pbs.is_of(Scheduler::Pbs, "7") && pbs.is_of(Scheduler::Pbs, "7.server"));
        assert!(!pbs.is_of(Scheduler::Pbs, "7.other") && !pbs.is_of(Scheduler::Pbs, "77"));
        assert!(!pbs.is_of(Scheduler::Slurm, "7"));
        let path = "/system.slice/solver.scope/below";
        for name in ["solver", "solver.scope"] {
            let cgroup = identify_unit(path, name).expect("a unit");
            assert_eq!(&path[..cgroup.directory_len], "/system.slice/solver.scope");
        }
        assert_eq!(identify_unit(path, "solve"), None);
        assert_eq!(unescaped("a\\x2db\\x"), "a-b\\x");
    }
}
