//! The end of a job's work, announced to the profilers of other nodes.
//!
//! Only the profiler on the node with the script of the job sees that the script waits. A node that
//! never had work cannot tell this from a job that has not begun. All profilers of a job write into
//! one directory: the one with the script creates a file there.

use std::{
    env, io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, openat, statat},
    io::Errno,
};

use crate::{privileges, support::notifier::Notifier};

/// Period of looking for the file, which another node creates.
const PERIOD: Duration = Duration::from_secs(1);

/// Variables with the number of nodes or tasks of a launch.
const SIZES: [&str; 3] = ["SLURM_STEP_NUM_NODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// Beginning of the name of the file.
const PREFIX: &str = ".ended-";

/// Whether a file in the directory of a run is an announcement.
pub fn is_file(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The announcement to the profilers that were launched together.
pub struct Announcement {
    /// Directory of the run, held open: its path can lead elsewhere by now.
    directory: Arc<OwnedFd>,
    name: String,
    heard: Arc<AtomicBool>,
}

impl Announcement {
    /// Waits for the announcement in a separate thread, which can block in a hanging file system.
    /// `None` if this process was not launched together with others. The announcement is signalled
    /// through `notifier`.
    ///
    /// # Errors
    ///
    /// If the thread cannot be created.
    pub fn watch(run: OwnedFd, notifier: Notifier) -> io::Result<Option<Self>> {
        let Some(launch) = launch(|name| env::var(name).ok()) else {
            return Ok(None);
        };
        let announcement = Self {
            directory: Arc::new(run),
            name: format!("{PREFIX}{launch}"),
            heard: Arc::default(),
        };
        let (directory, heard) = (
            Arc::clone(&announcement.directory),
            Arc::clone(&announcement.heard),
        );
        let name = announcement.name.clone();
        thread::Builder::new()
            .name("job-ended".to_owned())
            .spawn(move || {
                privileges::keep_for_users_files();
                while statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
                    thread::sleep(PERIOD);
                }
                heard.store(true, Ordering::Relaxed);
                notifier.notify();
            })?;
        Ok(Some(announcement))
    }

    /// Whether the work of the job has ended.
    pub fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Announces the end.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn announce(&self) -> io::Result<()> {
        let (directory, name) = (Arc::clone(&self.directory), self.name.clone());
        // A thread of its own can write as the owner of the run.
        let thread = thread::Builder::new().spawn(move || {
            privileges::keep_for_files();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match openat(
                &*directory,
                name,
                flags,
                Mode::RUSR | Mode::WUSR | Mode::RGRP,
            ) {
                Err(error) if error != Errno::EXIST => Err(error.into()),
                _ => Ok(()),
            }
        })?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}

/// Name of the launch of this process, the same for all that were launched together on several
/// nodes, and different for each attempt of a job that is requeued.
fn launch(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let size = SIZES.iter().find_map(|name| variable(name)?.parse().ok());
    if size.unwrap_or(1) < 2_u32 {
        return None;
    }
    let attempt = variable("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
    // mpirun can start the processes of one node itself, and those of others by a step.
    let name = variable("PMIX_NAMESPACE").or_else(|| variable("SLURM_STEP_ID"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = format!("{name}-{attempt}");
    Some(
        name.chars()
            .map(|c| if plain(c) { c } else { '_' })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn name(variables: &[(&str, &str)]) -> Option<String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        launch(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn announcement_stays_in_the_directory_of_the_run() {
        let out = tempfile::TempDir::new().expect("a directory");
        let path = |name: &str| out.path().join(name);
        for name in ["run", "elsewhere"] {
            std::fs::create_dir(path(name)).expect("made");
        }
        let run = std::fs::File::open(path("run")).expect("opened");
        let announcement = Announcement {
            directory: Arc::new(run.into()),
            name: ".ended-0-0".to_owned(),
            heard: Arc::default(),
        };
        std::fs::rename(path("run"), path("moved")).expect("renamed");
        std::os::unix::fs::symlink(path("elsewhere"), path("run")).expect("a link");
        announcement.announce().expect("announced");
        assert!(path("moved/.ended-0-0").exists());
        assert!(!path("elsewhere/.ended-0-0").exists());
    }

    #[test]
    fn launches_have_names() {
        let step = [("SLURM_STEP_NUM_NODES", "2"), ("SLURM_STEP_ID", "0")];
        assert_eq!(name(&step).as_deref(), Some("0-0"));
        let requeued = [&step[..], &[("SLURM_RESTART_COUNT", "1")]].concat();
        assert_eq!(name(&requeued).as_deref(), Some("0-1"));
        let mpi = [
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-n1-42@1"),
        ];
        assert_eq!(name(&mpi).as_deref(), Some("prterun-n1-42_1-0"));
        assert_eq!(name(&[("SLURM_STEP_NUM_NODES", "1"), step[1]]), None);
        assert_eq!(name(&[]), None);
    }
}
