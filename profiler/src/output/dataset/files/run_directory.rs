//! Creating the directory of a run.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use super::{
    Directory, OutputError,
    directory::{above, thread_id},
};
use crate::support::invoking_user::Owner;

/// A disk without this many free bytes is full at the start.
const PROBE_BYTES: usize = 16 * 1024;

/// Creates the directory of a run with its parents, if they are missing, and checks that it can be
/// written. An error leaves no new directory behind.
///
/// # Errors
///
/// When it cannot be created, is no directory, belongs to another user, cannot be written, or the
/// disk is full.
pub fn create_run_dir(path: &Path, owner: Owner) -> Result<Directory, OutputError> {
    let mut made = Vec::new();
    let result = create_and_probe(path, owner, &mut made);
    if result.is_err() {
        for (directory, name) in made.iter().rev() {
            let _ = directory.remove_directory(name);
        }
    }
    result
}

/// Creates each directory relative to the one above, which stays open. Existing directories above
/// the run can be links of the user; the run directory itself cannot.
fn create_and_probe(
    path: &Path,
    owner: Owner,
    made: &mut Vec<(Directory, OsString)>,
) -> Result<Directory, OutputError> {
    let Some(name) = path.file_name() else {
        let directory = Directory::open(path, owner).map_err(|e| OutputError::new(path, e))?;
        return probe(&directory).map(|_| directory);
    };
    let there = above(path)
        .ancestors()
        .find(|ancestor| !ancestor.as_os_str().is_empty() && ancestor.exists())
        .unwrap_or(Path::new("."));
    let mut directory = Directory::open(there, owner).map_err(|e| OutputError::new(path, e))?;
    let missing = above(path).strip_prefix(there).unwrap_or(above(path));
    let mut make = |directory: Directory, name: &OsStr| {
        let (below, is_new) = directory
            .make_or_open(name)
            .map_err(|error| OutputError::new(&directory.path().join(name), error))?;
        let owners = directory.owned_by();
        if is_new {
            made.push((directory, name.to_owned()));
        }
        Ok::<_, OutputError>((below, is_new, owners))
    };
    for name in missing.iter().filter(|name| *name != ".") {
        directory = make(directory, name)?.0;
    }
    let (run, is_new, owner_above) = make(directory, name)?;
    let error = |error| OutputError::new(path, error);
    // A file server can map our uid to another one.
    let ours_here = probe(&run)?;
    let (uid, _) = run.owned_by().map_err(error)?;
    let is_trusted = is_new
        || uid == rustix::process::geteuid().as_raw()
        || owner.is_some_and(|(owner, _)| owner == uid)
        || uid == ours_here
        || owner_above.map_err(error)?.0 == uid;
    if is_trusted {
        Ok(run)
    } else {
        Err(OutputError::Foreign {
            path: path.to_owned(),
            uid,
        })
    }
}

/// Checks that files can be written to a directory; returns the uid that they get.
fn probe(directory: &Directory) -> Result<u32, OutputError> {
    // Other hosts probe the directory at the same time, perhaps with the same process id.
    let node = rustix::system::uname();
    let node = node.nodename().to_string_lossy().replace('/', "_");
    let name = format!(".probe.{node}.{}.{}.tmp", std::process::id(), thread_id());
    let written = directory.write_synced(&name, &[0; PROBE_BYTES]);
    let user = directory.user_of(&name);
    let removed = directory.remove(&name);
    written
        .and(removed)
        .and(user)
        .map_err(|error| OutputError::new(directory.path(), error))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    };

    use tempfile::TempDir;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn run_directory_is_created_with_its_parents() {
        let out = TempDir::new().unwrap();
        let path = out.path().join("a/b");
        let directory = create_run_dir(&path, None).unwrap();
        assert!(directory.names().unwrap().is_empty());
        assert_eq!(mode(&path) & !0o750, 0);
        // Several hosts share a run directory.
        create_run_dir(&path, None).unwrap();
        directory.write_new("x", b"1").unwrap();
        assert_eq!(mode(&path.join("x")) & !0o640, 0);
        assert_eq!(
            directory.write_new("x", b"2").unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        directory.replace("x", "host", b"3").unwrap();
        assert_eq!(std::fs::read(path.join("x")).unwrap(), b"3");
        assert_eq!(directory.names().unwrap(), ["x"]);
    }

    #[test]
    fn unusable_run_directories_are_refused() {
        let out = TempDir::new().unwrap();
        let file = out.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("run")] {
            let error = create_run_dir(&path, None).unwrap_err();
            assert!(
                matches!(error, OutputError::NotADirectory { .. }),
                "{error}"
            );
        }
        let error = create_run_dir(Path::new("/proc/nothing/here"), None).unwrap_err();
        assert!(error.to_string().contains("/proc/nothing"), "{error}");
    }

    #[test]
    fn new_files_get_the_owner() {
        let out = TempDir::new().unwrap();
        let metadata = out.path().metadata().unwrap();
        // Only root may change the owner to another user.
        let owner = if metadata.uid() == 0 {
            (12345, 54321)
        } else {
            (metadata.uid(), metadata.gid())
        };
        let path = out.path().join("out/run");
        let directory = create_run_dir(&path, Some(owner)).unwrap();
        directory
            .make("table")
            .unwrap()
            .write_new("part", b"")
            .unwrap();
        for below in ["", "..", "table", "table/part"] {
            let metadata = path.join(below).metadata().unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), owner, "{below}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let out = TempDir::new().unwrap();
        let elsewhere = TempDir::new().unwrap();
        let directory = create_run_dir(&out.path().join("run"), None).unwrap();
        symlink(elsewhere.path(), directory.path().join("table")).unwrap();
        assert!(directory.make("table").is_err());
        symlink(
            elsewhere.path().join("x"),
            directory.path().join(".part.tmp"),
        )
        .unwrap();
        directory.write_new("part", b"1").unwrap();
        assert_eq!(elsewhere.path().read_dir().unwrap().count(), 0);
    }

    /// Every file is complete, and one writer created it.
    #[test]
    fn concurrent_writers_do_not_interfere() {
        let out = TempDir::new().unwrap();
        let path = out.path().join("runs/run");
        let begin = std::sync::Barrier::new(16);
        let firsts: usize = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..16)
                .map(|number| {
                    let (path, begin) = (&path, &begin);
                    scope.spawn(move || {
                        begin.wait();
                        let directory = create_run_dir(path, None).unwrap();
                        let writer = format!("node{number}");
                        let bytes = writer.repeat(50_000);
                        let first = directory.write_new_among("once", &writer, bytes.as_bytes());
                        for _ in 0..5 {
                            directory
                                .replace("often", &writer, bytes.as_bytes())
                                .unwrap();
                        }
                        usize::from(first.is_ok())
                    })
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .sum()
        });
        assert_eq!(firsts, 1);
        let directory = Directory::open(&path, None).unwrap();
        assert_eq!(directory.names().unwrap(), ["often", "once"]);
        for name in ["often", "once"] {
            let text = std::fs::read_to_string(path.join(name)).unwrap();
            let end = 4 + text[4..].find('n').unwrap();
            assert_eq!(text, text[..end].repeat(50_000), "{name} is whole");
        }
    }
}
