//! A workload that executes commands from its stdin and is idle in between.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{
    cpus::{cpus, on_cpus},
    procfs,
    runs::wait_until,
};

/// A process of `bin/workload`, which ends with the test.
pub struct WorkloadDriver {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl WorkloadDriver {
    /// Starts `program` with `threads` threads in addition to its main thread.
    pub fn new(program: &str, threads: u32) -> Self {
        Self::with_env(program, threads, &[])
    }

    /// Starts `program` with additional environment variables.
    pub fn with_env(program: &str, threads: u32, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command.envs(variables.iter().copied());
        Self::start(command, threads)
    }

    /// Starts `program` so that its threads and children remain on the first CPU of this test.
    ///
    /// For comparisons with `sched_info.run_delay`: since Linux 6.12, it can contain sleep of threads that move.
    pub fn on_one_cpu(program: &str, threads: u32) -> Self {
        on_cpus(&cpus()[..1], || Self::new(program, threads))
    }

    /// Starts a command that executes the workload, and appends the number of threads to it.
    pub fn start(mut command: Command, threads: u32) -> Self {
        let mut child = command
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the workload starts");
        let mut workload = Self {
            stdin: child.stdin.take().expect("a pipe"),
            stdout: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        };
        workload.wait_idle();
        workload
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command without waiting for its end.
    pub fn send(&mut self, command: &str) {
        // A single write, so that the workload needs a single read.
        let line = format!("{command}\n");
        self.stdin
            .write_all(line.as_bytes())
            .expect("the workload reads its stdin");
    }

    /// Waits until the last command has been executed.
    pub fn wait_done(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        assert_eq!(line, "done\n");
    }

    /// Waits until the last command has been executed and all threads sleep.
    pub fn wait_idle(&mut self) {
        self.wait_done();
        wait_until("the workload is idle", || procfs::is_idle(self.pid()));
    }

    /// Sends a command and waits until it has been executed.
    pub fn run(&mut self, command: &str) {
        self.send(command);
        self.wait_idle();
    }
}

impl Drop for WorkloadDriver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
