//! Readings of processes from `/proc`. All are available to the user of a process without
//! capabilities.

use std::{fs, path::Path};

use super::{Process, ProcessReader};
use crate::procfs::{
    memory_file::{self, MemoryFile},
    process_file::{self, SMALL_MAX},
    process_stat,
    process_status::field,
};

/// Reads the processes of a procfs.
pub(in crate::job) struct ProcReader<'a>(pub(in crate::job) &'a Path);

impl ProcReader<'_> {
    fn text(&self, pid: u32, name: &str) -> Option<String> {
        let content = process_file::read(self.0, pid, name, SMALL_MAX).ok()?;
        Some(String::from_utf8_lossy(&content.bytes).into_owned())
    }
}

impl ProcessReader for ProcReader<'_> {
    fn process(&self, pid: u32) -> Option<Process> {
        let stat = process_stat::of_process(self.0, pid)?;
        Some(Process {
            parent: stat.ppid.cast_unsigned(),
            comm: stat.comm,
            state: stat.state,
            start: stat.starttime,
            cpu: stat.utime + stat.stime,
            has_terminal: stat.tty_nr != 0,
        })
    }

    fn arguments(&self, pid: u32) -> Vec<String> {
        let content = memory_file::read(self.0, pid, MemoryFile::Cmdline).unwrap_or_default();
        let words = content
            .strings()
            .map(|word| String::from_utf8_lossy(word).into_owned());
        words.collect()
    }

    /// By the kernel function in which it sleeps. Shells wait in wait4(2) or in sigsuspend(2), until
    /// SIGCHLD arrives. A thread besides the first could do something else.
    fn waits_for_child(&self, pid: u32) -> bool {
        let function = self.text(pid, "wchan").unwrap_or_default();
        let threads = fs::read_dir(self.0.join(format!("{pid}/task")));
        (function.starts_with("do_wait") || function.contains("sigsuspend"))
            && threads.is_ok_and(|threads| threads.count() == 1)
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let children = self.text(pid, &format!("task/{pid}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace();
        children.filter_map(|pid| pid.parse().ok()).collect()
    }

    fn switches(&self, pid: u32) -> Option<u64> {
        let status = self.text(pid, "status")?;
        let count = |name| field(&status, name)?.parse::<u64>().ok();
        Some(count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;

    /// A shell with a background job, that waits for it in this way.
    #[track_caller]
    fn check(script: &str, waits: bool) {
        let mut shell = Command::new("bash")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let reader = ProcReader(Path::new("/proc"));
        let pid = shell.id();
        let begin = Instant::now();
        while reader.children(pid).is_empty() || reader.process(pid).expect("alive").state != 'S' {
            assert!(begin.elapsed() < Duration::from_secs(60), "{script}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let child = reader.children(pid)[0];
        let parent = reader.process(child).expect("alive").parent;
        // The shell starts the background job a moment before it waits, and then does nothing.
        let is_settled = || {
            let before = reader.switches(pid);
            std::thread::sleep(Duration::from_millis(50));
            reader.waits_for_child(pid) == waits
                && before.is_some()
                && before == reader.switches(pid)
        };
        let settled = std::iter::repeat_with(is_settled)
            .take_while(|_| begin.elapsed() < Duration::from_secs(60))
            .any(|settled| settled);
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(child.cast_signed()).expect("a pid"),
            rustix::process::Signal::KILL,
        );
        shell.kill().expect("killed");
        shell.wait().expect("ended");
        assert_eq!((settled, parent), (true, pid), "{script}");
    }

    #[test]
    fn shells_that_wait() {
        check("sleep 600 & wait", true);
        check("sleep 600 & wait $!", true);
        check("sleep 600; true", true);
        check("sleep 600 & read line", false);
    }

    #[test]
    fn arguments_of_this_process() {
        let reader = ProcReader(Path::new("/proc"));
        let own: Vec<String> = std::env::args().collect();
        let read = reader.arguments(std::process::id());
        assert_eq!(read[..own.len()], own);
        assert!(reader.process(u32::MAX >> 2).is_none());
    }
}
