//! What the path of a cgroup says of a batch job: which scheduler made it, for which job, step and task.
//!
//! | scheduler | paths |
//! |---|---|
//! | Slurm, v1 | `/slurm/uid_0/job_7/step_0/task_1`, `/slurm_NODE/…` where several slurmd may run |
//! | Slurm, v2 | `/system.slice/slurmstepd.scope/job_7/step_0/user/task_1`, `NODE_slurmstepd.scope` |
//! | Slurm 26.05 | the same with `s5K1KKYAYG5D00`, a SLUID, in place of `job_7` |
//! | PBS | `/pbs_jobs.service/jobid/7.server`, `/pbspro.service/jobid/…`, v2 `/pbs_jobs.service/jobs/…`, `/pbspro.slice/pbspro-7.server.slice`, `/pbspro/7.server` |
//! | OAR | `/oar/USER_7`, v2 `/oar.slice/oar-u1000.slice/oar-u1000-j7.slice`, `/oar.slice/USER_7.scope` |
//! | Flux | `/…/shell-0-f2RtKLfMbN.service`, `imp-shell-…` |
//! | systemd-run | `/…/run-u7.service`, `run-r….scope` |

use super::Scheduler;

/// Where a cgroup is in a scheduler's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Who made it.
    pub scheduler: Scheduler,
    /// The job as its directory is named: a number, `7.server`, a SLUID, a unit.
    pub job: String,
    /// Step: a number, `batch`, `extern`, `interactive`.
    pub step: Option<String>,
    /// Number of the task. Slurm counts it on this node in the hierarchy `memory`, and in the whole step in `cpuacct`.
    pub task: Option<u32>,
    /// Length of that part of the path that is the job's own directory, bytes.
    pub directory: usize,
}

impl Place {
    /// Whether the job is named by a SLUID, which does not tell its number.
    pub fn has_sluid(&self) -> bool {
        self.scheduler == Scheduler::Slurm && is_sluid(&self.job)
    }

    /// Whether it is the job that a user calls `id`.
    pub fn is_of(&self, scheduler: Scheduler, id: &str) -> bool {
        self.scheduler == scheduler
            && match scheduler {
                // The server's name may be left out.
                Scheduler::Pbs => same_pbs_job(&self.job, id),
                Scheduler::None => self.job == id || unit(&self.job) == Some(id),
                Scheduler::Slurm | Scheduler::Oar | Scheduler::Flux => self.job == id,
            }
    }
}

/// Whether two names are of one job of PBS: `7` and `7.server` are.
pub fn same_pbs_job(one: &str, other: &str) -> bool {
    let (number, server) = one.split_once('.').unwrap_or((one, ""));
    let (other_number, other_server) = other.split_once('.').unwrap_or((other, ""));
    number == other_number
        && (server.is_empty() || other_server.is_empty() || server == other_server)
}

/// Finds the job in the path of a cgroup, as /proc/PID/cgroup has it; `None` when no scheduler is known to make such a path.
pub fn identify(path: &str) -> Option<Place> {
    let parts = Parts::of(path);
    (0..parts.0.len())
        .find_map(|at| {
            slurm(&parts, at)
                .or_else(|| pbs(&parts, at))
                .or_else(|| oar(&parts, at))
                .or_else(|| flux(&parts, at))
        })
        .or_else(|| (0..parts.0.len()).find_map(|at| transient(&parts, at)))
}

/// Finds the unit of systemd that a user calls `name`, with or without its ending.
pub fn identify_unit(path: &str, name: &str) -> Option<Place> {
    let parts = Parts::of(path);
    let at = (0..parts.0.len()).find(|at| {
        let part = parts.name(*at);
        part == name || unit(part) == Some(name)
    })?;
    Some(parts.place(Scheduler::None, name.to_owned(), at))
}

/// The best of what the lines of /proc/PID/cgroup (`hierarchy:controllers:path`) say, of all hierarchies together. The task
/// is its number in the whole step, if that can be told.
pub fn identify_all(lines: &str) -> Option<Place> {
    identify_where(lines, |_, _, _| true)
}

