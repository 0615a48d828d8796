//! Status files: what the running profilers and services of this node do, for `profiler status`.
//!
//! Each of them keeps a file in its [runtime directory](runtime_directory), which only its user can
//! write to, and replaces it at most once per second. The file of a process that was killed remains;
//! its readers see that the process has gone.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    dataset::manifest::{Loss, ProcessIdentity},
    retention::Disk,
};
use crate::support::{
    clock::{Clock, monotonic_ns},
    regular_file::{self, Links},
    runtime_directory,
};

/// Suffix of the name of a status file, which begins with the process id.
const SUFFIX: &str = ".status";
/// Limit of the size of a file in bytes, and of the files of one directory: their content is not
/// trusted.
const MAX_BYTES: u64 = 64 << 10;
const MAX_FILES: usize = 256;

/// State of a profiler or service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub process: ProcessIdentity,
    pub version: String,
    /// The target of a run; null for a service.
    pub target: Option<String>,
    pub run_id: Option<String>,
    /// Directory of the run; null if a client of the service writes it.
    pub run_dir: Option<PathBuf>,
    /// For a run by the service: the user of its client.
    pub client_uid: Option<u32>,
    /// Socket of a service.
    pub socket: Option<PathBuf>,
    /// Wall clock minus `CLOCK_MONOTONIC` at the start, ns: the offset in all timestamps here.
    pub clock_offset_ns: i64,
    /// Start, ns since 1970-01-01 UTC.
    pub start_ts: i64,
    pub interval_ns: Option<u64>,
    /// Time of the last sample, ns since 1970-01-01 UTC.
    pub sample_ts: Option<i64>,
    pub samples: Option<u64>,
    /// Time of the last Parquet file, ns since 1970-01-01 UTC.
    pub file_ts: Option<i64>,
    pub losses: Vec<Loss>,
    /// Space for runs, if it is limited.
    pub disk: Option<Disk>,
}

impl Status {
    /// Time since one of its timestamps, ns; `None` if it is in the future. Setting the clock of the
    /// node does not change it.
    pub fn since(&self, ts: i64) -> Option<u64> {
        let now = i64::try_from(monotonic_ns()).ok()?;
        let now = now.checked_add(self.clock_offset_ns)?;
        u64::try_from(now.checked_sub(ts)?).ok()
    }

    /// A service that has just started. Its profiles have files of their own.
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be read.
    pub fn of_service(socket: &Path) -> io::Result<Self> {
        let clock = Clock::new();
        Ok(Self {
            process: ProcessIdentity::current()?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            socket: Some(socket.to_owned()),
            clock_offset_ns: clock.offset_ns(),
            start_ts: clock.wall_ns(monotonic_ns()),
            ..Self::default()
        })
    }
}

/// The status file of this process, removed when this is dropped.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    new: PathBuf,
}

impl StatusFile {
    /// Creates the file; `None` without a runtime directory. Removes those of ended processes.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn create(status: &Status) -> io::Result<Option<Self>> {
        let mut candidates = runtime_directory::candidates();
        let usable = candidates.find(|directory| runtime_directory::make(directory).is_ok());
        let Some(directory) = usable else {
            return Ok(None);
        };
        for (path, found) in read_directory(&directory) {
            if let Ok(found) = found
                && !found.process.is_alive()
            {
                let _ = fs::remove_file(path);
            }
        }
        let pid = std::process::id();
        let file = Self {
            path: directory.join(format!("{pid}{SUFFIX}")),
            new: directory.join(format!("{pid}{SUFFIX}.new")),
        };
        file.write(status)?;
        Ok(Some(file))
    }

    /// Replaces the content.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, status: &Status) -> io::Result<()> {
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o640);
        let mut file = options.open(&self.new)?;
        if status.socket.is_some() {
            // A service is for all users; its file names none of them.
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
        }
        file.write_all(&serde_json::to_vec(status)?)?;
        fs::rename(&self.new, &self.path)
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The state of a process of this node.
#[derive(Debug)]
pub struct Found {
    pub status: Status,
    /// User of the process.
    pub uid: u32,
}

/// The running profilers and services.
#[derive(Debug, Default)]
pub struct Running {
    /// Ordered by their start.
    pub found: Vec<Found>,
    /// Number of files that this user may not read.
    pub unreadable: usize,
}

