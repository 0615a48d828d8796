//! The batch job that an environment names. Only [`VARIABLES`] are read.

use std::path::Path;

use profiler_ebpf::event::VARIABLES;

use super::{
    Scheduler,
    id::{self, JobId, is_same_job},
};
use crate::procfs::memory_file::{self, MemoryFile};

/// Variable with the job id, by scheduler.
const JOB_IDS: [(Scheduler, &str); 4] = [
    (Scheduler::Slurm, "SLURM_JOB_ID"),
    (Scheduler::Pbs, "PBS_JOBID"),
    (Scheduler::Oar, "OAR_JOB_ID"),
    (Scheduler::Flux, "FLUX_JOB_ID"),
];

/// Variables with the rank, in order of precedence. Those of MPI launchers come first: under
/// `mpirun`, all ranks inherit the `SLURM_PROCID` of the process that started them.
const RANKS: [&str; 7] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
];

/// Job, step and rank that an environment names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobEnvironment {
    /// Job id of each scheduler that has one. In a nested allocation, the outer scheduler comes
    /// first.
    pub jobs: Vec<(Scheduler, JobId)>,
    /// Step of the Slurm job.
    pub step: Option<String>,
    /// Rank in MPI, or task number in the step.
    pub rank: Option<u32>,
}

impl JobEnvironment {
    /// Reads the variables from `NAME=value` strings.
    pub fn parse<'a>(strings: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut values = [const { None }; VARIABLES.len()];
        for string in strings {
            let string = string.split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(equals) = string.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            let index = VARIABLES
                .iter()
                .position(|name| name.as_bytes() == &string[..equals]);
            if let Some(index) = index {
                values[index] = std::str::from_utf8(&string[equals + 1..]).ok();
            }
        }
        let value = |name: &str| {
            let index = VARIABLES.iter().position(|known| *known == name)?;
            values[index].filter(|value| !value.is_empty())
        };
        let jobs = JOB_IDS.into_iter().filter_map(|(scheduler, name)| {
            let id = JobId::try_from(value(name)?.to_owned()).ok()?;
            Some((scheduler, id::normalized(scheduler, id)))
        });
        let is_slurm = value("SLURM_JOB_ID").is_some();
        let step = match value("SLURM_STEP_ID") {
            Some(step) => Some(step_name(step)),
            // sbatch sets it for the script, whose step has no number.
            None => value("SLURM_PROCID").map(|_| "batch".to_owned()),
        };
        Self {
            jobs: jobs.collect(),
            step: step.filter(|_| is_slurm),
            rank: RANKS.into_iter().find_map(|name| value(name)?.parse().ok()),
        }
    }

    /// Environments of processes, up to the size limit, in the same order; `None` for one that
    /// cannot be read.
    pub fn read_all(procfs: &Path, pids: &[u32]) -> impl Iterator<Item = Option<Self>> {
        let requests: Vec<_> = pids.iter().map(|pid| (*pid, MemoryFile::Environ)).collect();
        let read = memory_file::read_all(procfs, &requests).into_iter();
        read.map(|environment| Some(Self::parse(environment.ok()?.strings())))
    }

    /// Environment of this process.
    pub fn of_this_process() -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        let strings: Vec<Vec<u8>> = std::env::vars_os()
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
            .collect();
        Self::parse(strings.iter().map(Vec::as_slice))
    }

    pub fn job_id(&self, scheduler: Scheduler) -> Option<&str> {
        let mut jobs = self.jobs.iter();
        jobs.find(|(other, _)| *other == scheduler)
            .map(|(_, id)| &**id)
    }

    /// Whether the environment names this job.
    pub fn names(&self, scheduler: Scheduler, id: &str) -> bool {
        self.job_id(scheduler)
            .is_some_and(|job| is_same_job(scheduler, job, id))
    }
}

/// Slurm reserves numbers for the steps that srun does not start (`SLURM_BATCH_SCRIPT` and others
/// in slurm/slurm.h).
fn step_name(step: &str) -> String {
    match step {
        "4294967290" => "interactive",
        "4294967291" => "batch",
        "4294967292" => "extern",
        step => step,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(text: &str) -> JobEnvironment {
        JobEnvironment::parse(text.split(' ').map(str::as_bytes))
    }

    #[test]
    fn slurm_variables() {
        let task = environment("A=b SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3 SECRET=x");
        assert_eq!(
            (task.jobs.len(), task.job_id(Scheduler::Slurm)),
            (1, Some("7"))
        );
        assert_eq!((task.step.as_deref(), task.rank), (Some("1"), Some(3)));
        let script = environment("SLURM_JOB_ID=7 SLURM_PROCID=0");
        assert_eq!(
            (script.step.as_deref(), script.rank),
            (Some("batch"), Some(0))
        );
        let shell = environment("SLURM_JOB_ID=7");
        assert_eq!((shell.step.as_deref(), shell.rank), (None, None));
        let interactive = environment("SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290");
        assert_eq!(interactive.step.as_deref(), Some("interactive"));
    }

    #[test]
    fn mpi_ranks_precede_slurm_task_numbers() {
        let rank = environment("SLURM_JOB_ID=7 SLURM_PROCID=0 OMPI_COMM_WORLD_RANK=5 PMIX_RANK=5");
        assert_eq!(rank.rank, Some(5));
        let rank = environment("PMI_RANK=2");
        assert_eq!((rank.jobs.len(), rank.step, rank.rank), (0, None, Some(2)));
        assert_eq!(environment("PMI_RANK=x PALS_RANKID=4").rank, Some(4));
    }

    #[test]
    fn variables_of_other_schedulers() {
        let pbs = environment("PBS_JOBID=7.server");
        assert_eq!(pbs.job_id(Scheduler::Pbs), Some("7.server"));
        assert!(pbs.names(Scheduler::Pbs, "7"));
        assert!(environment("OAR_JOB_ID=8").names(Scheduler::Oar, "8"));
        let flux = environment("FLUX_JOB_ID=ƒ2Rt FLUX_TASK_RANK=1");
        assert!(flux.names(Scheduler::Flux, "f2Rt") && flux.rank == Some(1));
        let nested = environment("FLUX_JOB_ID=f2Rt SLURM_JOB_ID=7");
        assert_eq!(nested.jobs[0].0, Scheduler::Slurm);
    }

    #[test]
    fn malformed_variables_are_ignored() {
        for text in [
            "",
            "=",
            "SLURM_JOB_ID",
            "SLURM_JOB_ID=",
            "SLURM_JOB_ID=a/b",
            "XSLURM_JOB_ID=1",
        ] {
            assert_eq!(environment(text), JobEnvironment::default(), "{text}");
        }
        let bytes: [&[u8]; 2] = [b"SLURM_JOB_ID=\xff", b"PMI_RANK=-1"];
        assert_eq!(
            JobEnvironment::parse(bytes.into_iter()),
            JobEnvironment::default()
        );
    }
}