/// The same, of those lines only that `proves` accepts, given their controllers, path and place.
pub fn identify_where(
    lines: &str,
    mut proves: impl FnMut(&str, &str, &Place) -> bool,
) -> Option<Place> {
    let mut best: Option<Place> = None;
    for line in lines.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let Some(mut place) = identify(path).filter(|place| proves(controllers, path, place))
        else {
            continue;
        };
        if !controllers.split(',').any(|name| name == "cpuacct") {
            place.task = None;
        }
        let Some(known) = &mut best else {
            best = Some(place);
            continue;
        };
        // A scheduler may itself have been started by systemd-run.
        if known.scheduler == Scheduler::None && place.scheduler != Scheduler::None {
            *known = place;
        } else if known.job == place.job {
            known.step = known.step.take().or(place.step);
            known.task = known.task.or(place.task);
        }
    }
    best
}

/// The directories of a path, each with where it ends.
struct Parts<'a>(Vec<(&'a str, usize)>);

impl<'a> Parts<'a> {
    fn of(path: &'a str) -> Self {
        let mut end = 0;
        let parts = path.split('/').map(|part| {
            end += part.len() + 1;
            (part, end - 1)
        });
        Self(parts.filter(|(part, _)| !part.is_empty()).collect())
    }

    /// Empty behind the end.
    fn name(&self, at: usize) -> &'a str {
        self.0.get(at).map_or("", |(name, _)| name)
    }

    fn place(&self, scheduler: Scheduler, job: String, at: usize) -> Place {
        Place {
            scheduler,
            job,
            step: None,
            task: None,
            directory: self.0.get(at).map_or(0, |(_, end)| *end),
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `s` and 13 characters of Crockford's base 32, which lacks I, L, O and U.
pub fn is_sluid(name: &str) -> bool {
    let digit =
        |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase() && !b"ILOU".contains(&byte);
    name.len() == 14 && name.starts_with('s') && name.bytes().skip(1).all(digit)
}

fn slurm(parts: &Parts<'_>, at: usize) -> Option<Place> {
    let root = parts.name(at);
    let job_at = if root == "slurmstepd.scope" || root.ends_with("_slurmstepd.scope") {
        at + 1
    } else {
        let user = parts.name(at + 1).strip_prefix("uid_")?;
        let is_root = root == "slurm" || root.starts_with("slurm_");
        if !is_root || !is_number(user) {
            return None;
        }
        at + 2
    };
    let name = parts.name(job_at);
    let job = match name.strip_prefix("job_") {
        Some(number) if is_number(number) => number,
        None if is_sluid(name) => name,
        _ => return None,
    };
    let mut place = parts.place(Scheduler::Slurm, job.to_owned(), job_at);
    if let Some(step) = parts.name(job_at + 1).strip_prefix("step_") {
        place.step = (!step.is_empty()).then(|| step.to_owned());
        let tasks = [job_at + 2, job_at + 3].map(|at| parts.name(at).strip_prefix("task_"));
        place.task = tasks
            .into_iter()
            .flatten()
            .find_map(|task| task.parse().ok());
    }
    Some(place)
}

fn pbs(parts: &Parts<'_>, at: usize) -> Option<Place> {
    let root = parts.name(at);
    if !root.starts_with("pbs") {
        return None;
    }
    let (name, job_at) = if let Some(prefix) = root.strip_suffix(".slice") {
        let below = parts.name(at + 1).strip_suffix(".slice")?;
        (below.strip_prefix(prefix)?.strip_prefix('-')?, at + 1)
    } else if ["jobid", "jobs"].contains(&parts.name(at + 1)) {
        (parts.name(at + 2), at + 2)
    } else {
        (parts.name(at + 1), at + 1)
    };
    // `7.server`, `7[3].server`; directories of PBS's own begin with a letter.
    let job = unescaped(name);
    let is_job = job.starts_with(|first: char| first.is_ascii_digit());
    is_job.then(|| parts.place(Scheduler::Pbs, job, job_at))
}

/// systemd writes what has a meaning in names of units as `\x2d`.
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

fn oar(parts: &Parts<'_>, at: usize) -> Option<Place> {
    match parts.name(at) {
        "oar" => {
            let (user, job) = parts.name(at + 1).rsplit_once('_')?;
            let is_job = !user.is_empty() && is_number(job);
            is_job.then(|| parts.place(Scheduler::Oar, job.to_owned(), at + 1))
        }
        "oar.slice" => (at + 1..parts.0.len()).find_map(|at| {
            let name = parts.name(at);
            let bare = name
                .strip_suffix(".slice")
                .or_else(|| name.strip_suffix(".scope"))
                .unwrap_or(name);
            let job = match bare.strip_prefix("oar-") {
                Some(rest) => rest.split('-').find_map(|part| part.strip_prefix('j'))?,
                None => bare.rsplit_once('_')?.1,
            };
            is_number(job).then(|| parts.place(Scheduler::Oar, job.to_owned(), at))
        }),
        _ => None,
    }
}

/// `shell-RANK-ID.service`, where RANK is the broker's.
fn flux(parts: &Parts<'_>, at: usize) -> Option<Place> {
    let name = parts.name(at).strip_suffix(".service")?;
    let name = name.strip_prefix("imp-").unwrap_or(name);
    let (rank, id) = name.strip_prefix("shell-")?.split_once('-')?;
    let id = flux_id(id)?;
    is_number(rank).then(|| parts.place(Scheduler::Flux, id, at))
}

/// A job of Flux in base 58, always with an `f` in front, where Flux may print `ƒ`.
pub fn flux_id(id: &str) -> Option<String> {
    let digits = id.strip_prefix(['f', 'ƒ'])?;
    let digit = |byte: u8| byte.is_ascii_alphanumeric() && !b"0OIl".contains(&byte);
    (!digits.is_empty() && digits.bytes().all(digit)).then(|| format!("f{digits}"))
}

fn transient(parts: &Parts<'_>, at: usize) -> Option<Place> {
    let name = parts.name(at);
    let is_run = name.starts_with("run-") && unit(name).is_some();
    is_run.then(|| parts.place(Scheduler::None, name.to_owned(), at))
}

/// The name of a scope or service without its ending.
fn unit(name: &str) -> Option<&str> {
    name.strip_suffix(".scope")
        .or_else(|| name.strip_suffix(".service"))
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
        let place = identify(path).unwrap_or_else(|| panic!("{path}: no job"));
        assert_eq!(place.scheduler, scheduler, "{path}");
        assert_eq!(place.job, job, "{path}");
        assert_eq!(place.step.as_deref(), step, "{path}");
        assert_eq!(place.task, task, "{path}");
        assert_eq!(&path[..place.directory], directory, "{path}");
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
    fn other_paths() {
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
        is(Scheduler::Oar, "/oar/some_body_77", "77");
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
        let place = identify(deeper).expect("a job");
        assert_eq!(
            &deeper[..place.directory],
            "/oar.slice/oar-u1.slice/oar-u1-j2.slice"
        );
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
    fn hierarchies_are_taken_together() {
        let lines = "12:memory:/slurm/uid_0/job_6/step_0/task_1\n\
                     6:cpu,cpuacct:/slurm/uid_0/job_6/step_0/task_3\n\
                     4:freezer:/slurm/uid_0/job_6/step_0\n\
                     1:name=systemd:/system.slice/run-u3.service\n0::/\n";
        let place = identify_all(lines).expect("a job");
        assert_eq!(
            (&place.job[..], place.step.as_deref(), place.task),
            ("6", Some("0"), Some(3))
        );
        let reversed: Vec<_> = lines.lines().rev().collect();
        let place = identify_all(&reversed.join("\n")).expect("a job");
        assert_eq!(
            (&place.job[..], place.step.as_deref(), place.task),
            ("6", Some("0"), Some(3))
        );
        assert_eq!(identify_all("0::/\ngarbage\n:\n"), None);
    }

    #[test]
    fn names_that_users_give() {
        let pbs = identify("/pbspro.service/jobid/7.server").expect("a job");
        assert!(pbs.is_of(Scheduler::Pbs, "7") && pbs.is_of(Scheduler::Pbs, "7.server"));
        assert!(!pbs.is_of(Scheduler::Pbs, "7.other") && !pbs.is_of(Scheduler::Pbs, "77"));
        assert!(!pbs.is_of(Scheduler::Slurm, "7"));
        let path = "/system.slice/solver.scope/below";
        for name in ["solver", "solver.scope"] {
            let place = identify_unit(path, name).expect("a unit");
            assert_eq!(&path[..place.directory], "/system.slice/solver.scope");
        }
        assert_eq!(identify_unit(path, "solve"), None);
        assert_eq!(flux_id("ƒ2Rt").as_deref(), Some("f2Rt"));
        assert_eq!(flux_id("f"), None);
        assert_eq!(flux_id("f0"), None);
        assert_eq!(unescaped("a\\x2db\\x"), "a-b\\x");
    }
}
