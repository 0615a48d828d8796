//! Job ids of each scheduler: their syntax, and which spellings mean the same job.

use std::{fmt, ops::Deref};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Scheduler;

/// Id of a job. It becomes an argument of the scheduler's commands and a part of names of files,
/// wherever it comes from: command line, environment, a client of the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct JobId(String);

/// Step of a Slurm job: a number, or the name of a step without one. It becomes the name of a
/// cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Step(String);

/// Why a text is no id.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IdError {
    #[error("not a valid job id")]
    Job,
    #[error("expected a number, batch, extern or interactive")]
    Step,
}

impl TryFrom<String> for JobId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        let fits = |c: char| c.is_alphanumeric() || "._-+[]:@\\".contains(c);
        let is_id = (1..=128).contains(&text.len())
            && !text.starts_with('-')
            && text.chars().all(fits)
            && text.chars().any(char::is_alphanumeric);
        is_id.then_some(Self(text)).ok_or(IdError::Job)
    }
}

impl TryFrom<String> for Step {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_step = is_number || ["batch", "extern", "interactive"].contains(&text.as_str());
        is_step.then_some(Self(text)).ok_or(IdError::Step)
    }
}

impl Deref for JobId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Deref for Step {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Run id of a job, the same on all its nodes: `slurm-4711`. Characters that are not usable in a
/// directory name become `_`.
pub fn run_id(scheduler: Scheduler, id: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._-+[]".contains(c);
    let id: String = id.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    format!("{}-{id}", scheduler.name().to_lowercase())
}

/// Whether two ids of a scheduler mean the same job.
pub fn is_same_job(scheduler: Scheduler, one: &str, other: &str) -> bool {
    match scheduler {
        Scheduler::Pbs => is_same_pbs_job(one, other),
        Scheduler::Slurm | Scheduler::Oar | Scheduler::Flux | Scheduler::None => one == other,
    }
}

/// The name of the server is optional: `7` and `7.server` mean the same job.
fn is_same_pbs_job(one: &str, other: &str) -> bool {
    let (number, server) = one.split_once('.').unwrap_or((one, ""));
    let (other_number, other_server) = other.split_once('.').unwrap_or((other, ""));
    number == other_number
        && (server.is_empty() || other_server.is_empty() || server == other_server)
}

/// The spelling of an id that is used in cgroup paths and in the data.
pub fn normalized(scheduler: Scheduler, id: JobId) -> JobId {
    let flux = (scheduler == Scheduler::Flux).then(|| flux_id(&id));
    flux.flatten().map_or(id, JobId)
}

/// A Flux job id in base 58 with the prefix `f`, which Flux can print as `ƒ`.
pub fn flux_id(id: &str) -> Option<String> {
    let digits = id.strip_prefix(['f', 'ƒ'])?;
    let digit = |byte: u8| byte.is_ascii_alphanumeric() && !b"0OIl".contains(&byte);
    (!digits.is_empty() && digits.bytes().all(digit)).then(|| format!("f{digits}"))
}

/// Whether `name` is a SLUID of Slurm: `s` and 13 digits of Crockford's base 32, which excludes I,
/// L, O and U.
pub fn is_sluid(name: &str) -> bool {
    let digit =
        |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase() && !b"ILOU".contains(&byte);
    name.len() == 14 && name.starts_with('s') && name.bytes().skip(1).all(digit)
}

/// Name of a systemd scope or service without its suffix.
pub fn unit_stem(name: &str) -> Option<&str> {
    name.strip_suffix(".scope")
        .or_else(|| name.strip_suffix(".service"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> Result<JobId, IdError> {
        JobId::try_from(id.to_owned())
    }

    #[test]
    fn ids_are_checked() {
        for id in [
            "7",
            "7.server",
            "12_3",
            "7[2].server",
            "ƒ2Rt",
            "s5K1KKYAYG5D00",
            "run-u1.service",
        ] {
            assert_eq!(job(id).as_deref(), Ok(id));
        }
        for invalid in ["", "-7", "a b", "a/b", "..", "7;x", "$x", &"7".repeat(129)] {
            assert_eq!(job(invalid), Err(IdError::Job), "{invalid}");
        }
    }

    #[test]
    fn steps_are_checked() {
        for step in ["0", "17", "batch", "interactive"] {
            assert_eq!(Step::try_from(step.to_owned()).as_deref(), Ok(step));
        }
        for invalid in ["", "-1", "7.0", "0/..", "0/../..", "0\n", "x"] {
            let json = serde_json::to_string(invalid).unwrap();
            assert!(serde_json::from_str::<Step>(&json).is_err(), "{invalid}");
        }
    }

    #[test]
    fn server_of_pbs_is_optional() {
        assert!(is_same_job(Scheduler::Pbs, "7.server", "7"));
        assert!(!is_same_job(Scheduler::Pbs, "7.server", "7.other"));
        assert!(!is_same_job(Scheduler::Slurm, "7.server", "7"));
    }

    #[test]
    fn flux_ids_are_normalized() {
        assert_eq!(flux_id("ƒ2Rt").as_deref(), Some("f2Rt"));
        for invalid in ["f", "f0", "2Rt"] {
            assert_eq!(flux_id(invalid), None);
        }
        let normal = |scheduler, id| normalized(scheduler, job(id).unwrap()).to_string();
        assert_eq!(normal(Scheduler::Flux, "ƒ2Rt"), "f2Rt");
        assert_eq!(normal(Scheduler::Flux, "7"), "7");
        assert_eq!(normal(Scheduler::Slurm, "ƒ2Rt"), "ƒ2Rt");
    }
}
