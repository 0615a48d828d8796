//! Parsers of the output of the schedulers' commands.

use super::{CommandOutput, JobState, JobStatus, QueryError, words};
use crate::{
    job::{JobId, Scheduler},
    support::log::harmless,
};

/// Parses the output of the command that [`super::status`] runs for a job.
///
/// # Errors
///
/// If the output contains no state.
pub fn parse_status(
    scheduler: Scheduler,
    id: &str,
    output: &CommandOutput,
) -> Result<JobStatus, QueryError> {
    match scheduler {
        Scheduler::Slurm => slurm_status(id, output),
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

/// `slurm_load_jobs error: Invalid job id specified`, or a line for each job that the id selects: all
/// tasks of an array, all components of a heterogeneous job.
fn slurm_status(id: &str, output: &CommandOutput) -> Result<JobStatus, QueryError> {
    let jobs = || output.stdout.lines().filter_map(slurm_job);
    let is_component = id.contains('+');
    let job = jobs()
        .find(|job| job.number == id || job.shown_id == id)
        // The task of an array that has not started belongs to `5_[1-4]`.
        .or_else(|| jobs().next().filter(|_| !is_component));
    let Some(job) = job else {
        let is_unknown = output.success || output.stderr.contains("Invalid job id");
        return if is_unknown {
            Ok(JobState::Unknown.into())
        } else {
            Err(failed("squeue", output))
        };
    };
    Ok(JobStatus {
        state: words::SLURM.state(job.state),
        id: JobId::try_from(job.number.to_owned()).ok(),
        session: None,
        owner: job.owner.parse().ok(),
    })
}

struct SlurmJob<'a> {
    number: &'a str,
    shown_id: &'a str,
    state: &'a str,
    owner: &'a str,
}

/// `7|5_2|RUNNING|1000`.
fn slurm_job(line: &str) -> Option<SlurmJob<'_>> {
    let mut fields = line.split('|');
    let mut field = || fields.next();
    let job = SlurmJob {
        number: field()?,
        shown_id: field()?,
        state: field()?,
        owner: field()?,
    };
    let is_number = job.number.parse::<u32>().is_ok();
    (is_number && field().is_none()).then_some(job)
}

/// `user@host`, or only `user`.
fn uid_of_name(user: &str) -> Option<u32> {
    let name = user.split('@').next()?;
    let user = nix::unistd::User::from_name(name).ok()??;
    Some(user.uid.as_raw())
}

