//! What the profiler says: on stderr or, with `--log`, in a file of this host.

use std::{
    fmt,
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};

use crate::{
    failure::{Failure, Reason},
    output::dataset::{Owner, manifest::rfc3339},
};

/// Stands for the name of the host in `--log`.
const PLACEHOLDER: &str = "{host}";

static FILE: OnceLock<File> = OnceLock::new();

/// From now on everything is said in the file at `path` for `hostname`, which is made or appended to.
///
/// # Errors
///
/// When it cannot be written.
pub fn open(path: &Path, hostname: &str, owner: Owner) -> Result<(), Failure> {
    let path = path_of(path, hostname);
    let file = create(&path, owner).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "no such directory".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(Reason::Output, format!("--log {}: {why}", path.display()))
    })?;
    if FILE.set(file).is_ok() {
        // Nobody reads stderr of what was started in the background.
        std::panic::set_hook(Box::new(|panic| {
            line(format_args!("profiler: {panic}"));
        }));
    }
    Ok(())
}

/// One file per host: `{host}` is replaced, or the name of the host goes before the extension.
fn path_of(path: &Path, hostname: &str) -> PathBuf {
    let text = path.to_string_lossy();
    if text.contains(PLACEHOLDER) {
        return text.replace(PLACEHOLDER, hostname).into();
    }
    let name = match (path.file_stem(), path.extension()) {
        (Some(stem), Some(extension)) => format!(
            "{}.{hostname}.{}",
            stem.to_string_lossy(),
            extension.to_string_lossy()
        ),
        _ => format!(
            "{}.{hostname}",
            path.file_name().unwrap_or_default().to_string_lossy()
        ),
    };
    path.with_file_name(name)
}

/// Opens the file for appending. No link is followed and no pipe waited for: root may write into a directory of others.
fn create(path: &Path, owner: Owner) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let fd: OwnedFd = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o640))?;
    let file = File::from(fd);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if let (Some((uid, gid)), 0) = (owner, metadata.len()) {
        // Ownership is a convenience, as in the dataset.
        let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
    Ok(file)
}

/// Says `text`. That nobody can read it is no reason to end.
pub fn line(text: fmt::Arguments<'_>) {
    if let Some(file) = FILE.get() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(0));
        let stamped = stamped(now, &text.to_string());
        // In one write: several profilers may have the same file.
        if { file }.write_all(stamped.as_bytes()).is_ok() {
            return;
        }
    }
    let _ = writeln!(io::stderr(), "{text}");
}

/// What others have written, as far as it can be shown: no control characters.
pub fn harmless(text: &str) -> String {
    let shown = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    text.chars().map(shown).collect()
}

/// Each line with the time in front, UTC to the ms.
fn stamped(now_ns: i64, text: &str) -> String {
    let time = rfc3339(now_ns);
    let time = time.get(..23).unwrap_or(&time);
    let mut stamped = String::new();
    for line in text.lines() {
        stamped.extend([time, "Z ", line, "\n"]);
    }
    stamped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_own_file() {
        for (given, path) in [
            ("p.log", "p.n1.log"),
            ("/var/log/p.log", "/var/log/p.n1.log"),
            ("/a.b/log", "/a.b/log.n1"),
            ("logs/{host}.txt", "logs/n1.txt"),
            ("{host}/{host}", "n1/n1"),
        ] {
            assert_eq!(path_of(Path::new(given), "n1"), Path::new(path), "{given}");
        }
    }

    #[test]
    fn every_line_has_its_time() {
        assert_eq!(
            stamped(1_782_907_200_123_456_789, "a\nb"),
            "2026-07-01T12:00:00.123Z a\n2026-07-01T12:00:00.123Z b\n"
        );
    }

    #[test]
    fn only_a_regular_file_is_appended_to() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("log");
        for _ in 0..2 {
            create(&path, None).unwrap().write_all(b"x\n").unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"x\nx\n");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for wrong in [
            &link,
            directory.path(),
            Path::new("/dev/null"),
            &directory.path().join("no/log"),
        ] {
            assert!(create(wrong, None).is_err(), "{}", wrong.display());
        }
    }
}
