//! Directories for files that live as long as a process: sockets and locks.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Candidates in order of preference: `$RUNTIME_DIRECTORY`, which systemd creates for a unit;
/// `/run/profiler`; `$XDG_RUNTIME_DIR/profiler`, or the same directory under `/run/user` for
/// processes outside a login session; a directory for the user in `/tmp`, because `$TMPDIR` can
/// differ between jobs and be on a file server; one in `$TMPDIR`.
pub fn candidates() -> impl Iterator<Item = PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    [
        named("RUNTIME_DIRECTORY"),
        Some(PathBuf::from("/run/profiler")),
        named("XDG_RUNTIME_DIR").map(|directory| directory.join("profiler")),
        Some(PathBuf::from(format!("/run/user/{uid}/profiler"))),
        Some(PathBuf::from(format!("/tmp/profiler-{uid}"))),
        Some(std::env::temp_dir().join(format!("profiler-{uid}"))),
    ]
    .into_iter()
    .flatten()
}

/// Creates the directory if it is missing.
///
/// # Errors
///
/// When it cannot be created, or another user owns it or may write to it.
pub fn make(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(directory) {
        // The umask can have removed the permission of other users to enter.
        Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(directory)?;
    let uid = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(io::Error::other(
            "not a directory that only this user can write to",
        ))
    }
}
