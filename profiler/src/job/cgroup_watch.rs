//! Notifications from inotify when cgroups of a job are created, removed, populated or emptied.

use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    io::read,
};

use super::FoundJob;
use crate::support::notifier::Notifier;

/// The inotify watches of a job.
pub(super) struct CgroupWatch {
    inotify: OwnedFd,
    /// Directories above those of the job. They can be removed and created again as well.
    ancestors: BTreeSet<PathBuf>,
}

impl CgroupWatch {
    pub(super) fn new() -> std::io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Ok(Self {
            inotify: inotify::init(flags)?,
            ancestors: BTreeSet::new(),
        })
    }

    /// Watches the directories of the job, and those above them. Existing watches remain; the
    /// kernel removes those of removed directories.
    pub(super) fn watch(&mut self, job: &FoundJob) {
        let Some(hierarchy) = &job.hierarchy else {
            return;
        };
        let created_or_removed = inotify::WatchFlags::CREATE | inotify::WatchFlags::DELETE;
        for directory in &job.directories {
            let ancestors = directory.path.ancestors().skip(1);
            let below_mount = ancestors.take_while(|path| *path != hierarchy.mount_point);
            self.ancestors.extend(below_mount.map(Path::to_owned));
            // Version 1 has no such file, and the directory may be gone: the periodic search finds
            // changes without it.
            let events = directory.path.join("cgroup.events");
            let _ = inotify::add_watch(&self.inotify, events, inotify::WatchFlags::MODIFY);
        }
        for path in &self.ancestors {
            let _ = inotify::add_watch(&self.inotify, path, created_or_removed);
        }
    }

    /// Waits for a change, a notification or `until`. Returns whether there was a change. Changes
    /// before `quiet_until` are reported only then.
    pub(super) fn wait(&self, wake: &Notifier, until: Instant, quiet_until: Instant) -> bool {
        let now = Instant::now();
        let is_quiet = now < quiet_until;
        let until = if is_quiet {
            until.min(quiet_until)
        } else {
            until
        };
        let left = until.saturating_duration_since(now);
        let timeout = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(wake, PollFlags::IN),
            PollFd::new(&self.inotify, PollFlags::IN),
        ];
        let polled = if is_quiet { &mut fds[..1] } else { &mut fds };
        let _ = poll(polled, Some(&timeout));
        let changed = !fds[1].revents().is_empty();
        if changed {
            let mut events = [0; 4096];
            while read(&self.inotify, &mut events).is_ok_and(|length| length != 0) {}
        }
        wake.clear();
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bursts_of_changes_are_reported_after_the_quiet_period() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let watch = CgroupWatch::new().expect("a descriptor");
        let created = inotify::WatchFlags::CREATE;
        inotify::add_watch(&watch.inotify, directory.path(), created).expect("a watch");
        for number in 0..1000 {
            std::fs::create_dir(directory.path().join(number.to_string())).expect("made");
        }
        let notifier = Notifier::new().expect("a notifier");
        let over = Instant::now();
        let later = over + Duration::from_secs(600);
        // Changes are not reported in a quiet period, which a notification ends.
        notifier.notify();
        assert!(!watch.wait(&notifier, later, later));
        assert!(watch.wait(&notifier, later, over));
        // One wait took all of them.
        notifier.notify();
        assert!(!watch.wait(&notifier, later, over));
    }
}
