//! Messages of the profiler: on stderr or, with `--log`, in a file of this host.

use std::{
    fmt,
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{LazyLock, OnceLock, PoisonError, RwLock},
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};

use super::{invoking_user::Owner, units::rfc3339};
use crate::failure::{Failure, Reason};

/// Replaced by the name of the host in `--log`.
const PLACEHOLDER: &str = "{host}";

static LOG: RwLock<Option<LogFile>> = RwLock::new(None);

/// The file of `--log`.
#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
    owner: Owner,
}

/// Name of this host, with `--verbose`.
static VERBOSE: OnceLock<String> = OnceLock::new();

/// Level of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    /// Something is lost, missing or refused; the program goes on.
    Warning,
    /// The program ends.
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }

    /// Prefix of a line in the journal: its priority, as in sd-daemon(3).
    fn priority(self) -> &'static str {
        match self {
            Self::Debug => "<7>",
            Self::Info => "<6>",
            Self::Warning => "<4>",
            Self::Error => "<3>",
        }
    }
}

/// Reports a line on stderr or, with `--log`, in the file.
#[macro_export]
macro_rules! report {
    ($($arg:tt)*) => {
        $crate::support::log::message(
            $crate::support::log::Level::Info,
            module_path!(),
            format_args!($($arg)*),
        )
    };
}

/// Reports a loss or a problem with which the program goes on.
#[macro_export]
macro_rules! warning {
    ($($arg:tt)*) => {
        $crate::support::log::message(
            $crate::support::log::Level::Warning,
            module_path!(),
            format_args!($($arg)*),
        )
    };
}

/// Reports a detail, with `--verbose`.
#[macro_export]
macro_rules! debug {
    ($($arg:tt)*) => {
        if $crate::support::log::is_verbose() {
            $crate::support::log::message(
                $crate::support::log::Level::Debug,
                module_path!(),
                format_args!($($arg)*),
            );
        }
    };
}

/// Reports details, too. Every line then has time, level, host and module.
pub fn be_verbose(hostname: &str) {
    // Only the first call counts.
    let _ = VERBOSE.set(hostname.to_owned());
}

/// Whether details are reported.
pub fn is_verbose() -> bool {
    VERBOSE.get().is_some()
}

/// Sends all further messages to the file that belongs to `path` and `hostname`. An existing file
/// is appended to.
///
/// # Errors
///
/// If the file cannot be opened.
pub fn open(path: &Path, hostname: &str, owner: Owner) -> Result<(), Failure> {
    let path = path_of(path, hostname);
    let file = create(&path, owner).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "no such directory".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(Reason::Output, format!("--log {}: {why}", path.display()))
    })?;
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = Some(LogFile { file, path, owner });
    // The stderr of a process in the background is rarely read.
    std::panic::set_hook(Box::new(|panic| {
        report!("profiler: {panic}");
    }));
    Ok(())
}

/// Opens the file again, which may have been renamed. If that fails, messages go to the old one.
pub fn reopen() {
    let log = LOG.read().unwrap_or_else(PoisonError::into_inner);
    let Some((path, owner)) = log.as_ref().map(|log| (log.path.clone(), log.owner)) else {
        return;
    };
    drop(log);
    match create(&path, owner) {
        Ok(file) => {
            *LOG.write().unwrap_or_else(PoisonError::into_inner) =
                Some(LogFile { file, path, owner });
        }
        Err(error) => warning!("profiler: --log {}: {error}", path.display()),
    }
}

/// The file of one host: `{host}` is replaced, or the name of the host precedes the extension.
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

/// Opens the file for appending. Links are not followed and pipes not waited for, since root may
/// write into a directory of another user.
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
        // A file system that refuses this (`root_squash`) still gets the messages.
        let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
    Ok(file)
}

/// Writes one message; used by [`report!`](crate::report) and [`debug!`](crate::debug). Errors are
/// ignored: a message that cannot be written is no reason to stop.
pub fn message(level: Level, module: &str, text: fmt::Arguments<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(0));
    let time = rfc3339(now);
    let time = time.get(..23).unwrap_or(&time);
    let module = module.rsplit("::").next().unwrap_or(module);
    let prefix = match VERBOSE.get() {
        Some(host) => format!("{time}Z | {} | {host} | {module} | ", level.as_str()),
        None => format!("{time}Z "),
    };
    let log = LOG.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(log) = &*log {
        let prefixed = prefixed(&prefix, &text.to_string());
        // One write per message: several profilers may append to the same file.
        if { &log.file }.write_all(prefixed.as_bytes()).is_ok() {
            return;
        }
    }
    drop(log);
    let _ = if is_journal() {
        write!(
            io::stderr(),
            "{}",
            prefixed(level.priority(), &text.to_string())
        )
    } else if is_verbose() {
        write!(io::stderr(), "{}", prefixed(&prefix, &text.to_string()))
    } else {
        writeln!(io::stderr(), "{text}")
    };
}

/// Whether stderr is the stream to the journal that systemd has opened.
fn is_journal() -> bool {
    static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = rustix::fs::fstat(io::stderr());
        stderr.is_ok_and(|file| stream == format!("{}:{}", file.st_dev, file.st_ino))
    });
    *IS_JOURNAL
}

/// Text from other users, made safe for a terminal: control characters are replaced.
pub fn harmless(text: &str) -> String {
    let shown = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    text.chars().map(shown).collect()
}

/// Every line with a prefix.
fn prefixed(prefix: &str, text: &str) -> String {
    let mut prefixed = String::new();
    for line in text.lines() {
        prefixed.extend([prefix, line, "\n"]);
    }
    prefixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_separate_files() {
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
    fn every_line_has_the_prefix() {
        assert_eq!(prefixed("12Z | ", "a\nb"), "12Z | a\n12Z | b\n");
    }

    #[test]
    fn only_regular_files_are_opened() {
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
