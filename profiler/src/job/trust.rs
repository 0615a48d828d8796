//! Cgroups that prove a job: only root and the scheduler's own account can create them.
//!
//! Names of cgroups are not protected: every user has a delegated subtree (`user@1000.service`) and
//! can create `slurmstepd.scope/job_7` in it. Therefore the owners and modes of the directories
//! above the job's directory are checked.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use super::{
    Scheduler,
    cgroup_path::{self, JobCgroup},
};
use crate::host::Cgroups;

/// System accounts have lower uids (`SYS_UID_MAX` in login.defs(5) is 999).
const FIRST_USER: u32 = 1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Uids that can create cgroups of a scheduler's jobs: root, and the account of the scheduler. Only
/// `/etc/passwd` is read: system accounts are local, and a directory service can hang.
pub fn accounts(scheduler: Scheduler) -> &'static [u32] {
    static PASSWD: LazyLock<String> =
        LazyLock::new(|| fs::read_to_string("/etc/passwd").unwrap_or_default());
    static OAR: LazyLock<Vec<u32>> = LazyLock::new(|| root_and(&PASSWD, "oar"));
    static FLUX: LazyLock<Vec<u32>> = LazyLock::new(|| root_and(&PASSWD, "flux"));
    match scheduler {
        Scheduler::Oar => &OAR,
        Scheduler::Flux => &FLUX,
        Scheduler::Slurm | Scheduler::Pbs | Scheduler::None => &[0],
    }
}

fn root_and(passwd: &str, account: &str) -> Vec<u32> {
    let uid = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(account)).then(|| fields.nth(1)?.parse().ok())?
    });
    let system = uid.filter(|uid| *uid < FIRST_USER);
    [0].into_iter().chain(system).collect()
}

/// Whether only `accounts` can create a directory in this one.
pub fn is_protected(directory: &Path, accounts: &[u32]) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|data| {
        data.is_dir()
            && accounts.contains(&data.uid())
            && data.mode() & OTHERS_WRITE == 0
            && (data.mode() & GROUP_WRITES == 0 || data.gid() == 0)
    })
}

/// The job that the lines of `/proc/PID/cgroup` prove, and its directory. A systemd unit is
/// returned without proof and without a directory: it is a label, not a batch job.
pub fn proven_job(cgroups: &Cgroups, lines: &[u8]) -> Option<(JobCgroup, Option<PathBuf>)> {
    let mut directory = None;
    let job = cgroup_path::identify_where(lines, |controllers, path, job| {
        if job.scheduler == Scheduler::None {
            return true;
        }
        let proof = protected_directory(cgroups, controllers, path, job);
        let is_proven = proof.is_some();
        directory = directory.take().or(proof);
        is_proven
    })?;
    Some((job, directory))
}

/// Directory of a job in the hierarchy with these controllers, if all directories above it are
/// protected.
fn protected_directory(
    cgroups: &Cgroups,
    controllers: &str,
    path: &str,
    job: &JobCgroup,
) -> Option<PathBuf> {
    let hierarchy = cgroups.hierarchy(controllers)?;
    let directory = hierarchy.directory(Path::new(path.get(..job.directory_len)?))?;
    let accounts = accounts(job.scheduler);
    let above = directory.ancestors().skip(1);
    let mut above = above.take_while(|above| above.starts_with(&hierarchy.mount_point));
    above
        .all(|above| is_protected(above, accounts))
        .then_some(directory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;
    use crate::host::Hierarchy;

    fn mounted_at(mount_point: &Path) -> Cgroups {
        Cgroups {
            v1: Vec::new(),
            v2: Hierarchy::new(Vec::new(), mount_point, Path::new("/")),
        }
    }

    fn job(host: &Cgroups, path: &str) -> Option<String> {
        proven_job(host, format!("0::{path}\n").as_bytes()).map(|(job, _)| job.job)
    }

    #[test]
    fn directories_above_the_job_must_be_protected() {
        let mount = tempfile::TempDir::new().unwrap();
        let host = mounted_at(mount.path());
        let make = |path: &str| {
            let directory = mount.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(&directory).unwrap();
            directory
        };
        if fs::metadata(mount.path()).unwrap().uid() != 0 {
            // Only root can change owners; no directory of an ordinary user proves a job.
            make("/slurmstepd.scope/job_7");
            assert_eq!(job(&host, "/slurmstepd.scope/job_7"), None);
            return;
        }
        let of_root = "/system.slice/slurmstepd.scope/job_7";
        let directory = make(of_root);
        assert_eq!(job(&host, of_root).as_deref(), Some("7"));
        // The scheduler can make the user the owner of the job's own directory.
        chown(&directory, Some(4242), Some(4242)).unwrap();
        let step = format!("{of_root}/step_0/user/task_0");
        assert_eq!(job(&host, &step).as_deref(), Some("7"));

        let delegated = "/user.slice/user@4242.service";
        chown(make(delegated), Some(4242), Some(4242)).unwrap();
        for forged in [
            "slurmstepd.scope/job_7",
            "slurm/uid_4343/job_7",
            "shell-0-f2Rt.service",
        ] {
            let forged = format!("{delegated}/{forged}");
            make(&forged);
            assert_eq!(job(&host, &forged), None, "{forged}");
        }
        // A systemd scope needs no proof.
        let unit = format!("{delegated}/run-u7.scope");
        assert_eq!(job(&host, &unit).as_deref(), Some("run-u7.scope"));

        let shared = make("/shared.slice/slurmstepd.scope");
        make("/shared.slice/slurmstepd.scope/job_8");
        for mode in [0o777, 0o757] {
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(job(&host, "/shared.slice/slurmstepd.scope/job_8"), None);
        }
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(job(&host, "/shared.slice/slurmstepd.scope/job_8").is_some());
        // A hierarchy that is not mounted, and a directory that does not exist.
        assert!(proven_job(&host, b"4:freezer:/slurm/uid_0/job_9\n").is_none());
        assert_eq!(job(&host, "/nowhere/slurmstepd.scope/job_7"), None);
    }

    #[test]
    fn accounts_of_schedulers() {
        let passwd = "root:x:0:0::/root:/bin/sh\noar:x:110:117::/var/lib/oar:/bin/bash\nflux:x:1001:1001::/:\n";
        assert_eq!(root_and(passwd, "oar"), [0, 110]);
        assert_eq!(root_and(passwd, "flux"), [0]);
        assert_eq!(root_and(passwd, "pbs"), [0]);
    }
}
