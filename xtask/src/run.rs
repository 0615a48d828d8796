//! `cargo xtask run`: builds what is missing, then executes `profiler run`.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{bpf, shell, workspace::Workspace};

/// Replaces this process by the profiler; returns only on failure.
pub fn run(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let profiler = bpf::build_optimized(workspace)?;
    let mut command = privileged(&profiler);
    command.arg("run").args(args);
    clean(&mut command, workspace);
    Err(command.exec()).with_context(|| format!("starting `{}`", shell::display(&command)))
}

/// Runs a program with sudo if it is installed; otherwise the program reports missing privileges.
pub fn privileged(program: &Path) -> Command {
    if shell::is_root() || shell::which("sudo").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    // A profiled command needs its environment.
    command.args(["--preserve-env", "--"]).arg(program);
    // Only the profiler runs as root; its command runs as the user.
    command.env("PROFILER_RAISED", "1");
    command
}

/// Removes the variables that cargo sets for xtask and that a profiled command must not inherit.
fn clean(command: &mut Command, workspace: &Workspace) {
    let own = [
        "CARGO",
        "CARGO_BIN_NAME",
        "CARGO_CRATE_NAME",
        "RUST_RECURSION_COUNT",
    ];
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if own.contains(&text.as_ref()) || prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    match env::var_os("LD_LIBRARY_PATH").map(|paths| foreign_paths(&paths, &workspace.target)) {
        Some(paths) if paths.is_empty() => command.env_remove("LD_LIBRARY_PATH"),
        Some(paths) => command.env("LD_LIBRARY_PATH", paths),
        None => command,
    };
}

/// Library paths other than those of this build and of Rust toolchains.
fn foreign_paths(paths: &OsStr, target: &Path) -> OsString {
    let ours = |path: &Path| {
        path.starts_with(target)
            || path.join("rustlib").is_dir()
            || path.components().any(|part| part.as_os_str() == "rustlib")
    };
    let foreign: Vec<PathBuf> = env::split_paths(paths).filter(|path| !ours(path)).collect();
    env::join_paths(foreign).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, path::Path};

    use super::foreign_paths;

    #[test]
    fn keeps_the_library_paths_of_the_user() {
        let paths =
            OsStr::new("/p/target/debug/deps:/opt/cuda/lib:/r/lib/rustlib/x86/lib:/opt/mpi");
        assert_eq!(
            foreign_paths(paths, Path::new("/p/target")),
            "/opt/cuda/lib:/opt/mpi"
        );
        assert_eq!(
            foreign_paths(OsStr::new("/p/target/debug"), Path::new("/p/target")),
            ""
        );
    }
}
