//! Runs other programs. Every error names the command.

use std::{
    env, fs, io,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::preparation;

/// Reports the present step on stderr.
pub fn progress(text: &str) {
    eprintln!("xtask: {text}");
}

/// The command line of a command.
pub fn display(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy()));
    words.join(" ")
}

/// Runs a command with inherited output.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting `{}`", display(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Like [`run`], for a step that prepares others, such as a build: reports the step if it takes longer
/// than a moment.
pub fn run_slowly(command: &mut Command, step: &str) -> Result<()> {
    preparation::timed(|| run_with_report(command, step))
}

fn run_with_report(command: &mut Command, step: &str) -> Result<()> {
    const SILENT: Duration = Duration::from_millis(1500);
    const POLL: Duration = Duration::from_millis(20);
    let started = Instant::now();
    let mut reported = false;
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("starting `{}`", display(command)))?;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for a child")? {
            break status;
        }
        if !reported && started.elapsed() > SILENT {
            progress(step);
            reported = true;
        }
        thread::sleep(POLL);
    };
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Runs a command; its output is part of the error if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a command and returns its stdout.
pub fn stdout(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}

/// Runs a command and returns its stdout, which need not be text.
pub fn bytes(command: &mut Command) -> Result<Vec<u8>> {
    Ok(output(command)?.stdout)
}

/// Runs a command and returns its stderr.
pub fn stderr(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stderr).into_owned())
}

fn output(command: &mut Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting `{}`", display(command)))?;
    if !output.status.success() {
        let printed = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let printed = printed.join("\n");
        bail!(
            "`{}` failed ({})\n{}",
            display(command),
            output.status,
            printed.trim()
        );
    }
    Ok(output)
}

/// Path of this program, also after a build has replaced it.
pub fn this_program() -> Result<PathBuf> {
    let path = env::current_exe().context("finding this program")?;
    // proc_pid_exe(5)
    let replaced = path
        .to_str()
        .and_then(|path| path.strip_suffix(" (deleted)"));
    Ok(replaced.map_or_else(|| path.clone(), PathBuf::from))
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

/// The user who called sudo, if xtask runs as root through sudo.
pub fn invoking_user() -> Option<(u32, u32)> {
    let id = |name| env::var(name).ok()?.parse().ok();
    let (uid, gid) = (id("SUDO_UID")?, id("SUDO_GID")?);
    (is_root() && uid != 0).then_some((uid, gid))
}

/// Runs a command as the user who called sudo, if there is one. Third-party code is built and
/// installed without the rights of root.
pub fn unprivileged(command: &mut Command) -> &mut Command {
    match invoking_user() {
        Some((uid, gid)) => run_as(command, uid, gid),
        None => command,
    }
}

/// Runs a command as a user, with the user's home directory and without supplementary groups.
fn run_as(command: &mut Command, uid: u32, gid: u32) -> &mut Command {
    command.uid(uid).gid(gid);
    // The user cannot write to root's caches.
    command
        .env_remove("CARGO_HOME")
        .env_remove("XDG_CACHE_HOME");
    match home(uid) {
        Some(home) => command.env("HOME", home),
        None => command,
    }
}

/// Home directory of a local user.
fn home(uid: u32) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let mut users = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|fields| fields.get(2) == Some(&uid.to_string().as_str()))?;
    Some(user.get(5)?.to_string())
}

/// Directory for caches of the user who called sudo, if there is one, otherwise of this user.
pub fn cache_directory() -> Option<PathBuf> {
    let of_home = |home: PathBuf| home.join(".cache");
    if let Some((uid, _)) = invoking_user() {
        return home(uid).map(PathBuf::from).map(of_home);
    }
    let given = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    given
        .filter(|path| path.is_absolute())
        .or_else(|| env::home_dir().map(of_home))
}

/// Creates a directory below `target` that [`unprivileged`] commands can write to. An existing one
/// is left unchanged.
pub fn make_unprivileged(directory: &Path) -> Result<()> {
    let created = fs::create_dir_all(directory.parent().unwrap_or(directory))
        .and_then(|()| fs::create_dir(directory));
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).with_context(|| format!("creating {}", directory.display())),
        Ok(()) => give_away(directory),
    }
}

/// Writes a file that [`unprivileged`] commands can write to.
pub fn write_unprivileged(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    give_away(path)
}

/// Changes the owner of a file to the user who called sudo, if there is one.
fn give_away(path: &Path) -> Result<()> {
    match invoking_user() {
        Some((uid, gid)) => std::os::unix::fs::lchown(path, Some(uid), Some(gid))
            .with_context(|| format!("changing the owner of {}", path.display())),
        None => Ok(()),
    }
}

/// Whether the effective user is root: /proc/self belongs to that user.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|owner| owner.uid() == 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{is_root, run_as, stdout};

    /// Build scripts of packages run without the rights of root.
    #[test]
    fn builds_have_no_rights_of_root() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "id -u; id -g; id -G; grep CapEff /proc/self/status; echo [$CARGO_HOME]",
        ]);
        command.env("CARGO_HOME", "/root/.cargo");
        let printed = stdout(run_as(&mut command, 4242, 4243));
        if is_root() {
            let expected = "4242\n4243\n4243\nCapEff:\t0000000000000000\n[]\n";
            assert_eq!(printed.expect("sh starts"), expected);
        } else {
            assert!(printed.is_err(), "only root can become another user");
        }
    }
}
