//! Lock that allows one profiler per node, run and user.
//!
//! It is a lock on a file in a [runtime directory](runtime_directory), where other users can
//! neither create, open nor lock files. The kernel releases it when the process ends. The file
//! system is local: the lock never waits for a file server, and profilers of other nodes do not see
//! it.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags},
    io::Errno,
};

use thiserror::Error;

use crate::{
    support::{regular_file, runtime_directory},
    warning,
};

/// Attempts to take a lock whose holder is starting or ending.
const ATTEMPTS: u32 = 20;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The lock of a run on this node; `None` without a runtime directory.
#[derive(Debug)]
pub struct InstanceLock(
    #[expect(dead_code, reason = "dropping it releases the lock")] Option<Lock>,
);

#[derive(Debug)]
struct Lock {
    path: PathBuf,
    #[expect(dead_code, reason = "closing the file releases the lock")]
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Result of taking the lock.
#[derive(Debug)]
pub enum Acquired {
    /// This process has it now.
    Locked(InstanceLock),
    /// The process with this id has it.
    AlreadyLocked(i32),
}

/// Why it is unknown whether a process has the lock.
#[derive(Debug, Error)]
#[error("the lock of run {run_id}, {}: {source}", path.display())]
pub struct LockError {
    run_id: String,
    path: PathBuf,
    source: io::Error,
}

impl InstanceLock {
    /// Takes the lock of run `run_id` in `out` for `hostname`. Without a runtime directory, the
    /// profiler continues without a lock and reports that.
    ///
    /// # Errors
    ///
    /// When the lock cannot be taken and no process is known to hold it.
    pub fn take(out: &Path, run_id: &str, hostname: &str) -> Result<Acquired, LockError> {
        let Some(directory) = runtime_directory::candidates()
            .find(|directory| runtime_directory::make(directory).is_ok())
        else {
            warning!(
                "profiler: no lock for run {run_id}: a second profiler of it on this node would not \
                 be noticed (create /run/profiler, or set XDG_RUNTIME_DIR)"
            );
            return Ok(Acquired::Locked(Self(None)));
        };
        let path = directory.join(name(out, run_id, hostname));
        let fail = |source: io::Error| LockError {
            run_id: run_id.to_owned(),
            path: path.clone(),
            source,
        };
        for _ in 0..ATTEMPTS {
            match lock(&path).map_err(fail)? {
                Attempt::Locked(file) => {
                    let path = path.clone();
                    return Ok(Acquired::Locked(Self(Some(Lock { path, file }))));
                }
                Attempt::Held(pid) => return Ok(Acquired::AlreadyLocked(pid)),
                Attempt::Changing => std::thread::sleep(PAUSE),
            }
        }
        Err(fail(Errno::WOULDBLOCK.into()))
    }
}

/// Result of one attempt.
enum Attempt {
    Locked(File),
    Held(i32),
    /// The holder has not written its process id, or has removed the file.
    Changing,
}

fn lock(path: &Path) -> io::Result<Attempt> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
    let mut file = regular_file::open_at(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let named = path.symlink_metadata().map(|named| named.ino()).ok();
            if named != Some(file.metadata()?.ino()) {
                return Ok(Attempt::Changing);
            }
            file.set_len(0)?;
            file.write_all(std::process::id().to_string().as_bytes())?;
            Ok(Attempt::Locked(file))
        }
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            file.take(16).read_to_string(&mut holder)?;
            Ok(holder.parse().map_or(Attempt::Changing, Attempt::Held))
        }
        Err(error) => Err(error.into()),
    }
}

/// Name of the lock of a run.
fn name(out: &Path, run_id: &str, hostname: &str) -> String {
    let mut hash = DefaultHasher::new();
    (resolved(out), run_id, hostname).hash(&mut hash);
    let plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let readable: String = run_id.chars().filter(plain).take(64).collect();
    format!("{readable}-{:016x}.lock", hash.finish())
}

/// The path without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for there in absolute.ancestors() {
        if let Ok(real) = there.canonicalize() {
            return match absolute.strip_prefix(there) {
                Ok(rest) if rest.as_os_str().is_empty() => real,
                Ok(rest) => real.join(rest),
                Err(_) => absolute,
            };
        }
    }
    absolute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_exclusive_until_it_is_dropped() {
        let directory = tempfile::TempDir::new().unwrap();
        let out = directory.path().join("not/yet");
        let take = |out: &Path, run: &str, host: &str| InstanceLock::take(out, run, host).unwrap();
        let first = take(&out, "run", "node1");
        let Acquired::Locked(_) = &first else {
            panic!("{first:?}")
        };
        let us = std::process::id().cast_signed();
        std::fs::create_dir_all(&out).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&out, &link).unwrap();
        for same in [&out, &link, &out.join("../yet")] {
            let second = take(same, "run", "node1");
            assert!(
                matches!(second, Acquired::AlreadyLocked(pid) if pid == us),
                "{second:?}"
            );
        }
        let long = "long".repeat(60);
        for (out, run, host) in [
            (directory.path(), "run", "node1"),
            (&out, "run2", "node1"),
            (&out, "run", "node2"),
            (&out, &long, &long),
        ] {
            assert!(matches!(take(out, run, host), Acquired::Locked(_)));
        }
        drop(first);
        assert!(matches!(take(&out, "run", "node1"), Acquired::Locked(_)));
    }
}