/// `qstat: Unknown Job Id 7.server`, or a line per attribute, one of them `    job_state = R`.
pub(super) fn pbs_status(output: &CommandOutput) -> Result<JobStatus, QueryError> {
    let value = |name: &str| {
        let attributes = output.stdout.lines().filter_map(|line| {
            let attribute = line.strip_prefix("    ")?;
            attribute.split_once(" = ")
        });
        let mut of_name = attributes.filter(|(attribute, _)| *attribute == name);
        of_name.next().map(|(_, value)| value)
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
        let is_job = id.trim().parse::<u64>().is_ok();
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

    fn state_of(status: Result<JobStatus, QueryError>) -> JobState {
        status.expect("an answer").state
    }

    #[test]
    fn status_of_slurm_jobs() {
        let status = |id: &str, stdout: &str| {
            slurm_status(id, &output(true, stdout, "")).expect("an answer")
        };
        let job = status("5_2", "12|5_2|RUNNING|1000\n");
        assert_eq!(job.state, JobState::Running);
        assert_eq!(job.id.as_deref(), Some("12"));
        assert_eq!(job.owner, Some(1000));
        let pending = "5|5_[1-4%2]|PENDING|1000\n";
        assert_eq!(status("5_2", pending).state, JobState::Waiting);
        let over = status("1", "1|1|COMPLETED|0\n");
        assert_eq!(
            (over.state, over.owner),
            (JobState::Over("COMPLETED"), Some(0))
        );
        let new = JobState::Unrecognized("POWER_DOWN".to_owned());
        assert_eq!(status("1", "1|1|POWER_DOWN|0\n").state, new);
        // An owner that cannot be told.
        for owner in ["", "root", "-1", "4294967296"] {
            assert_eq!(status("1", &format!("1|1|RUNNING|{owner}\n")).owner, None);
        }
    }

    #[test]
    fn slurm_jobs_of_several_lines_are_told_apart() {
        let tasks = "13|12_1|FAILED|7\n14|12_2|RUNNING|7\n12|12_3|PENDING|7\n";
        let components = "20|20+0|COMPLETED|7\n21|20+1|RUNNING|7\n";
        for (id, lines, number, state) in [
            ("12", tasks, "12", JobState::Waiting),
            ("12_2", tasks, "14", JobState::Running),
            ("20", components, "20", JobState::Over("COMPLETED")),
            ("20+1", components, "21", JobState::Running),
        ] {
            let status = slurm_status(id, &output(true, lines, "")).expect("an answer");
            assert_eq!((status.id.as_deref(), status.state), (Some(number), state));
        }
        let missing = slurm_status("20+2", &output(true, components, ""));
        assert_eq!(state_of(missing), JobState::Unknown);
    }

    #[test]
    fn slurm_jobs_that_are_not_told() {
        let error = |text: &str| slurm_status("7", &output(false, "", text));
        let unknown = error("slurm_load_jobs error: Invalid job id specified\n");
        assert_eq!(state_of(unknown), JobState::Unknown);
        // The array has no such task.
        assert_eq!(
            state_of(slurm_status("7_9", &output(true, "", ""))),
            JobState::Unknown
        );
        let down = error("slurm_load_jobs error: Unable to contact slurm controller\n");
        assert!(down.is_err_and(|error| error.to_string().contains("Unable to contact")));
    }

    /// Text of the user, as `scontrol` prints it, is no line of `squeue`.
    #[test]
    fn other_text_is_no_slurm_job() {
        for text in [
            "JobId=7 JobName=x JobState=COMPLETED UserId=root(0) UserId=u(1000) JobState=RUNNING",
            "7|x|7|COMPLETED|0",
            "7|7|COMPLETED",
            "x|7|COMPLETED|0",
            "CLUSTER: east",
        ] {
            let lines = format!("{text}\n7|7|RUNNING|1000\n");
            let status = slurm_status("7", &output(true, &lines, "")).expect("an answer");
            assert_eq!(
                (status.state, status.owner),
                (JobState::Running, Some(1000)),
                "{text}"
            );
        }
    }

    /// A job of PBS on this host.
    fn pbs_job(attributes: &str) -> JobStatus {
        let hostname = hostname();
        let host = hostname.split('.').next().unwrap_or_default();
        let text = format!("Job Id: 7.server\n{attributes}").replace("HERE", host);
        pbs_status(&output(true, &text, "")).expect("an answer")
    }

    #[test]
    fn status_of_pbs_jobs() {
        let job = "    Job_Name = x\n    Job_Owner = root@node\n    job_state = R\n    \
                   exec_host = HERE/0\n    session_id = 42\n";
        let status = pbs_job(job);
        assert_eq!(
            (status.state, status.session, status.owner),
            (JobState::Running, Some(42), Some(0))
        );
        for no_session in [
            job.replace("HERE", "elsewhere"),
            // That of the kernel's threads.
            job.replace("session_id = 42", "session_id = 0"),
        ] {
            assert_eq!(pbs_job(&no_session).session, None);
        }
        for (word, state) in [
            ("F", JobState::Over("F")),
            ("X", JobState::Over("X")),
            ("C", JobState::Over("C")),
            ("0", JobState::Unrecognized("0".to_owned())),
        ] {
            assert_eq!(pbs_job(&format!("    job_state = {word}\n")).state, state);
        }
        let unknown = pbs_status(&output(false, "", "qstat: Unknown Job Id 7.server\n"));
        assert_eq!(state_of(unknown), JobState::Unknown);
        let old = output(false, "", "qstat: invalid option -- 'F'\n");
        assert!(pbs_status(&old).is_err_and(|error| error.to_string().contains("-- 'F'")));
    }

    /// Values of the user that have the form of attributes, in the lines of `qstat -f -w`.
    #[test]
    fn text_of_a_user_is_no_attribute_of_pbs() {
        const FORGED: &str = "x,    job_state = F\\n    job_state = F\\n    euser = root\\n    \
                              session_id = 1\\n    exec_host = HERE/0\\n\teuser = root";
        let own = "    job_state = Q\n    Job_Owner = nobody@node\n    exec_host = elsewhere/0\n    \
                   session_id = 42\n    euser = nobody\n";
        let nobody = uid_of_name("nobody");
        assert!(nobody.is_some_and(|uid| uid != 0));
        for name in [
            "Job_Name",
            "Account_Name",
            "comment",
            "project",
            "Error_Path",
            "Variable_List",
            "Submit_arguments",
            "resources_used.note",
            " job_state",
            "\tjob_state",
        ] {
            let forged = format!("    {name} = {FORGED}\n");
            for text in [format!("{forged}{own}"), format!("{own}{forged}")] {
                let status = pbs_job(&text);
                assert_eq!(
                    (status.state, status.session, status.owner),
                    (JobState::Waiting, None, nobody),
                    "{name}"
                );
            }
        }
        // A line that continues a value.
        let status = pbs_job(&format!("\tjob_state = F\n\teuser = root\n{own}"));
        assert_eq!((status.state, status.owner), (JobState::Waiting, nobody));
    }

    #[test]
    fn status_of_oar_jobs() {
        let state = |text: &str| state_of(oar_status(&output(true, text, "")));
        assert_eq!(state("7: Running\n"), JobState::Running);
        assert_eq!(state(""), JobState::Unknown);
        assert_eq!(state("7: \n"), JobState::Unknown);
        assert_eq!(state("7: Terminated\n"), JobState::Over("Terminated"));
        assert_eq!(state("7: toError\n"), JobState::Over("toError"));
        let new = JobState::Unrecognized("Frozen".to_owned());
        assert_eq!(state("7: Frozen\n"), new);
        // A warning of Perl.
        let warned = "perl: warning: Error\n: Error\n7: Running\n";
        assert_eq!(state(warned), JobState::Running);
        assert!(oar_status(&output(false, "", "DB connection error, exiting.\n")).is_err());
    }

    #[test]
    fn status_of_flux_jobs() {
        let status = |text: &str| flux_status(&output(true, text, "")).expect("an answer");
        let running = status("RUN 1000\n");
        assert_eq!(
            (running.state, running.owner),
            (JobState::Running, Some(1000))
        );
        assert_eq!(status("CLEANUP 1000\n").state, JobState::Running);
        assert_eq!(status("INACTIVE 1000\n").state, JobState::Over("INACTIVE"));
        let new = status("PAUSED 1000\n");
        assert_eq!(
            (new.state, new.owner),
            (JobState::Unrecognized("PAUSED".to_owned()), Some(1000))
        );
        assert_eq!(status("RUN root\n").owner, None);
        let unknown = output(false, "", "flux-jobs: ERROR: JobID f1 unknown\n");
        assert_eq!(state_of(flux_status(&unknown)), JobState::Unknown);
        assert!(flux_status(&output(false, "", "flux-jobs: ERROR: no broker")).is_err());
    }

    #[test]
    fn lists_of_processes() {
        let table = "PID      JOBID    STEPID   LOCALID GLOBALID\n4711     2        batch    0       0\n4712     2        batch    -       -\n-1       2        extern   0       0\n";
        assert_eq!(first_column(table), [4711, 4712]);
        assert_eq!(pids_on_host("n1:5,n2:6,n1.domain:7\n", "n1"), [5, 7]);
    }
}
