//! What a scheduler's own commands say of a job. They can be missing, and they can hang.

use std::{
    io::Read,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;

use super::{Scheduler, cgroup_path};

/// How long a command may take, and how often it is asked.
const TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 2;

/// Why a command has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Silence {
    /// There is no such command.
    #[error("{0} is not installed or not in PATH")]
    Missing(&'static str),
    /// It did not answer in time.
    #[error("{0} did not answer within {time} s, asked {ATTEMPTS} times", time = TIMEOUT.as_secs())]
    Hanging(&'static str),
    /// It failed.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
    /// The scheduler has no command for that.
    #[error("{0} has no command that tells")]
    None(Scheduler),
}

/// How a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not begun.
    Waiting,
    /// It runs, or is suspended.
    Running,
    /// It has ended; in the scheduler's word.
    Over(String),
    /// The scheduler knows no such job.
    Unknown,
}

/// What a scheduler says of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobState {
    /// How it stands.
    pub state: State,
    /// The name that its processes know, where that is another than was asked for: `7` for `5_2` of an array.
    pub id: Option<String>,
    /// The leader of its session on its first node (PBS).
    pub session: Option<u32>,
    /// Whose it is; OAR does not tell.
    pub owner: Option<u32>,
}

impl From<State> for JobState {
    fn from(state: State) -> Self {
        Self {
            state,
            id: None,
            session: None,
            owner: None,
        }
    }
}

/// Output of a scheduler's command.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Whether its exit status is 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Asks how a job stands.
///
/// # Errors
///
/// When that cannot be found out.
pub fn standing(scheduler: Scheduler, id: &str) -> Result<JobState, Silence> {
    let answer = match scheduler {
        Scheduler::Slurm => ask("scontrol", &["--oneliner", "show", "job", id])?,
        Scheduler::Pbs => ask("qstat", &["-x", "-f", id])?,
        Scheduler::Oar => ask("oarstat", &["-s", "-j", id])?,
        Scheduler::Flux => ask("flux", &["jobs", "-n", "-o", "{state} {userid}", id])?,
        Scheduler::None => return Err(Silence::None(scheduler)),
    };
    standing_in(scheduler, &answer)
}

/// Reads how a job stands from the output of the command that [`standing`] runs.
///
/// # Errors
///
/// When the output does not tell.
pub fn standing_in(scheduler: Scheduler, answer: &Answer) -> Result<JobState, Silence> {
    match scheduler {
        Scheduler::Slurm => slurm(answer),
        Scheduler::Pbs => pbs(answer),
        Scheduler::Oar => oar(answer),
        Scheduler::Flux => flux(answer),
        Scheduler::None => Err(Silence::None(scheduler)),
    }
}

/// Asks for the processes of a job on this node.
///
/// # Errors
///
/// When that cannot be found out.
pub fn processes(scheduler: Scheduler, id: &str) -> Result<Vec<u32>, Silence> {
    match scheduler {
        Scheduler::Slurm => processes_in(scheduler, &ask("scontrol", &["listpids", id])?),
        Scheduler::Flux => processes_in(scheduler, &ask("flux", &["job", "hostpids", id])?),
        Scheduler::Pbs => {
            let session = pbs(&ask("qstat", &["-x", "-f", id])?)?.session;
            Ok(session.map(members_of_session).unwrap_or_default())
        }
        // OAR knows the nodes of a job, and its cpuset, not its processes.
        Scheduler::Oar | Scheduler::None => Err(Silence::None(scheduler)),
    }
}

