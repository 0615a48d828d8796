//! An unprivileged user who attacks the profiler.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::XattrFlags;
use tempfile::TempDir;

use crate::setting;

/// User and group id of the attacker.
pub const UID: u32 = 4242;
/// User and group id of the attacked user.
pub const VICTIM: u32 = 4343;

/// A command that runs as this user, without supplementary groups and capabilities.
pub fn command_as(uid: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    // std drops the supplementary groups when it changes the uid as root.
    command.uid(uid).gid(uid);
    command
}

/// A temporary directory owned by a user.
pub fn directory_of(uid: u32) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    chown(directory.path(), Some(uid), Some(uid)).expect("root gives files away");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("owned");
    directory
}

/// A copy of the profiler with file capabilities, as in docs/privileges.md.
pub struct Installed {
    directory: TempDir,
}

impl Installed {
    /// Sets all capabilities needed for profiling, effective from the first instruction.
    pub fn with_file_capabilities() -> Self {
        // linux/capability.h
        const DAC_READ_SEARCH: u32 = 2;
        const SYS_PTRACE: u32 = 19;
        const PERFMON: u32 = 38;
        const BPF: u32 = 39;
        const REVISION_2: u32 = 0x0200_0000;
        const EFFECTIVE: u32 = 1;
        let installed = Self {
            directory: TempDir::new().expect("a temporary directory"),
        };
        fs::set_permissions(installed.directory.path(), Permissions::from_mode(0o755))
            .expect("owned");
        let binary = installed.binary();
        fs::copy(setting("PROFILER_BIN"), &binary).expect("a copy");
        fs::set_permissions(&binary, Permissions::from_mode(0o755)).expect("owned");
        let permitted = [DAC_READ_SEARCH, SYS_PTRACE, PERFMON, BPF]
            .into_iter()
            .fold(0_u64, |set, capability| set | 1 << capability);
        let words = [
            REVISION_2 | EFFECTIVE,
            u32::try_from(permitted & u64::from(u32::MAX)).expect("masked"),
            0,
            u32::try_from(permitted >> 32).expect("shifted"),
            0,
        ];
        let value: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        rustix::fs::setxattr(&binary, "security.capability", &value, XattrFlags::empty())
            .expect("root gives file capabilities");
        installed
    }

    /// Path of the program.
    pub fn binary(&self) -> PathBuf {
        self.directory.path().join("profiler")
    }
}

/// Creates a file that only root can read; returns its path and content.
pub fn secret_in(directory: &Path) -> (PathBuf, &'static str) {
    const SECRET: &str = "root:hunter2:19000:0:99999:7:::";
    let path = directory.join("secret");
    fs::write(&path, format!("{SECRET}\n")).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("owned");
    (path, SECRET)
}
