//! Messages of the profiler: on stderr or, with `--log`, in a file of this host.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{LazyLock, OnceLock, PoisonError, RwLock},
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};

use super::{invoking_user::Owner, regular_file, signals, units::rfc3339};
use crate::failure::{Failure, Reason, os_error::without_code};

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
        let message = format!("cannot open log {}: {why}; use --log FILE", path.display());
        Failure::new(Reason::Output, message)
    })?;
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = Some(LogFile { file, path, owner });
    // The stderr of a process in the background is rarely read.
    std::panic::set_hook(Box::new(|panic| {
        report_lines(module_path!(), &format!("profiler: {panic}"));
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
        Err(error) => warning!("profiler: cannot open log {}: {error}", path.display()),
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

/// Opens the file for appending. Root may write into a directory of another user.
fn create(path: &Path, owner: Owner) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
    let file = regular_file::open_at(CWD, path, flags, Mode::from_raw_mode(0o640))?;
    if let (Some((uid, gid)), 0) = (owner, file.metadata()?.len()) {
        // A file system that refuses this (`root_squash`) still gets the messages.
        let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
    Ok(file)
}

/// Writes one line; used by [`report!`](crate::report) and [`debug!`](crate::debug). Errors are
/// ignored: a message that cannot be written is no reason to stop.
pub fn message(level: Level, module: &str, text: fmt::Arguments<'_>) {
    write(level, module, &escaped(&text.to_string()));
}

/// As [`report!`](crate::report), for several lines. Texts of others in it must be escaped.
pub fn report_lines(module: &str, text: &str) {
    write(Level::Info, module, &lines(text));
}

fn write(level: Level, module: &str, text: &str) {
    let text = &*without_code(text);
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
        let prefixed = prefixed(&prefix, text);
        // One write per message: several profilers may append to the same file.
        if { &log.file }.write_all(prefixed.as_bytes()).is_ok() {
            return;
        }
    }
    drop(log);
    let text = if is_journal() {
        prefixed(level.priority(), text)
    } else if is_verbose() {
        prefixed(&prefix, text)
    } else {
        format!("{text}\n")
    };
    let _ = signals::unstopped(|| io::stderr().write_all(text.as_bytes()));
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

/// Longest text of others in a message, bytes.
const VALUE_MAX: usize = 200;
/// Longest message of another process, bytes.
const MESSAGE_MAX: usize = 1000;
const ELLIPSIS: char = '…';

/// Text of others for a terminal or a log: names, arguments, values of a request. Characters that
/// change the display are escaped, and it has at most 200 bytes.
pub fn harmless(text: &str) -> String {
    limited(text, VALUE_MAX)
}

/// As [`harmless`], for a message that another process has composed: at most 1000 bytes.
pub fn harmless_message(text: &str) -> String {
    limited(text, MESSAGE_MAX)
}

/// As [`harmless`], for a path.
pub fn path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// As [`harmless`], for what is of use only as a whole.
pub fn escaped(text: &str) -> String {
    text.chars().flat_map(shown).collect()
}

fn limited(text: &str, max: usize) -> String {
    let mut result = String::new();
    // Length of the text to which the ellipsis can be added.
    let mut fits = 0;
    for char in text.chars() {
        result.extend(shown(char));
        if result.len() > max {
            result.truncate(fits);
            result.push(ELLIPSIS);
            break;
        }
        if result.len() + ELLIPSIS.len_utf8() <= max {
            fits = result.len();
        }
    }
    result
}

fn shown(char: char) -> impl Iterator<Item = char> {
    let escape = is_harmful(char).then(|| char.escape_debug());
    let other = escape.is_none().then_some(char);
    escape.into_iter().flatten().chain(other)
}

/// Whether a character can change how the text around it is displayed: control characters,
/// separators of lines, directions of writing, and those that are not visible.
fn is_harmful(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// A text of several lines for a terminal, whatever is in it. Tabs stay, too.
pub fn lines(text: &str) -> String {
    let mut result = String::new();
    for char in text.chars() {
        if matches!(char, '\n' | '\t') {
            result.push(char);
        } else {
            result.extend(shown(char));
        }
    }
    result
}

/// The same JSON for a terminal: with escapes for what changes the display.
pub fn json(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for char in text.chars() {
        if char != '\n' && is_harmful(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(result, "\\u{unit:04x}");
            }
        } else {
            result.push(char);
        }
    }
    result
}

/// Every line with a prefix, without empty ones.
fn prefixed(prefix: &str, text: &str) -> String {
    let mut prefixed = String::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
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
        assert_eq!(prefixed("12Z | ", "a\n\nb"), "12Z | a\n12Z | b\n");
    }

    #[test]
    fn texts_of_others_are_one_short_line_without_control_characters() {
        assert_eq!(
            harmless("a\n\u{1b}[2J\u{202e}b\u{feff}\u{9b}é\"\\"),
            "a\\n\\u{1b}[2J\\u{202e}b\\u{feff}\\u{9b}é\"\\"
        );
        for fits in ["x".repeat(200), "é".repeat(100), "\n".repeat(100)] {
            assert_eq!(harmless(&fits).len(), 200);
            assert!(!harmless(&fits).contains('…'));
        }
        for long in ["x".repeat(201), "é".repeat(101), "\u{1b}".repeat(1 << 20)] {
            let shown = harmless(&long);
            assert!(shown.len() <= 200 && shown.ends_with('…'), "{shown}");
        }
        assert_eq!(harmless_message(&"x".repeat(1001)).len(), 1000);
        assert_eq!(escaped(&"\r".repeat(1000)).len(), 2000);
    }

    #[test]
    fn json_stays_the_same() {
        let value = serde_json::json!({"a\u{9b}": "\u{2066}\u{1b}\n\u{e0001}é"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&text);
        assert!(
            !shown.chars().any(|char| char != '\n' && is_harmful(char)),
            "{shown}"
        );
        assert!(
            shown.contains(r"\u2066") && shown.contains(r"\udb40\udc01"),
            "{shown}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }

    #[test]
    fn messages_have_only_lines() {
        assert_eq!(lines("a\n\tb\r\u{1b}[2J"), "a\n\tb\\r\\u{1b}[2J");
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