/// Reads the processes of a job on this node from the output of the command that [`processes`] runs.
///
/// # Errors
///
/// When the command has failed, or the scheduler has no such command.
pub fn processes_in(scheduler: Scheduler, answer: &Answer) -> Result<Vec<u32>, Silence> {
    match scheduler {
        Scheduler::Slurm => {
            let pids = first_column(&answer.stdout);
            // It fails where there is none: on a node that runs nothing of the job yet.
            if pids.is_empty() && !answer.success {
                return Err(failed("scontrol", answer));
            }
            Ok(pids)
        }
        Scheduler::Flux => {
            if answer.success {
                let host = rustix::system::uname()
                    .nodename()
                    .to_string_lossy()
                    .into_owned();
                Ok(pids_of_host(&answer.stdout, &host))
            } else {
                Err(failed("flux", answer))
            }
        }
        Scheduler::Pbs | Scheduler::Oar | Scheduler::None => Err(Silence::None(scheduler)),
    }
}

fn failed(command: &'static str, answer: &Answer) -> Silence {
    let line = answer.stderr.lines().chain(answer.stdout.lines()).next();
    Silence::Failed(command, line.unwrap_or("it says nothing").trim().to_owned())
}

/// `slurm_load_jobs error: Invalid job id specified`, or `JobId=7 … JobState=RUNNING …`.
fn slurm(answer: &Answer) -> Result<JobState, Silence> {
    let value = |name: &str| {
        let mut words = answer.stdout.split_whitespace();
        words.find_map(|word| word.strip_prefix(name))
    };
    let Some(state) = value("JobState=") else {
        return if answer.stderr.contains("Invalid job id") {
            Ok(State::Unknown.into())
        } else {
            Err(failed("scontrol", answer))
        };
    };
    let state = match state {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED"
        | "SPECIAL_EXIT" => State::Waiting,
        "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT"
        | "RESIZING" => State::Running,
        over => State::Over(over.to_owned()),
    };
    Ok(JobState {
        state,
        id: value("JobId=").map(str::to_owned),
        session: None,
        owner: value("UserId=").and_then(uid_in_parentheses),
    })
}

/// `somebody(1000)`.
fn uid_in_parentheses(user: &str) -> Option<u32> {
    let (_, uid) = user.strip_suffix(')')?.rsplit_once('(')?;
    uid.parse().ok()
}

/// `somebody@host`, or the name alone.
fn uid_of_name(user: &str) -> Option<u32> {
    let name = user.split('@').next()?;
    let user = nix::unistd::User::from_name(name).ok()??;
    Some(user.uid.as_raw())
}

/// `qstat: Unknown Job Id 7.server`, or `job_state = R` among many lines.
fn pbs(answer: &Answer) -> Result<JobState, Silence> {
    let value = |name: &str| {
        let mut lines = answer.stdout.lines();
        lines.find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix("= "))
    };
    let Some(state) = value("job_state") else {
        return if answer.stderr.contains("Unknown Job") {
            Ok(State::Unknown.into())
        } else {
            Err(failed("qstat", answer))
        };
    };
    let state = match state {
        "Q" | "H" | "W" | "T" | "M" => State::Waiting,
        "R" | "E" | "S" | "U" | "B" => State::Running,
        over => State::Over(over.to_owned()),
    };
    let first = value("exec_host").and_then(|hosts| hosts.split(['/', '+', '.']).next());
    let here = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let is_here = first == here.split('.').next();
    Ok(JobState {
        state,
        id: None,
        session: value("session_id")
            .and_then(|id| id.parse().ok())
            .filter(|_| is_here),
        owner: value("euser")
            .or_else(|| value("Job_Owner"))
            .and_then(uid_of_name),
    })
}

/// `7: Running`.
fn oar(answer: &Answer) -> Result<JobState, Silence> {
    let state = answer.stdout.lines().find_map(|line| {
        let (id, state) = line.split_once(':')?;
        let is_job = id.trim().bytes().all(|byte| byte.is_ascii_digit());
        is_job.then(|| state.trim())
    });
    let state = match state {
        None if answer.success => State::Unknown,
        None => return Err(failed("oarstat", answer)),
        Some("Waiting" | "Hold" | "toLaunch" | "toAckReservation" | "Launching") => State::Waiting,
        Some("Running" | "Suspended" | "Resuming" | "Finishing") => State::Running,
        Some("") => State::Unknown,
        Some(over) => State::Over(over.to_owned()),
    };
    Ok(state.into())
}

