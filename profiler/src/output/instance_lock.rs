//! One profiler per node, run and user: the second one is refused.
//!
//! The guard is a lock on a file in a [runtime directory](runtime_directory), where no other user can make, open or lock
//! anything. The lock goes with its process, however that ends; it is on a local file system, so that nothing waits for a
//! file server and profilers of other nodes never see it.

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

use crate::{
    failure::{Failure, Reason},
    report,
    support::runtime_directory,
};

/// Attempts to get a lock whose holder ends at this moment.
const ATTEMPTS: u32 = 20;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The right of this process to write a run on this node; without a lock where there is no directory for one.
#[derive(Debug)]
pub struct InstanceLock(
    #[expect(dead_code, reason = "the lock lives as long as the guard")] Option<Lock>,
);

#[derive(Debug)]
struct Lock {
    path: PathBuf,
    #[expect(dead_code, reason = "the lock lives as long as the open file")]
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What came of asking for it.
#[derive(Debug)]
pub enum Acquired {
    /// It is ours.
    Locked(InstanceLock),
    /// This process has it.
    AlreadyLocked(i32),
}

impl InstanceLock {
    /// Asks for the right to write run `run_id` in `out` as `hostname`.
    ///
    /// # Errors
    ///
    /// When the lock cannot be had though no process is known to hold it.
    pub fn take(out: &Path, run_id: &str, hostname: &str) -> Result<Acquired, Failure> {
        let Some(directory) = runtime_directory::candidates()
            .find(|directory| runtime_directory::make(directory).is_ok())
        else {
            report!(
                "profiler: no lock for run {run_id}: a second profiler of it on this node would not be noticed \
                 (make /run/profiler, or set XDG_RUNTIME_DIR)"
            );
            return Ok(Acquired::Locked(Self(None)));
        };
        let path = directory.join(name(out, run_id, hostname));
        let fail = |error: io::Error| {
            let message = format!("the lock of run {run_id}, {}: {error}", path.display());
            Failure::new(Reason::Internal, message)
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

/// What one attempt has found.
enum Attempt {
    Locked(File),
    Held(i32),
    /// Its holder has not written who it is, or has just removed it.
    Changing,
}

fn lock(path: &Path) -> io::Result<Attempt> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut file = File::from(rustix::fs::openat(CWD, path, flags, mode)?);
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

/// A name for the run on this node.
fn name(out: &Path, run_id: &str, hostname: &str) -> String {
    let mut hash = DefaultHasher::new();
    (resolved(out), run_id, hostname).hash(&mut hash);
    let plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let readable: String = run_id.chars().filter(plain).take(64).collect();
    format!("{readable}-{:016x}.lock", hash.finish())
}

/// The path without links, as far as it is there.
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
    fn the_second_is_told_of_the_first_until_that_has_ended() {
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
