//! Running a command with a time limit.

use std::{
    io::Read,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use super::QueryError;
use crate::support::resource_limits;

/// Time limit of a command.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts with a command that does not end in time.
pub(super) const ATTEMPTS: u32 = 2;

/// Output of a scheduler's command.
#[derive(Clone, Debug, Default)]
pub struct CommandOutput {
    /// Whether the exit status is 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a command; repeats it after a timeout.
pub(super) fn run(name: &'static str, args: &[&str]) -> Result<CommandOutput, QueryError> {
    let mut last = QueryError::TimedOut(name);
    for _ in 0..ATTEMPTS {
        match run_once(name, args, TIMEOUT) {
            Err(error @ QueryError::TimedOut(_)) => last = error,
            result => return result,
        }
    }
    Err(last)
}

fn run_once(
    name: &'static str,
    args: &[&str],
    timeout: Duration,
) -> Result<CommandOutput, QueryError> {
    let mut command = Command::new(name);
    // SAFETY: system calls.
    unsafe {
        command.pre_exec(|| {
            // Some programs close all descriptors up to the limit.
            resource_limits::restore();
            // It ends with this thread, and so with the profiler.
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        });
    }
    // The user's filters and formats of `squeue`.
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(b"SQUEUE_") {
            command.env_remove(variable);
        }
    }
    let mut child = command
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => QueryError::NotInstalled(name),
            _ => QueryError::Failed(name, error.to_string()),
        })?;
    let group = Pid::from_child(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (sender, receiver) = channel();
    // A command that hangs in the kernel blocks only this thread.
    let reader = thread::Builder::new().spawn(move || {
        let stderr = thread::Builder::new().spawn(move || read_all(stderr));
        let stdout = read_all(stdout);
        let stderr = stderr.ok().and_then(|thread| thread.join().ok());
        let _ = sender.send((child.wait(), stdout, stderr.unwrap_or_default()));
    });
    if let Err(error) = reader {
        let _ = kill_process_group(group, Signal::KILL);
        return Err(QueryError::Failed(name, error.to_string()));
    }
    let Ok((status, stdout, stderr)) = receiver.recv_timeout(timeout) else {
        let _ = kill_process_group(group, Signal::KILL);
        return Err(QueryError::TimedOut(name));
    };
    let status = status.map_err(|error| QueryError::Failed(name, error.to_string()))?;
    if let Some(signal) = status.signal() {
        let error = format!("killed by signal {signal}");
        return Err(QueryError::Failed(name, error));
    }
    Ok(CommandOutput {
        success: status.success(),
        stdout,
        stderr,
    })
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_hanging_commands_are_errors() {
        assert_eq!(
            run("no-such-command", &[]).err(),
            Some(QueryError::NotInstalled("no-such-command"))
        );
        let short = Duration::from_millis(50);
        let hanging = run_once("sleep", &["60"], short).err();
        assert_eq!(hanging, Some(QueryError::TimedOut("sleep")));
        let args = ["-c", "echo out; echo err >&2; exit 3"];
        let output = run_once("sh", &args, TIMEOUT).expect("it ends");
        assert_eq!(
            (output.success, &output.stdout[..], &output.stderr[..]),
            (false, "out\n", "err\n")
        );
    }
}