/// `RUN 1000`.
fn flux(answer: &Answer) -> Result<JobState, Silence> {
    let mut words = answer.stdout.split_whitespace();
    let (state, owner) = (words.next().unwrap_or_default(), words.next());
    let state = match state {
        "DEPEND" | "PRIORITY" | "SCHED" | "NEW" => State::Waiting,
        "RUN" | "CLEANUP" => State::Running,
        "" if answer.stderr.contains("not found") || answer.stderr.contains("unknown") => {
            State::Unknown
        }
        "" => return Err(failed("flux", answer)),
        over => State::Over(over.to_owned()),
    };
    Ok(JobState {
        owner: owner.and_then(|uid| uid.parse().ok()),
        ..state.into()
    })
}

/// `PID JOBID STEPID LOCALID GLOBALID` and lines of such.
fn first_column(table: &str) -> Vec<u32> {
    let pid = |line: &str| line.split_whitespace().next()?.parse().ok();
    table
        .lines()
        .skip(1)
        .filter_map(pid)
        .filter(|pid| *pid > 0)
        .collect()
}

/// `node1:4711,node2:4712`.
fn pids_of_host(list: &str, host: &str) -> Vec<u32> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let pid = |entry: &str| {
        let (name, pid) = entry.trim().rsplit_once(':')?;
        (short(name) == short(host)).then(|| pid.parse().ok())?
    };
    list.split(',').filter_map(pid).collect()
}

fn members_of_session(session: u32) -> Vec<u32> {
    let processes = procfs::process::all_processes()
        .into_iter()
        .flatten()
        .flatten();
    let pid = |process: procfs::process::Process| {
        let stat = crate::tasks::walk::stat_of(&std::path::PathBuf::from(format!(
            "/proc/{}",
            process.pid
        )))?;
        (stat.session.cast_unsigned() == session).then(|| stat.pid.cast_unsigned())
    };
    processes.filter_map(pid).collect()
}

/// Whether a job's name is one that Flux prints; other schedulers take any.
pub fn normal_id(scheduler: Scheduler, id: &str) -> String {
    match scheduler {
        Scheduler::Flux => cgroup_path::flux_id(id).unwrap_or_else(|| id.to_owned()),
        _ => id.to_owned(),
    }
}

fn ask(name: &'static str, args: &[&str]) -> Result<Answer, Silence> {
    let mut last = Silence::Hanging(name);
    for _ in 0..ATTEMPTS {
        match ask_once(name, args, TIMEOUT) {
            Err(silence @ Silence::Hanging(_)) => last = silence,
            answer => return answer,
        }
    }
    Err(last)
}

