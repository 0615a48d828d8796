//! Queries about a job with the scheduler's own commands, which can be missing or hang.

mod parse;
mod run;
mod words;

use thiserror::Error;

use self::{parse::pbs_status, run::run};
pub use self::{
    parse::{parse_processes, parse_status},
    run::CommandOutput,
};
use super::{JobId, Scheduler};
use crate::procfs::{process_list::pids, process_stat};

/// Why a query has no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum QueryError {
    /// The command does not exist.
    #[error("{0} is not installed or not in PATH")]
    NotInstalled(&'static str),
    /// The command did not end in time.
    #[error(
        "{0} did not answer within {timeout} s ({attempts} attempts)",
        timeout = run::TIMEOUT.as_secs(),
        attempts = run::ATTEMPTS
    )]
    TimedOut(&'static str),
    /// The command failed, with its first line of output.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
    /// The scheduler has no command for this query.
    #[error("{0} has no command for this query")]
    Unsupported(Scheduler),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Not started.
    Waiting,
    /// Running or suspended.
    Running,
    /// Ended, with the scheduler's word.
    Over(&'static str),
    /// An unknown word of the scheduler, which proves nothing.
    Unrecognized(String),
    /// The scheduler does not know the job.
    Unknown,
}

/// Report of a scheduler about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    pub state: JobState,
    /// Id in environments and cgroup paths, which can differ from the requested one: `7` for task
    /// `5_2` of an array.
    pub id: Option<JobId>,
    /// Leader of the job's session, if it is on this node (PBS).
    pub session: Option<u32>,
    /// Uid of the owner; not reported by OAR.
    pub owner: Option<u32>,
}

impl From<JobState> for JobStatus {
    fn from(state: JobState) -> Self {
        Self {
            state,
            id: None,
            session: None,
            owner: None,
        }
    }
}

/// Queries the status of a job.
///
/// # Errors
///
/// If the scheduler has no such command, or the command fails.
pub fn status(scheduler: Scheduler, id: &str) -> Result<JobStatus, QueryError> {
    let output = match scheduler {
        // Only fields without text of the user; also hidden and ended jobs.
        Scheduler::Slurm => {
            let jobs = format!("--jobs={id}");
            run(
                "squeue",
                &["-h", "-a", "-t", "all", "-o", "%A|%i|%T|%U", &jobs],
            )?
        }
        Scheduler::Pbs => attributes_of_pbs(id)?,
        Scheduler::Oar => run("oarstat", &["-s", "-j", id])?,
        Scheduler::Flux => run("flux", &["jobs", "-n", "-o", "{state} {userid}", id])?,
        Scheduler::None => return Err(QueryError::Unsupported(scheduler)),
    };
    parse_status(scheduler, id, &output)
}

/// One line per attribute (`-w`), in which newlines of values are escaped. PBS Professional 14 accepts
/// the option without effect; it refuses `-F`. Its JSON leaves quotes in values unescaped (up to version
/// 23).
fn attributes_of_pbs(id: &str) -> Result<CommandOutput, QueryError> {
    run("qstat", &["-x", "-f", "-w", "-F", "default", id])
}

/// Message about a job in an unknown state.
pub fn unrecognized(scheduler: Scheduler, id: &str, word: &str) -> String {
    format!("job {id} ({scheduler}) is in a state that profiler does not know: {word}")
}

/// Queries the processes of a job on this node.
///
/// # Errors
///
/// If the scheduler has no such command, or the command fails.
pub fn processes(scheduler: Scheduler, id: &str) -> Result<Vec<u32>, QueryError> {
    match scheduler {
        Scheduler::Slurm => parse_processes(scheduler, &run("scontrol", &["listpids", id])?),
        Scheduler::Flux => parse_processes(scheduler, &run("flux", &["job", "hostpids", id])?),
        Scheduler::Pbs => {
            let session = pbs_status(&attributes_of_pbs(id)?)?.session;
            Ok(session.map(session_members).unwrap_or_default())
        }
        // OAR reports the nodes and the cpuset of a job, not its processes.
        Scheduler::Oar | Scheduler::None => Err(QueryError::Unsupported(scheduler)),
    }
}

fn session_members(session: u32) -> Vec<u32> {
    let procfs = "/proc".as_ref();
    let is_member = |pid: &u32| {
        process_stat::of_process(procfs, *pid)
            .is_some_and(|stat| stat.session.cast_unsigned() == session)
    };
    pids(procfs).filter(is_member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_session() {
        // Not by rustix: 0 if the session's leader is outside of this PID namespace.
        // SAFETY: has no memory operands.
        let session = unsafe { libc::getsid(0) }.cast_unsigned();
        assert!(session_members(session).contains(&std::process::id()));
    }
}
