//! Running other programs. Every error names the command.

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

/// The user behind sudo, if root was got by it.
pub fn invoking_user() -> Option<(u32, u32)> {
    let id = |name| env::var(name).ok()?.parse().ok();
    let (uid, gid) = (id("SUDO_UID")?, id("SUDO_GID")?);
    (is_root() && uid != 0).then_some((uid, gid))
}

/// What others wrote is built and installed with the rights of the user behind sudo, if there is one.
pub fn unprivileged(command: &mut Command) -> &mut Command {
    match invoking_user() {
        Some((uid, gid)) => run_as(command, uid, gid),
        None => command,
    }
}

/// As a user, in his home, and without the groups of ours.
fn run_as(command: &mut Command, uid: u32, gid: u32) -> &mut Command {
    let home = fs::read_to_string("/etc/passwd").ok().and_then(|users| {
        let mut users = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>());
        let user = users.find(|fields| fields.get(2) == Some(&uid.to_string().as_str()))?;
        Some(user.get(5)?.to_string())
    });
    command.uid(uid).gid(gid);
    // Caches of root's are not his to write.
    command
        .env_remove("CARGO_HOME")
        .env_remove("XDG_CACHE_HOME");
    match home {
        Some(home) => command.env("HOME", home),
        None => command,
    }
}

/// Makes a directory below `target` in which [`unprivileged`] commands can write; one that is there stays as it is.
pub fn make_unprivileged(directory: &Path) -> Result<()> {
    let made = fs::create_dir_all(directory.parent().unwrap_or(directory))
        .and_then(|()| fs::create_dir(directory));
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).with_context(|| format!("making {}", directory.display())),
        Ok(()) => give_away(directory),
    }
}

/// Makes a file that [`unprivileged`] commands can write.
pub fn write_unprivileged(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    give_away(path)
}

/// To the user behind sudo, if there is one.
fn give_away(path: &Path) -> Result<()> {
    match invoking_user() {
        Some((uid, gid)) => std::os::unix::fs::lchown(path, Some(uid), Some(gid))
            .with_context(|| format!("giving away {}", path.display())),
        None => Ok(()),
    }
}

/// Whether we act as root: /proc/self belongs to the effective user.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|owner| owner.uid() == 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{is_root, run_as, stdout};

    /// A package's build script sees nothing of root.
    #[test]
    fn builds_have_no_rights_of_root() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "id -u; id -g; id -G; grep CapEff /proc/self/status; echo [$CARGO_HOME]",
        ]);
        command.env("CARGO_HOME", "/root/.cargo");
        let said = stdout(run_as(&mut command, 4242, 4243));
        if is_root() {
            let expected = "4242\n4243\n4243\nCapEff:\t0000000000000000\n[]\n";
            assert_eq!(said.expect("it runs"), expected);
        } else {
            assert!(said.is_err(), "only root can become another user");
        }
    }
}
