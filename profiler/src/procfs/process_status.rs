//! `/proc/PID/status` (`proc_pid_status(5)`).

use std::path::Path;

use super::process_file::{self, SMALL_MAX};

/// Value of the field `name` (without the colon), trimmed.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Real uid of a process. The owner of its directory is no substitute: it is root if the process is
/// not dumpable.
pub(crate) fn real_uid(procfs: &Path, pid: u32) -> Option<u32> {
    uid(procfs, pid, 0)
}

/// Effective uid of a process.
pub(crate) fn effective_uid(procfs: &Path, pid: u32) -> Option<u32> {
    uid(procfs, pid, 1)
}

/// The uid in one of the columns of the field.
fn uid(procfs: &Path, pid: u32, column: usize) -> Option<u32> {
    // The uids precede the list of groups, which can be long.
    let status = process_file::read(procfs, pid, "status", SMALL_MAX).ok()?;
    let status = String::from_utf8_lossy(&status.bytes);
    field(&status, "Uid")?
        .split_whitespace()
        .nth(column)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_exact_names() {
        let status = "Name:\tx\nSeccomp_filters:\t1\nSeccomp:\t2\nUid:\t7\t8\t9\t10\n";
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(field(status, "Uid"), Some("7\t8\t9\t10"));
        assert_eq!(field(status, "Gid"), None);
        let own = real_uid(Path::new("/proc"), std::process::id());
        assert_eq!(own, Some(rustix::process::getuid().as_raw()));
    }
}
