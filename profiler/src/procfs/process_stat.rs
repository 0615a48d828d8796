//! `/proc/PID/stat` and `/proc/PID/task/TID/stat` (`proc_pid_stat(5)`).

use std::path::Path;

use procfs::{FromRead as _, process::Stat};

use super::{
    process_file::{self, SMALL_MAX},
    stat::tick_ns,
};
use crate::support::clock::boottime_of_procfs;

/// Reads `stat` in the directory of a process or thread; `None` if it is gone or malformed. The start is
/// that in the initial time namespace.
///
/// The parser of the `procfs` crate relies on a line that begins with `pid (comm) state`, so this
/// is checked first.
pub(crate) fn read(directory: &Path) -> Option<Stat> {
    let text = process_file::bounded(&directory.join("stat"), SMALL_MAX).ok()?;
    let text = text.bytes;
    let begin = text.iter().position(|&byte| byte == b'(')?;
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let pid = text.get(..begin)?.strip_suffix(b" ")?;
    let is_pid = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
    let has_state =
        matches!(text.get(end + 1..)?, [b' ', state, ..] if state.is_ascii_alphabetic());
    let mut stat = (is_pid && begin < end && has_state)
        .then(|| Stat::from_read(&text[..]).ok())
        .flatten()?;
    // Times are used in ns.
    let start = stat.starttime.checked_mul(tick_ns())?;
    stat.starttime = boottime_of_procfs(start) / tick_ns();
    Some(stat)
}

/// Reads `stat` of a process; `None` also if it is that of another one.
pub(crate) fn of_process(procfs: &Path, pid: u32) -> Option<Stat> {
    let stat = read(&procfs.join(pid.to_string()))?;
    (stat.pid.cast_unsigned() == pid).then_some(stat)
}

/// Whether a start in clock ticks, as in `/proc`, is that of a process whose start was observed at
/// `start_boottime`, in ns: exactly, or later, because the creating thread lost its CPU, or the time namespace
/// has an offset that is not a multiple of a tick.
pub(crate) fn is_start(ticks: u64, start_boottime: u64) -> bool {
    const LATE_TICKS_MAX: u64 = 10;
    let observed = start_boottime / tick_ns();
    (ticks..=ticks.saturating_add(LATE_TICKS_MAX)).contains(&observed)
}

/// Whether this pid still belongs to the process that started at `start_boottime`, in ns.
pub(crate) fn has_start(procfs: &Path, pid: u32, start_boottime: u64) -> bool {
    of_process(procfs, pid).is_some_and(|stat| is_start(stat.starttime, start_boottime))
}

/// Whether all threads of the process have ended. The main thread alone becomes a zombie too.
pub(crate) fn has_ended(stat: &Stat) -> bool {
    stat.state == 'X' || stat.state == 'Z' && stat.num_threads <= 1
}

/// Whether the main thread has exited: it is a zombie, or has no entry.
pub(crate) fn has_exited(procfs: &Path, pid: u32) -> bool {
    of_process(procfs, pid).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_recognized_by_its_start() {
        let (procfs, pid) = (Path::new("/proc"), std::process::id());
        let stat = of_process(procfs, pid).expect("stat");
        assert_eq!(stat.pid.cast_unsigned(), pid);
        assert!(has_start(procfs, pid, stat.starttime * tick_ns()));
        assert!(!has_start(procfs, pid, 0) && !has_exited(procfs, pid));
        assert!(has_exited(procfs, u32::MAX >> 2));
    }

    #[test]
    fn malformed_lines_are_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let of_start =
            |start: u64| format!("1 (x) S {}{start}{}", "0 ".repeat(18), " 0".repeat(30));
        let long = of_start(u64::MAX / tick_ns() + 1);
        let lines = ["", "(x)", "x (x) S 1", "1 (x) ", "1 )x( S", "1 (x) S 1"];
        for line in lines.into_iter().chain([long.as_str()]) {
            std::fs::write(directory.path().join("stat"), line).expect("written");
            assert!(read(directory.path()).is_none(), "{line}");
        }
        std::fs::write(directory.path().join("stat"), of_start(1)).expect("written");
        assert!(read(directory.path()).is_some());
    }
}
