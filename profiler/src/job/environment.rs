//! What the environment of a process says of a batch job. Only [`VARIABLES`] are looked at.

use std::path::Path;

use profiler_ebpf::wire::VARIABLES;

use super::{Scheduler, cgroup_path};
use crate::procfs::process_file::{self, ENVIRON_MAX};

/// The variables with which each scheduler names its job.
const JOBS: [(Scheduler, &str); 4] = [
    (Scheduler::Slurm, "SLURM_JOB_ID"),
    (Scheduler::Pbs, "PBS_JOBID"),
    (Scheduler::Oar, "OAR_JOB_ID"),
    (Scheduler::Flux, "FLUX_JOB_ID"),
];

/// Those with which programs are told their rank. What starts the ranks of MPI comes first: under `mpirun`, all of them
/// have the `SLURM_PROCID` of the process that started them.
const RANKS: [&str; 7] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
];

/// What an environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    /// The job, as each of the schedulers calls it; the one that has the node comes first.
    pub jobs: Vec<(Scheduler, String)>,
    /// The step of Slurm's job.
    pub step: Option<String>,
    /// Rank.
    pub rank: Option<u32>,
}

impl Stated {
    /// From `NAME=value` strings.
    pub fn of<'a>(strings: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut values = [const { None }; VARIABLES.len()];
        for string in strings {
            let string = string.split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(at) = string.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            let name = VARIABLES
                .iter()
                .position(|name| name.as_bytes() == &string[..at]);
            if let Some(name) = name {
                values[name] = std::str::from_utf8(&string[at + 1..]).ok();
            }
        }
        let value = |name: &str| {
            let at = VARIABLES.iter().position(|known| *known == name)?;
            values[at].filter(|value| !value.is_empty())
        };
        let jobs = JOBS.into_iter().filter_map(|(scheduler, name)| {
            let id = value(name).filter(|id| super::is_id(id))?;
            Some((scheduler, normal(scheduler, id)))
        });
        let slurm = value("SLURM_JOB_ID").is_some();
        let step = match value("SLURM_STEP_ID") {
            Some(step) => Some(step_name(step)),
            // sbatch sets it for the script, which has no number of a step.
            None => value("SLURM_PROCID").map(|_| "batch".to_owned()),
        };
        Self {
            jobs: jobs.collect(),
            step: step.filter(|_| slurm),
            rank: RANKS.into_iter().find_map(|name| value(name)?.parse().ok()),
        }
    }

    /// Of a process, as far as the limit; nothing when its environment cannot be read.
    pub fn read(procfs: &Path, pid: u32) -> Option<Self> {
        let environment = process_file::read(procfs, pid, "environ", ENVIRON_MAX).ok()?;
        Some(Self::of(environment.strings()))
    }

    /// Of this process.
    pub fn of_this_process() -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        let strings: Vec<Vec<u8>> = std::env::vars_os()
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
            .collect();
        Self::of(strings.iter().map(Vec::as_slice))
    }

    /// The job of a scheduler.
    pub fn job_of(&self, scheduler: Scheduler) -> Option<&str> {
        let mut jobs = self.jobs.iter();
        jobs.find(|(of, _)| *of == scheduler).map(|(_, id)| &id[..])
    }

    /// Whether it names the job that a user calls `id`.
    pub fn is_of(&self, scheduler: Scheduler, id: &str) -> bool {
        self.job_of(scheduler).is_some_and(|job| match scheduler {
            Scheduler::Pbs => cgroup_path::same_pbs_job(job, id),
            _ => job == id,
        })
    }
}

fn normal(scheduler: Scheduler, id: &str) -> String {
    let flux = (scheduler == Scheduler::Flux).then(|| cgroup_path::flux_id(id));
    flux.flatten().unwrap_or_else(|| id.to_owned())
}

/// Steps of Slurm that are not started by srun have numbers of their own (slurm/slurm.h, `SLURM_BATCH_SCRIPT` and others).
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

    fn stated(text: &str) -> Stated {
        Stated::of(text.split(' ').map(str::as_bytes))
    }

    #[test]
    fn of_slurm() {
        let task = stated("A=b SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=3 SECRET=x");
        assert_eq!(task.jobs, [(Scheduler::Slurm, "7".to_owned())]);
        assert_eq!((task.step.as_deref(), task.rank), (Some("1"), Some(3)));
        let script = stated("SLURM_JOB_ID=7 SLURM_PROCID=0");
        assert_eq!(
            (script.step.as_deref(), script.rank),
            (Some("batch"), Some(0))
        );
        let shell = stated("SLURM_JOB_ID=7");
        assert_eq!((shell.step.as_deref(), shell.rank), (None, None));
        let interactive = stated("SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290");
        assert_eq!(interactive.step.as_deref(), Some("interactive"));
    }

    #[test]
    fn of_mpi() {
        let rank = stated("SLURM_JOB_ID=7 SLURM_PROCID=0 OMPI_COMM_WORLD_RANK=5 PMIX_RANK=5");
        assert_eq!(rank.rank, Some(5));
        let rank = stated("PMI_RANK=2");
        assert_eq!((rank.jobs.len(), rank.step, rank.rank), (0, None, Some(2)));
        assert_eq!(stated("PMI_RANK=x PALS_RANKID=4").rank, Some(4));
    }

    #[test]
    fn of_others() {
        assert_eq!(
            stated("PBS_JOBID=7.server").job_of(Scheduler::Pbs),
            Some("7.server")
        );
        assert!(stated("PBS_JOBID=7.server").is_of(Scheduler::Pbs, "7"));
        assert!(stated("OAR_JOB_ID=8").is_of(Scheduler::Oar, "8"));
        let flux = stated("FLUX_JOB_ID=ƒ2Rt FLUX_TASK_RANK=1");
        assert!(flux.is_of(Scheduler::Flux, "f2Rt") && flux.rank == Some(1));
        let nested = stated("FLUX_JOB_ID=f2Rt SLURM_JOB_ID=7");
        assert_eq!(nested.jobs[0].0, Scheduler::Slurm);
    }

    #[test]
    fn of_nonsense() {
        for text in [
            "",
            "=",
            "SLURM_JOB_ID",
            "SLURM_JOB_ID=",
            "SLURM_JOB_ID=a/b",
            "XSLURM_JOB_ID=1",
        ] {
            assert_eq!(stated(text), Stated::default(), "{text}");
        }
        let bytes: [&[u8]; 2] = [b"SLURM_JOB_ID=\xff", b"PMI_RANK=-1"];
        assert_eq!(Stated::of(bytes.into_iter()), Stated::default());
    }
}
