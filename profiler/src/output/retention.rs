//! Retention: removes old runs from the output directory, so that a service does not fill the disk.
//!
//! Only finished runs of the same user are removed, the oldest first. A run is renamed before it is
//! removed, so readers of the directory never see a part of it.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat, renameat, statvfs};
use serde::{Deserialize, Serialize};

use super::{
    dataset::{
        files::Directory,
        recover::{Hosts, manifests},
    },
    instance_lock::{Acquired, InstanceLock},
};
use crate::{
    privileges, report,
    support::{log::harmless, units::format_bytes},
    warning,
};

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(300);
/// Prefix of the name of a run that is being removed.
const REMOVED: &str = ".removed-";

/// Limits beyond which runs are removed; `None` for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes to keep free in the file system.
    pub keep_free: Option<u64>,
    /// Time since the end of a run.
    pub max_age: Option<Duration>,
    /// Total size of all runs, bytes.
    pub max_size: Option<u64>,
}

/// The runs that one profiler may remove.
pub struct RunsDirectory {
    /// The output directory.
    pub out: PathBuf,
    /// This node: a run is locked on it while it is removed.
    pub hostname: String,
    /// Owner of the runs.
    pub uid: u32,
}

/// A run of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    name: String,
    /// Device and inode of its directory.
    id: (u64, u64),
    bytes: u64,
    /// End in ns since 1970, if it has finished on all its nodes.
    end: Option<i64>,
}

/// Space that the runs take, and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Size of all runs of the user, bytes.
    pub runs: u64,
    /// Bytes free in the file system.
    pub free: u64,
    /// The limits, as in [`Limits`].
    pub keep_free: Option<u64>,
    pub max_age_ns: Option<u64>,
    pub max_size: Option<u64>,
}

/// A thread that applies limits now, when they change, and every 5 minutes.
#[derive(Clone, Debug)]
pub struct Retention(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    limits: Limits,
    /// Number of changes of the limits.
    changes: u64,
    disk: Option<Disk>,
}

impl Retention {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    pub fn start(directory: RunsDirectory, limits: Limits, quiet: bool) -> io::Result<Self> {
        let retention = Self(Arc::new(Shared {
            state: Mutex::new(State {
                limits,
                ..State::default()
            }),
            changed: Condvar::new(),
        }));
        let shared = retention.clone();
        thread::Builder::new()
            .name("retention".to_owned())
            .spawn(move || shared.run(&directory, quiet))?;
        Ok(retention)
    }

    /// The space of the runs at the last check; `None` without limits.
    pub fn disk(&self) -> Option<Disk> {
        self.lock().disk.clone()
    }

    /// Replaces the limits.
    pub fn set(&self, limits: Limits) {
        let mut state = self.lock();
        if state.limits != limits {
            state.limits = limits;
            state.changes += 1;
            self.0.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, directory: &RunsDirectory, quiet: bool) {
        privileges::keep_for_files();
        let mut reported = String::new();
        loop {
            let state = self.lock();
            let (limits, changes) = (state.limits.clone(), state.changes);
            drop(state);
            let mut unmet = String::new();
            let mut disk = None;
            if limits != Limits::default() {
                match directory.apply(&limits, quiet) {
                    Ok(applied) => {
                        unmet = applied.unmet.unwrap_or_default();
                        disk = Some(applied.disk);
                    }
                    Err(error) => unmet = format!("{}: {error}", directory.out.display()),
                }
            }
            if !unmet.is_empty() && unmet != reported {
                warning!("profiler: {unmet}");
            }
            reported = unmet;
            let mut state = self.lock();
            state.disk = disk;
            let is_current = |state: &mut State| state.changes == changes;
            let waited = self.0.changed.wait_timeout_while(state, PERIOD, is_current);
            drop(waited);
        }
    }
}

/// Result of a check.
struct Applied {
    disk: Disk,
    /// A limit that cannot be met.
    unmet: Option<String>,
}

impl RunsDirectory {
    /// Removes runs until the limits are met.
    fn apply(&self, limits: &Limits, quiet: bool) -> io::Result<Applied> {
        let runs = self.runs()?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        let total: u64 = runs.iter().map(|run| run.bytes).sum();
        let mut finished: Vec<&Run> = runs.iter().filter(|run| run.end.is_some()).collect();
        finished.sort_by_key(|run| (run.end, run.name.clone()));
        let (count, unmet) = limits.excess(&finished, total, self.free()?, now);
        let mut left = total;
        for run in &finished[..count] {
            if self.remove(run)? {
                left -= run.bytes;
                if !quiet {
                    report!(
                        "removed run {} ({})",
                        harmless(&run.name),
                        format_bytes(run.bytes)
                    );
                }
            }
        }
        let disk = Disk {
            runs: left,
            free: self.free()?,
            keep_free: limits.keep_free,
            max_age_ns: limits
                .max_age
                .map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
            max_size: limits.max_size,
        };
        Ok(Applied { disk, unmet })
    }

    /// Removes finished runs of these names. Returns those that were removed.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read or removed.
    pub fn remove_runs(&self, names: &BTreeSet<String>) -> io::Result<Vec<String>> {
        let mut removed = Vec::new();
        for run in self.runs()? {
            if run.end.is_some() && names.contains(&run.name) && self.remove(&run)? {
                removed.push(run.name);
            }
        }
        Ok(removed)
    }

