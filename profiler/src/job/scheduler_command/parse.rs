//! Parsers of the output of the schedulers' commands.

use super::{CommandOutput, JobState, JobStatus, QueryError, words};
use crate::{
    job::{JobId, Scheduler},
    support::log::harmless,
};

/// Parses the output of the command that [`super::status`] runs.
///
/// # Errors
///
/// If the output contains no state.
pub fn parse_status(scheduler: Scheduler, output: &CommandOutput) -> Result<JobStatus, QueryError> {
    match scheduler {
        Scheduler::Slurm => slurm_status(output),
        Scheduler::Pbs => pbs_status(output),
        Scheduler::Oar => oar_status(output),
        Scheduler::Flux => flux_status(output),
        Scheduler::None => Err(QueryError::Unsupported(scheduler)),
    }
}

/// Parses the output of the command that [`super::processes`] runs.
///
/// # Errors
///
/// If the command failed, or the scheduler has no such command.
pub fn parse_processes(
    scheduler: Scheduler,
    output: &CommandOutput,
) -> Result<Vec<u32>, QueryError> {
    match scheduler {
        Scheduler::Slurm => {
            let pids = first_column(&output.stdout);
            // The command fails on a node without processes of the job.
            if pids.is_empty() && !output.success {
                return Err(failed("scontrol", output));
            }
            Ok(pids)
        }
        Scheduler::Flux if output.success => Ok(pids_on_host(&output.stdout, &hostname())),
        Scheduler::Flux => Err(failed("flux", output)),
        Scheduler::Pbs | Scheduler::Oar | Scheduler::None => {
            Err(QueryError::Unsupported(scheduler))
        }
    }
}

fn failed(command: &'static str, output: &CommandOutput) -> QueryError {
    let line = output.stderr.lines().chain(output.stdout.lines()).next();
    QueryError::Failed(command, harmless(line.unwrap_or("no output").trim()))
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// `slurm_load_jobs error: Invalid job id specified`, or `JobId=7 … JobState=RUNNING …`.
fn slurm_status(output: &CommandOutput) -> Result<JobStatus, QueryError> {
    let value = |name: &str| {
        let mut words = output.stdout.split_whitespace();
        words.find_map(|word| word.strip_prefix(name))
    };
    let Some(state) = value("JobState=") else {
        return if output.stderr.contains("Invalid job id") {
            Ok(JobState::Unknown.into())
        } else {
            Err(failed("scontrol", output))
        };
    };
    Ok(JobStatus {
        state: words::SLURM.state(state),
        id: value("JobId=").and_then(|id| JobId::try_from(id.to_owned()).ok()),
        session: None,
        owner: value("UserId=").and_then(uid_in_parentheses),
    })
}

/// `user(1000)`.
fn uid_in_parentheses(user: &str) -> Option<u32> {
    let (_, uid) = user.strip_suffix(')')?.rsplit_once('(')?;
    uid.parse().ok()
}

/// `user@host`, or only `user`.
fn uid_of_name(user: &str) -> Option<u32> {
    let name = user.split('@').next()?;
    let user = nix::unistd::User::from_name(name).ok()??;
    Some(user.uid.as_raw())
}

/// `qstat: Unknown Job Id 7.server`, or many lines, one of them `job_state = R`.
pub(super) fn pbs_status(output: &CommandOutput) -> Result<JobStatus, QueryError> {
    let value = |name: &str| {
        let mut lines = output.stdout.lines();
        lines.find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix("= "))
    };
    let Some(state) = value("job_state") else {
        return if output.stderr.contains("Unknown Job") {
            Ok(JobState::Unknown.into())
        } else {
            Err(failed("qstat", output))
        };
    };
    let first = value("exec_host").and_then(|hosts| hosts.split(['/', '+', '.']).next());
    let here = hostname();
    let is_here = first == here.split('.').next();
    Ok(JobStatus {
        state: words::PBS.state(state),
        id: None,
        session: value("session_id")
            .and_then(|id| id.parse().ok())
            // Session 0 is that of the kernel's threads.
            .filter(|id| is_here && *id != 0),
        owner: value("euser")
            .or_else(|| value("Job_Owner"))
            .and_then(uid_of_name),
    })
}

/// `7: Running`.
fn oar_status(output: &CommandOutput) -> Result<JobStatus, QueryError> {
    let state = output.stdout.lines().find_map(|line| {
        let (id, state) = line.split_once(':')?;
        let is_job = id.trim().bytes().all(|byte| byte.is_ascii_digit());
        is_job.then(|| state.trim())
    });
    match state {
        None | Some("") if output.success => Ok(JobState::Unknown.into()),
        None | Some("") => Err(failed("oarstat", output)),
        Some(word) => Ok(words::OAR.state(word).into()),
    }
}

