//! Runs in S3 and on web servers, which are copied into a temporary directory and read there. Nothing on
//! a server is trusted: only files of a run are copied, below this directory, and their number is limited.

mod copy;
mod interruption;
mod origin;
mod plan;
mod progress;

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use self::origin::Origin;
use crate::{
    failure::{Failure, Reason},
    output::dataset::{compacted, files::is_plain_name, foreign_file::Trust},
    support::units::{counted, format_bytes},
};

/// A run to read.
#[derive(Debug)]
pub struct Run {
    /// Directory or address as the user named it.
    pub name: PathBuf,
    /// Its directory, or that of its copy.
    pub directory: PathBuf,
    /// Files of the run that are damaged or missing on the server, with the reason.
    pub problems: Vec<String>,
    /// Whose files of it are read without limits.
    pub trust: Trust,
    /// Removed with the run.
    _copy: Option<TempDir>,
}

impl Run {
    /// The run in a directory; a run on a server is copied.
    ///
    /// # Errors
    ///
    /// When there is no such run on the server, the server cannot be reached or refuses, or the copy
    /// cannot be written.
    pub fn resolve(name: &Path) -> Result<Self, Failure> {
        let address = name.to_str().filter(|name| is_address(name));
        let Some(address) = address else {
            return Ok(Self {
                name: name.to_owned(),
                directory: name.to_owned(),
                problems: Vec::new(),
                trust: Trust::Own,
                _copy: None,
            });
        };
        let (dataset, run) = parts(address)?;
        let origin = Origin::open(dataset)?;
        let copy = tempfile::Builder::new()
            .prefix("profiler-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir();
        let copy = copy.map_err(|error| {
            let place = std::env::temp_dir();
            let message = format!("{}: {error}: set TMPDIR", place.display());
            Failure::new(Reason::Output, message)
        })?;
        interruption::remove(copy.path());
        let progress = progress::Progress::default();
        let problems =
            progress.shown(address, || copy::copy(&origin, run, copy.path(), &progress))?;
        Ok(Self {
            name: name.to_owned(),
            directory: copy.path().join(run),
            problems,
            // The copy is ours, its content is not.
            trust: Trust::Nobody,
            _copy: Some(copy),
        })
    }
}

/// Whether the name of a run is the address of a server.
fn is_address(name: &str) -> bool {
    ["s3://", "https://", "http://"]
        .iter()
        .any(|scheme| name.starts_with(scheme))
}

/// The address of the directory with the run, and the name of the run.
fn parts(address: &str) -> Result<(&str, &str), Failure> {
    let invalid = |why: &str| Err(Failure::new(Reason::Usage, format!("{address}: {why}")));
    if !address.starts_with("s3://") && address.contains(['?', '#']) {
        return invalid("an address with `?` or `#` is not that of a run");
    }
    let trimmed = address.trim_end_matches('/');
    let (scheme, place) = trimmed.split_once("://").unwrap_or_default();
    match place.rsplit_once('/') {
        Some((_, compacted::DIRECTORY)) => invalid(
            "not a run, but files of many: run `profiler verify` where the dataset is stored",
        ),
        Some((above, run)) if is_plain_name(run) && !above.is_empty() => {
            Ok((&trimmed[..scheme.len() + "://".len() + above.len()], run))
        }
        _ => invalid("no name of a run: s3://BUCKET/PREFIX/RUN or https://HOST/PATH/RUN"),
    }
}

/// Text about a number of files.
fn amount(files: u64, bytes: u64) -> String {
    format!("{}, {}", counted(files, "file"), format_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (address, expected) in [
            ("s3://bucket/run", ("s3://bucket", "run")),
            ("s3://bucket/a/b/run/", ("s3://bucket/a/b", "run")),
            ("https://host/run//", ("https://host", "run")),
            ("http://[::1]:80/a/run", ("http://[::1]:80/a", "run")),
        ] {
            assert_eq!(parts(address).unwrap(), expected, "{address}");
        }
        for address in [
            "s3://bucket",
            "s3:///run",
            "https://host/",
            "https://host/a/..",
            "https://host/run?signature=1",
            "s3://bucket/compacted",
        ] {
            let failure = parts(address).unwrap_err();
            assert_eq!(failure.reason, Reason::Usage, "{address}");
        }
        assert!(!is_address("profiles/s3://x"));
    }
}
