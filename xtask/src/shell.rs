//! Running other programs. Every error names the command.

use std::{
    env, fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// One line that says what takes so long.
pub fn progress(text: &str) {
    eprintln!("xtask: {text}");
}

/// The command as one would type it.
pub fn display(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy()));
    words.join(" ")
}

/// Runs to the end, with the output going where ours goes.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting `{}`", display(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Like [`run`]; what it does is said only if it takes long enough for somebody to wonder.
pub fn run_slowly(command: &mut Command, what: &str) -> Result<()> {
    const PATIENCE: Duration = Duration::from_millis(1500);
    const POLL: Duration = Duration::from_millis(20);
    let started = Instant::now();
    let mut said = false;
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("starting `{}`", display(command)))?;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for a child")? {
            break status;
        }
        if !said && started.elapsed() > PATIENCE {
            progress(what);
            said = true;
        }
        thread::sleep(POLL);
    };
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Runs to the end in silence; what the command printed is shown only if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// What the command prints on stdout.
pub fn stdout(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}

/// The same, of a command that prints anything but text.
pub fn bytes(command: &mut Command) -> Result<Vec<u8>> {
    Ok(output(command)?.stdout)
}

/// What the command prints on stderr.
pub fn stderr(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stderr).into_owned())
}

fn output(command: &mut Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting `{}`", display(command)))?;
    if !output.status.success() {
        let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let said = said.join("\n");
        bail!(
            "`{}` failed ({})\n{}",
            display(command),
            output.status,
            said.trim()
        );
    }
    Ok(output)
}

/// Finds a program on PATH.
pub fn which(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(program))
        .find(|path| is_executable(path))
}

pub fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Whether we act as root: /proc/self belongs to the effective user.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|owner| owner.uid() == 0)
}