    /// Bytes available to unprivileged users.
    fn free(&self) -> io::Result<u64> {
        let space = statvfs(&self.out)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// The runs of this user. Completes interrupted removals.
    fn runs(&self) -> io::Result<Vec<Run>> {
        let out = Directory::open(&self.out, None)?;
        let mut runs = Vec::new();
        for name in out.names()? {
            let Some(id) = self.own(&name) else { continue };
            if name.starts_with(REMOVED) {
                fs::remove_dir_all(self.out.join(&name))?;
                continue;
            }
            let Ok(directory) = out.sub(&name) else {
                continue;
            };
            let all = manifests(&directory, Hosts::All);
            if all.is_empty() {
                continue;
            }
            let is_finished = !all.iter().any(|(_, manifest)| manifest.has_journals());
            let ends = all
                .iter()
                .map(|(_, manifest)| manifest.end_ts.unwrap_or(manifest.start_ts));
            runs.push(Run {
                id,
                bytes: size(&self.out.join(&name)),
                end: ends.max().filter(|_| is_finished),
                name,
            });
        }
        Ok(runs)
    }

    /// Device and inode of a directory of this user; `None` for a link or anything else.
    fn own(&self, name: &str) -> Option<(u64, u64)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, self.out.join(name), flags, Mode::empty()).ok()?;
        let data = fstat(&directory).ok()?;
        (data.st_uid == self.uid).then_some((data.st_dev, data.st_ino))
    }

    /// Removes a run, unless a profiler is writing it.
    fn remove(&self, run: &Run) -> io::Result<bool> {
        let guard = InstanceLock::take(&self.out, &run.name, &self.hostname);
        let Ok(Acquired::Locked(_guard)) = guard else {
            return Ok(false);
        };
        let removed = format!("{REMOVED}{}", run.name);
        let (from, to) = (self.out.join(&run.name), self.out.join(&removed));
        if self.own(&run.name) != Some(run.id) {
            return Ok(false);
        }
        renameat(CWD, &from, CWD, &to)?;
        if self.own(&removed) != Some(run.id) {
            // Another directory took the name in between.
            renameat(CWD, &to, CWD, &from)?;
            return Ok(false);
        }
        fs::remove_dir_all(&to)?;
        Ok(true)
    }
}

impl Limits {
    /// Number of finished runs to remove, oldest first, and a limit that is not met even then.
    fn excess(
        &self,
        finished: &[&Run],
        total: u64,
        free: u64,
        now: i64,
    ) -> (usize, Option<String>) {
        let age = |run: &Run| u128::try_from(now.saturating_sub(run.end.unwrap_or(now)));
        let too_old = self.max_age.map_or(0, |limit| {
            let is_old = |run: &&&Run| age(run).is_ok_and(|age| age > limit.as_nanos());
            finished.iter().take_while(is_old).count()
        });
        let mut count = too_old;
        let mut removed: u64 = finished[..count].iter().map(|run| run.bytes).sum();
        let is_met = |removed: u64| {
            let left = total.saturating_sub(removed);
            let size = self.max_size.is_none_or(|limit| left <= limit);
            let free = free.saturating_add(removed);
            (size, self.keep_free.is_none_or(|limit| free >= limit))
        };
        while is_met(removed) != (true, true) && count < finished.len() {
            removed += finished[count].bytes;
            count += 1;
        }
        let unmet = match is_met(removed) {
            (true, true) => None,
            (false, _) => Some("--max-size"),
            (true, false) => Some("--keep-free"),
        };
        let unmet = unmet.map(|option| format!("{option}: no finished run is left to remove"));
        (count, unmet)
    }
}

/// Size of a directory on the disk in bytes. Links are not followed.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.blocks().saturating_mul(512),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000_000;

    fn runs(sizes: &[u64]) -> Vec<Run> {
        let ends = (0..).map(|day| day * DAY);
        let runs = sizes.iter().zip(ends).map(|(bytes, end)| Run {
            name: format!("{end}"),
            id: (0, 0),
            bytes: *bytes,
            end: Some(end),
        });
        runs.collect()
    }

    #[test]
    fn every_limit_removes_the_oldest_runs() {
        let runs = runs(&[10, 20, 30, 40]);
        let finished: Vec<&Run> = runs.iter().collect();
        let excess = |limits: Limits, total, free| {
            let (count, unmet) = limits.excess(&finished, total, free, 4 * DAY);
            (count, unmet.is_some())
        };
        let none = Limits::default;
        assert_eq!(excess(none(), 100, 0), (0, false));
        for (days, count) in [(5, 0), (4, 0), (3, 1), (2, 2), (0, 4)] {
            let max_age = Some(Duration::from_secs(days * 86_400));
            let limits = Limits { max_age, ..none() };
            assert_eq!(excess(limits, 100, 0), (count, false), "{days}");
        }
        // 150 bytes, 50 of them in a run that has not finished.
        for (bytes, count, unmet) in [
            (150, 0, false),
            (149, 1, false),
            (140, 1, false),
            (139, 2, false),
            (50, 4, false),
            (49, 4, true),
        ] {
            let max_size = Some(bytes);
            let limits = Limits { max_size, ..none() };
            assert_eq!(excess(limits, 150, 0), (count, unmet), "{bytes}");
        }
        for (bytes, count, unmet) in [
            (5, 0, false),
            (15, 1, false),
            (16, 2, false),
            (200, 4, true),
        ] {
            let keep_free = Some(bytes);
            let limits = Limits {
                keep_free,
                ..none()
            };
            assert_eq!(excess(limits, 150, 5), (count, unmet), "{bytes}");
        }
        let both = Limits {
            max_age: Some(Duration::from_secs(2 * 86_400)),
            max_size: Some(60),
            keep_free: None,
        };
        assert_eq!(excess(both, 100, 0), (3, false));
    }
}
