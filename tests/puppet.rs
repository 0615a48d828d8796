//! A workload that does what it is told, and rests in between.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{procfs, runs::wait_until};

/// The process of `workload.rs`, told through its stdin.
pub struct Puppet {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Puppet {
    /// Starts `program` with this many threads to burn CPU time.
    pub fn new(program: &str, threads: u32) -> Self {
        Self::with(program, threads, &[])
    }

    /// The same, with these variables in its environment.
    pub fn with(program: &str, threads: u32, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command.envs(variables.iter().copied());
        Self::start(command, threads)
    }

    /// The same, of a command that becomes the program.
    pub fn start(mut command: Command, threads: u32) -> Self {
        let mut child = command
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the workload starts");
        let mut puppet = Self {
            orders: child.stdin.take().expect("a pipe"),
            answers: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        };
        puppet.wait();
        puppet
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to do something.
    pub fn order(&mut self, order: &str) {
        // In one write, so that it is one read there.
        let line = format!("{order}\n");
        self.orders
            .write_all(line.as_bytes())
            .expect("the workload listens");
    }

    /// Waits until it has done that, and rests.
    pub fn wait(&mut self) {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("an answer");
        assert_eq!(answer, "done\n");
        wait_until("the workload rests", || procfs::is_at_rest(self.pid()));
    }

    /// Both.
    pub fn tell(&mut self, order: &str) {
        self.order(order);
        self.wait();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
