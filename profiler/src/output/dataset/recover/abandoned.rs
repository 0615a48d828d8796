//! Runs of killed profilers.

use std::path::Path;

use super::{Hosts, RecoverError, RecoveryReport, activity::is_locked, manifests, recover};
use crate::{
    output::dataset::{files::Directory, foreign_file::Trust},
    schema::DatasetSchema,
    support::invoking_user::Owner,
};

/// Names of the abandoned runs in `out_dir`: their profiler on this host has ended and left
/// journals. A directory that cannot be read has none.
pub fn abandoned_runs(out_dir: &Path, hostname: &str, owner: Owner) -> Vec<String> {
    let names = Directory::open(out_dir, None).and_then(|out| out.names());
    let mut names = names.unwrap_or_default();
    names.retain(|name| is_abandoned(&out_dir.join(name), hostname, owner));
    names
}

/// Runs that belong neither to this user nor to `owner` are ignored: their content is not trusted.
fn is_abandoned(run_dir: &Path, hostname: &str, owner: Owner) -> bool {
    let Ok(run) = Directory::open_run(run_dir, None) else {
        return false;
    };
    let ours = rustix::process::geteuid().as_raw();
    let is_ours = run
        .owned_by()
        .is_ok_and(|(uid, _)| uid == ours || owner.is_some_and(|(owner, _)| owner == uid));
    is_ours
        && manifests(&run, Hosts::Only(hostname))
            .iter()
            .any(|(_, manifest)| {
                manifest.hostname == hostname
                    && manifest.has_journals()
                    && !manifest.process.is_alive()
                    && !is_locked(&run, hostname)
            })
}

/// Recovers one run, if it is abandoned.
pub fn recover_abandoned(
    run_dir: &Path,
    hostname: &str,
    owner: Owner,
    schema: &DatasetSchema,
) -> Option<Result<RecoveryReport, RecoverError>> {
    is_abandoned(run_dir, hostname, owner)
        .then(|| recover(run_dir, Hosts::Only(hostname), schema, Trust::Own))
}
