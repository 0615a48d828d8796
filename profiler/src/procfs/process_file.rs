//! Files below `/proc/PID`, read up to a limit, because the process determines their length.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

/// Limit of a command line. `prctl(PR_SET_MM_MAP)` makes one of any length from pages that need no
/// memory.
pub(crate) const CMDLINE_MAX: usize = 64 << 10;
/// Limit of an environment, which can be as long.
pub(crate) const ENVIRON_MAX: usize = 256 << 10;
/// Limit of files that the kernel generates: `stat`, `comm`, and `cgroup` with a path for each
/// hierarchy.
pub(crate) const SMALL_MAX: usize = 64 << 10;

/// The beginning of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Bytes up to the limit.
    pub(crate) bytes: Vec<u8>,
    /// Whether the file is longer.
    pub(crate) truncated: bool,
}

impl Content {
    /// The NUL-terminated strings that end within the limit. A truncated string is excluded,
    /// because it could be taken for another one: `ID=47` of `ID=4711`.
    pub(crate) fn strings(&self) -> impl Iterator<Item = &[u8]> {
        let whole = if self.truncated {
            let last = self.bytes.iter().rposition(|byte| *byte == 0);
            &self.bytes[..last.unwrap_or(0)]
        } else {
            &self.bytes
        };
        whole.split(|byte| *byte == 0)
    }
}

/// Reads at most `limit` bytes of `/proc/PID/NAME`.
pub(crate) fn read(procfs: &Path, pid: u32, name: &str, limit: usize) -> io::Result<Content> {
    bounded(&procfs.join(format!("{pid}/{name}")), limit)
}

/// Path of the executable of a process; `None` for kernel threads, and without permission.
pub(crate) fn executable(procfs: &Path, pid: u32) -> Option<PathBuf> {
    fs::read_link(procfs.join(format!("{pid}/exe"))).ok()
}

/// Reads at most `limit` bytes of a file.
///
/// What is in the memory of a process is whole only if one read(2) returns it: exec(2) and exit(2)
/// end the file between two of them.
pub(crate) fn bounded(path: &Path, limit: usize) -> io::Result<Content> {
    let beyond = limit.saturating_add(1);
    let mut bytes = read_once(path, beyond.min(COMMON))?;
    if bytes.len() == COMMON {
        bytes = read_once(path, beyond)?;
    }
    let truncated = bytes.len() > limit;
    bytes.truncate(limit);
    Ok(Content { bytes, truncated })
}

/// Length of most of these files.
const COMMON: usize = 8 << 10;

/// Reads until the end or `length` bytes, in as few calls as the kernel allows.
fn read_once(path: &Path, length: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_at_the_limit() {
        let zeros = bounded(Path::new("/dev/zero"), CMDLINE_MAX).expect("endless");
        assert_eq!((zeros.bytes.len(), zeros.truncated), (CMDLINE_MAX, true));
        let own = read(Path::new("/proc"), std::process::id(), "stat", SMALL_MAX).expect("stat");
        assert!(!own.truncated && own.bytes.ends_with(b"\n"));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "1234").expect("written");
        for (limit, bytes, truncated) in [(3, "123", true), (4, "1234", false), (5, "1234", false)]
        {
            let content = bounded(&path, limit).expect("read");
            assert_eq!(content.bytes, bytes.as_bytes());
            assert_eq!(content.truncated, truncated);
        }
    }

    #[test]
    fn a_truncated_string_is_ignored() {
        let strings = |bytes: &[u8], truncated| {
            let bytes = bytes.to_vec();
            let content = Content { bytes, truncated };
            let strings = content.strings().map(|s| s.escape_ascii().to_string());
            strings.filter(|s| !s.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(strings(b"A=1\0ID=47", true), ["A=1"]);
        assert_eq!(strings(b"A=1\0ID=47", false), ["A=1", "ID=47"]);
        assert_eq!(strings(b"A=1\0ID=47\0", true), ["A=1", "ID=47"]);
        assert!(strings(b"ID=47", true).is_empty());
    }
}