/// `RUN 1000`.
fn flux_status(output: &CommandOutput) -> Result<JobStatus, QueryError> {
    let mut words = output.stdout.split_whitespace();
    let (state, owner) = (words.next().unwrap_or_default(), words.next());
    let state = match state {
        "" if output.stderr.contains("not found") || output.stderr.contains("unknown") => {
            JobState::Unknown
        }
        "" => return Err(failed("flux", output)),
        word => words::FLUX.state(word),
    };
    Ok(JobStatus {
        owner: owner.and_then(|uid| uid.parse().ok()),
        ..state.into()
    })
}

/// Table with the header `PID JOBID STEPID LOCALID GLOBALID`.
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
fn pids_on_host(list: &str, host: &str) -> Vec<u32> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let pid = |entry: &str| {
        let (name, pid) = entry.trim().rsplit_once(':')?;
        (short(name) == short(host)).then(|| pid.parse().ok())?
    };
    list.split(',').filter_map(pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(success: bool, stdout: &str, stderr: &str) -> CommandOutput {
        CommandOutput {
            success,
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn status_of_slurm_jobs() {
        let status = |stdout: &str| slurm_status(&output(true, stdout, "")).expect("a state");
        let job = "JobId=12 ArrayJobId=5 ArrayTaskId=2 JobName=x UserId=u(1000) JobState=RUNNING Reason=None";
        assert_eq!(status(job).state, JobState::Running);
        assert_eq!(status(job).id.as_deref(), Some("12"));
        assert_eq!(status(job).owner, Some(1000));
        assert_eq!(status("JobId=1 UserId=x JobState=RUNNING").owner, None);
        assert_eq!(status("JobId=1 JobState=PENDING").state, JobState::Waiting);
        let over = JobState::Over("COMPLETED");
        assert_eq!(status("JobId=1 JobState=COMPLETED").state, over);
        let unknown = output(
            false,
            "",
            "slurm_load_jobs error: Invalid job id specified\n",
        );
        assert_eq!(
            slurm_status(&unknown).expect("a state").state,
            JobState::Unknown
        );
        let down = output(
            false,
            "",
            "slurm_load_jobs error: Unable to contact slurm controller\n",
        );
        assert!(
            slurm_status(&down).is_err_and(|error| error.to_string().contains("Unable to contact"))
        );
    }

    #[test]
    fn status_of_other_jobs() {
        let job = "Job Id: 7.server\n    Job_Name = x\n    job_state = R\n    exec_host = elsewhere/0\n    session_id = 42\n";
        let status = pbs_status(&output(true, job, "")).expect("a state");
        assert_eq!((status.state, status.session), (JobState::Running, None));
        let here = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let here = job.replace("elsewhere", here.split('.').next().unwrap_or_default());
        assert_eq!(
            pbs_status(&output(true, &here, ""))
                .expect("a state")
                .session,
            Some(42)
        );
        let of_kernel = here.replace("session_id = 42", "session_id = 0");
        assert_eq!(
            pbs_status(&output(true, &of_kernel, ""))
                .expect("a state")
                .session,
            None
        );
        let owned = here.replace("Job_Name = x", "Job_Owner = root@node");
        assert_eq!(
            pbs_status(&output(true, &owned, ""))
                .expect("a state")
                .owner,
            Some(0)
        );
        let over = pbs_status(&output(true, "job_state = F\n", "")).expect("a state");
        assert_eq!(over.state, JobState::Over("F"));
        let unknown = pbs_status(&output(false, "", "qstat: Unknown Job Id 7.server\n"));
        assert_eq!(unknown.expect("a state").state, JobState::Unknown);

        assert_eq!(
            oar_status(&output(true, "7: Running\n", ""))
                .expect("a state")
                .state,
            JobState::Running
        );
        assert_eq!(
            oar_status(&output(true, "", "")).expect("a state").state,
            JobState::Unknown
        );
        let over = oar_status(&output(true, "7: Terminated\n", "")).expect("a state");
        assert_eq!(over.state, JobState::Over("Terminated"));

        let running = flux_status(&output(true, "RUN 1000\n", "")).expect("a state");
        assert_eq!(
            (running.state, running.owner),
            (JobState::Running, Some(1000))
        );
        assert!(flux_status(&output(false, "", "flux-jobs: ERROR: no broker")).is_err());
    }

    #[test]
    fn lists_of_processes() {
        let table = "PID      JOBID    STEPID   LOCALID GLOBALID\n4711     2        batch    0       0\n4712     2        batch    -       -\n-1       2        extern   0       0\n";
        assert_eq!(first_column(table), [4711, 4712]);
        assert_eq!(pids_on_host("n1:5,n2:6,n1.domain:7\n", "n1"), [5, 7]);
    }
}
