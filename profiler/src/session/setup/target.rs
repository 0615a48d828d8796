//! The target as BPF programs and the `/proc` fallback need it.

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use super::lookup;
use crate::{
    bpf::{self, Roots},
    config::{Config, Target},
    failure::{Failure, Reason},
    host::Host,
    job::{self, ROOTS_MAX},
    privileges,
    tasks::procfs_reader,
};

/// A target that exists.
pub struct FoundTarget {
    /// Membership, as BPF programs check it.
    pub scope: bpf::Scope,
    /// Processes that are followed from the start.
    pub roots: Roots,
    /// Membership, as the `/proc` fallback checks it.
    pub procfs_scope: procfs_reader::Scope,
    /// Directory of the cgroup.
    pub cgroup: Option<PathBuf>,
    /// The job, for `run.json`.
    pub job: Option<serde_json::Value>,
    /// The target, for messages.
    pub description: String,
}

/// Checks that an ordinary user profiles only own processes.
fn check_owner(host: &Host, pids: &[u32]) -> Result<(), Failure> {
    if privileges::may_load_bpf() {
        return Ok(());
    }
    let own = rustix::process::getuid().as_raw();
    for pid in pids {
        let owner = fs::metadata(host.procfs.join(pid.to_string()));
        if let Ok(owner) = owner
            && owner.uid() != own
        {
            let message = format!(
                "process {pid} belongs to user {}: run with sudo, or with CAP_BPF and CAP_PERFMON",
                owner.uid()
            );
            return Err(Failure::new(Reason::Privilege, message));
        }
    }
    Ok(())
}

impl FoundTarget {
    /// Finds the target.
    ///
    /// # Errors
    ///
    /// When it does not exist.
    pub fn find(
        config: &Config,
        host: &Host,
        job: Option<&job::FoundJob>,
    ) -> Result<Self, Failure> {
        match &config.target {
            Target::Pids(list) => {
                let _raised = privileges::raise();
                check_owner(host, list)?;
                let names: Vec<_> = list.iter().map(ToString::to_string).collect();
                let description = format!("process {}", names.join(", "));
                Ok(Self::pids(lookup::roots(host, list)?, description))
            }
            Target::Command(command) => {
                let name = command.first().map(|name| name.to_string_lossy());
                let description = format!("`{}`", name.unwrap_or_default());
                // Its process is created after everything else.
                Ok(Self::pids(Roots::new(), description))
            }
            Target::Cgroup(path) => {
                let (directory, scope) = lookup::cgroup(host, path)?;
                Ok(Self {
                    scope,
                    roots: Roots::new(),
                    procfs_scope: procfs_reader::Scope::Cgroup(directory.clone()),
                    description: format!("cgroup {}", directory.display()),
                    cgroup: Some(directory),
                    job: None,
                })
            }
            Target::Job(_) => Self::job(
                host,
                job.ok_or_else(|| Failure::new(Reason::Internal, "no search for the job"))?,
            ),
            Target::Node => Ok(Self {
                scope: bpf::Scope::Node,
                roots: Roots::new(),
                procfs_scope: if privileges::may_load_bpf() {
                    procfs_reader::Scope::Node
                } else {
                    procfs_reader::Scope::User(rustix::process::getuid().as_raw())
                },
                cgroup: None,
                job: None,
                description: format!("node {}", host.hostname),
            }),
        }
    }

    fn pids(roots: Roots, description: String) -> Self {
        Self {
            scope: bpf::Scope::Pids,
            procfs_scope: procfs_reader::Scope::Pids(roots.iter().map(|(pid, _)| *pid).collect()),
            roots,
            cgroup: None,
            job: None,
            description,
        }
    }

    fn job(host: &Host, job: &job::FoundJob) -> Result<Self, Failure> {
        let hierarchy = match job.directories.first() {
            Some(directory) => match lookup::cgroup(host, &directory.path) {
                Ok((_, bpf::Scope::Cgroup { hierarchy, .. })) => hierarchy,
                Ok(_) => 0,
                Err(_) if !directory.path.exists() => {
                    let message = format!("{job} ended while the profiler started");
                    return Err(Failure::new(Reason::Target, message));
                }
                Err(failure) => return Err(failure),
            },
            None => 0,
        };
        let directories = job.directories.iter();
        Ok(Self {
            scope: bpf::Scope::Job {
                ids: directories
                    .clone()
                    .map(|directory| directory.inode)
                    .collect(),
                hierarchy,
            },
            // The first search of the watcher finds those beyond the size of the map.
            roots: job
                .pids
                .iter()
                .map(|pid| (*pid, 0))
                .take(ROOTS_MAX)
                .collect(),
            procfs_scope: procfs_reader::Scope::Job {
                directories: directories
                    .map(|directory| directory.path.clone())
                    .collect(),
                pids: job.pids.iter().copied().collect(),
            },
            cgroup: None,
            job: Some(job.to_json()),
            description: job.to_string(),
        })
    }
}