fn ask_once(name: &'static str, args: &[&str], timeout: Duration) -> Result<Answer, Silence> {
    let mut child = Command::new(name)
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Silence::Missing(name),
            _ => Silence::Failed(name, error.to_string()),
        })?;
    let group = Pid::from_child(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (done, answer) = channel();
    // What hangs for good in the kernel keeps this thread, and nothing else.
    thread::spawn(move || {
        let errors = thread::spawn(move || text_of(stderr));
        let stdout = text_of(stdout);
        let stderr = errors.join().unwrap_or_default();
        let _ = done.send((child.wait(), stdout, stderr));
    });
    let Ok((status, stdout, stderr)) = answer.recv_timeout(timeout) else {
        let _ = kill_process_group(group, Signal::KILL);
        return Err(Silence::Hanging(name));
    };
    let status = status.map_err(|error| Silence::Failed(name, error.to_string()))?;
    if let Some(signal) = status.signal() {
        return Err(Silence::Failed(name, format!("killed by signal {signal}")));
    }
    Ok(Answer {
        success: status.success(),
        stdout,
        stderr,
    })
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(success: bool, stdout: &str, stderr: &str) -> Answer {
        Answer {
            success,
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn states_of_slurm() {
        let of = |stdout: &str| slurm(&said(true, stdout, "")).expect("a state");
        let job = "JobId=12 ArrayJobId=5 ArrayTaskId=2 JobName=x UserId=u(1000) JobState=RUNNING Reason=None";
        assert_eq!(of(job).state, State::Running);
        assert_eq!(of(job).id.as_deref(), Some("12"));
        assert_eq!(of(job).owner, Some(1000));
        assert_eq!(of("JobId=1 UserId=x JobState=RUNNING").owner, None);
        assert_eq!(of("JobId=1 JobState=PENDING").state, State::Waiting);
        let over = State::Over("COMPLETED".to_owned());
        assert_eq!(of("JobId=1 JobState=COMPLETED").state, over);
        let unknown = said(
            false,
            "",
            "slurm_load_jobs error: Invalid job id specified\n",
        );
        assert_eq!(slurm(&unknown).expect("a state").state, State::Unknown);
        let down = said(
            false,
            "",
            "slurm_load_jobs error: Unable to contact slurm controller\n",
        );
        assert!(slurm(&down).is_err_and(|error| error.to_string().contains("Unable to contact")));
    }

    #[test]
    fn states_of_others() {
        let job = "Job Id: 7.server\n    Job_Name = x\n    job_state = R\n    exec_host = elsewhere/0\n    session_id = 42\n";
        let standing = pbs(&said(true, job, "")).expect("a state");
        assert_eq!((standing.state, standing.session), (State::Running, None));
        let here = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let here = job.replace("elsewhere", here.split('.').next().unwrap_or_default());
        assert_eq!(
            pbs(&said(true, &here, "")).expect("a state").session,
            Some(42)
        );
        let owned = here.replace("Job_Name = x", "Job_Owner = root@node");
        assert_eq!(
            pbs(&said(true, &owned, "")).expect("a state").owner,
            Some(0)
        );
        let over = pbs(&said(true, "job_state = F\n", "")).expect("a state");
        assert_eq!(over.state, State::Over("F".to_owned()));
        let unknown = pbs(&said(false, "", "qstat: Unknown Job Id 7.server\n"));
        assert_eq!(unknown.expect("a state").state, State::Unknown);

        assert_eq!(
            oar(&said(true, "7: Running\n", "")).expect("a state").state,
            State::Running
        );
        assert_eq!(
            oar(&said(true, "", "")).expect("a state").state,
            State::Unknown
        );
        let over = oar(&said(true, "7: Terminated\n", "")).expect("a state");
        assert_eq!(over.state, State::Over("Terminated".to_owned()));

        let running = flux(&said(true, "RUN 1000\n", "")).expect("a state");
        assert_eq!((running.state, running.owner), (State::Running, Some(1000)));
        assert!(flux(&said(false, "", "flux-jobs: ERROR: no broker")).is_err());
    }

    #[test]
    fn lists_of_processes() {
        let table = "PID      JOBID    STEPID   LOCALID GLOBALID\n4711     2        batch    0       0\n4712     2        batch    -       -\n-1       2        extern   0       0\n";
        assert_eq!(first_column(table), [4711, 4712]);
        assert_eq!(pids_of_host("n1:5,n2:6,n1.domain:7\n", "n1"), [5, 7]);
        assert!(
            members_of_session(
                rustix::process::getsid(None)
                    .expect("a session")
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned()
            )
            .contains(&std::process::id())
        );
    }

    #[test]
    fn commands_that_do_not_answer() {
        assert_eq!(
            ask("no-such-command", &[]).err(),
            Some(Silence::Missing("no-such-command"))
        );
        let short = Duration::from_millis(50);
        let hanging = ask_once("sleep", &["60"], short).err();
        assert_eq!(hanging, Some(Silence::Hanging("sleep")));
        let answer =
            ask_once("sh", &["-c", "echo out; echo err >&2; exit 3"], TIMEOUT).expect("it ends");
        assert_eq!(
            (answer.success, &answer.stdout[..], &answer.stderr[..]),
            (false, "out\n", "err\n")
        );
    }
}
