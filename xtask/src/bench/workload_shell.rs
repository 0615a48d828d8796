//! The shell that runs the workloads. The profiler follows the shell before a workload starts.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::workloads::Workload;

pub struct WorkloadShell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl WorkloadShell {
    pub fn start() -> Result<Self> {
        let mut child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting `sh`")?;
        let stdin = child.stdin.take().context("no pipe to sh")?;
        let stdout = BufReader::new(child.stdout.take().context("no pipe from sh")?);
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a workload as a child and returns the duration in s that it prints.
    pub fn time(&mut self, workload: &Workload) -> Result<f64> {
        writeln!(
            self.stdin,
            "{} </dev/null; echo \"end $?\"",
            workload.command
        )?;
        let mut seconds = None;
        for line in (&mut self.stdout).lines() {
            let line = line?;
            match line.strip_prefix("end ") {
                Some("0") => {
                    return seconds
                        .with_context(|| format!("`{}` printed no duration", workload.command));
                }
                Some(code) => bail!("`{}` failed with {code}", workload.command),
                None => seconds = line.trim().parse().ok().or(seconds),
            }
        }
        bail!("the shell that runs the workloads has ended");
    }
}

impl Drop for WorkloadShell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