/// Reads the status files below `root`, which is `/` except in tests. A file counts if its owner is
/// that of its directory and runs the process of which it reports: no user can report for another
/// user.
pub fn running(root: &Path, uid_of: impl Fn(u32) -> Option<u32>) -> Running {
    let mut running = Running::default();
    for directory in directories(root) {
        let Some(owner) = owner(&directory) else {
            continue;
        };
        for (path, found) in read_directory(&directory) {
            match found {
                Ok(status) if is_process_of(&status.process, owner, &uid_of) => {
                    running.found.push(Found { status, uid: owner });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    // A killed process leaves its file.
                    let is_alive = pid(&path).and_then(&uid_of) == Some(owner);
                    running.unreadable += usize::from(is_alive);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    running.found.sort_by_key(|found| found.status.start_ts);
    running
}

fn is_process_of(
    process: &ProcessIdentity,
    owner: u32,
    uid_of: impl Fn(u32) -> Option<u32>,
) -> bool {
    let pid = u32::try_from(process.pid).ok();
    process.is_alive() && pid.and_then(uid_of) == Some(owner)
}

/// The process of a status file.
fn pid(path: &Path) -> Option<u32> {
    path.file_name()?
        .to_str()?
        .strip_suffix(SUFFIX)?
        .parse()
        .ok()
}

/// Directories in which processes of any user can have status files.
fn directories(root: &Path) -> Vec<PathBuf> {
    let mut directories = vec![root.join("run/profiler"), root.join("run/profiler-serve")];
    let below = |path: &str| {
        fs::read_dir(root.join(path))
            .into_iter()
            .flatten()
            .flatten()
    };
    directories.extend(below("run/user").map(|entry| entry.path().join("profiler")));
    for entry in below("tmp") {
        if entry.file_name().to_string_lossy().starts_with("profiler-") {
            directories.push(entry.path());
        }
    }
    if let Some(own) = std::env::var_os("XDG_RUNTIME_DIR") {
        directories.push(PathBuf::from(own).join("profiler"));
    }
    directories.sort();
    directories.dedup();
    directories
}

/// The owner of a directory that only its owner can write to.
fn owner(directory: &Path) -> Option<u32> {
    let found = fs::symlink_metadata(directory).ok()?;
    (found.is_dir() && found.mode() & 0o022 == 0).then_some(found.uid())
}

/// The status files of a directory with their content.
fn read_directory(directory: &Path) -> Vec<(PathBuf, io::Result<Status>)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let paths = paths.filter(|path| path.to_string_lossy().ends_with(SUFFIX));
    let read = paths.take(MAX_FILES).map(|path| {
        let status = read(&path);
        (path, status)
    });
    read.collect()
}

/// Reads a file.
fn read(path: &Path) -> io::Result<Status> {
    let file = regular_file::open(path, Links::Refused)?;
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn status(process: ProcessIdentity) -> Vec<u8> {
        let status = Status {
            process,
            ..Status::default()
        };
        serde_json::to_vec(&status).unwrap()
    }

    #[test]
    fn ages_do_not_depend_on_the_wall_clock() {
        let now = monotonic_ns().cast_signed();
        for clock_offset_ns in [0, 1 << 60] {
            let status = Status {
                clock_offset_ns,
                ..Status::default()
            };
            let age = status.since(now + clock_offset_ns - 5_000_000_000);
            assert!((5_000_000_000..15_000_000_000).contains(&age.unwrap()));
            assert_eq!(status.since(i64::MAX), None);
            assert_eq!(status.since(i64::MIN), None);
        }
    }

    #[test]
    fn only_files_of_living_processes_of_their_owner_count() {
        let root = tempfile::TempDir::new().unwrap();
        let directory = root.path().join("run/profiler");
        fs::create_dir_all(&directory).unwrap();
        let us = ProcessIdentity::current().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let count = |uid_of_process| {
            let running = running(root.path(), |pid| {
                assert_eq!(pid.cast_signed(), us.pid);
                Some(uid_of_process)
            });
            running.found.len()
        };
        let write = |name: &str, content: &[u8]| fs::write(directory.join(name), content).unwrap();
        let dead = ProcessIdentity {
            start_ticks: us.start_ticks + 2,
            ..us.clone()
        };
        write("2.status", &status(dead));
        write("3.status", b"{");
        write("4.status", &vec![b' '; 100_000]);
        write("5.lock", &status(us.clone()));
        symlink(directory.join("5.lock"), directory.join("6.status")).unwrap();
        fs::create_dir(directory.join("7.status")).unwrap();
        let fifo = directory.join("8.status");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(count(uid), 0);
        write("1.status", &status(us.clone()));
        assert_eq!(count(uid), 1);
        assert_eq!(count(uid + 1), 0);
        let open = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode));
        open(0o777).unwrap();
        assert_eq!(count(uid), 0);
        open(0o755).unwrap();
        assert_eq!(count(uid), 1);
    }
}
