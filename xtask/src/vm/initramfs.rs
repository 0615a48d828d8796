//! The guest: its init, the programs under test, the tools that the tests use, and modules.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{kernel::Kernel, modules, programs::Programs, tree::Tree};
use crate::{apt, shell, workspace::Workspace};

/// What the tests call, and Debian's package of it.
const TOOLS: &[(&str, &str)] = &[
    ("sh", "dash"),
    ("cat", "coreutils"),
    ("chmod", "coreutils"),
    ("chown", "coreutils"),
    ("cp", "coreutils"),
    ("cut", "coreutils"),
    ("dd", "coreutils"),
    ("env", "coreutils"),
    ("false", "coreutils"),
    ("head", "coreutils"),
    ("id", "coreutils"),
    ("ln", "coreutils"),
    ("ls", "coreutils"),
    ("mkdir", "coreutils"),
    ("mkfifo", "coreutils"),
    ("mknod", "coreutils"),
    ("mv", "coreutils"),
    ("nproc", "coreutils"),
    ("printf", "coreutils"),
    ("readlink", "coreutils"),
    ("rm", "coreutils"),
    ("rmdir", "coreutils"),
    ("seq", "coreutils"),
    ("sleep", "coreutils"),
    ("stat", "coreutils"),
    ("sync", "coreutils"),
    ("tail", "coreutils"),
    ("tee", "coreutils"),
    ("test", "coreutils"),
    ("timeout", "coreutils"),
    ("touch", "coreutils"),
    ("true", "coreutils"),
    ("truncate", "coreutils"),
    ("uname", "coreutils"),
    ("wc", "coreutils"),
    ("yes", "coreutils"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("mke2fs", "e2fsprogs"),
    ("blkdiscard", "util-linux"),
    ("blockdev", "util-linux"),
    ("chrt", "util-linux"),
    ("fallocate", "util-linux"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("umount", "mount"),
    ("unshare", "util-linux"),
];

/// Where it is mounted over, or written to.
const DIRECTORIES: &[&str] = &["/dev", "/proc", "/sys", "/run", "/root", "/mnt", "/modules"];

/// Writes `initramfs-NAME.cpio` into `folder`.
pub fn build(
    workspace: &Workspace,
    kernel: &Kernel,
    programs: &Programs,
    orders: &[String],
    folder: &Path,
) -> Result<PathBuf> {
    let mut tree = Tree::default();
    for directory in DIRECTORIES {
        tree.directory(directory, 0o755)?;
    }
    tree.directory("/tmp", 0o1777)?;
    tree.directory(workspace.target.join("tmp"), 0o755)?;
    // Init's stdout, before it has mounted anything.
    tree.device("/dev/console", (5, 1))?;
    for tool in TOOLS.iter().filter_map(|(tool, _)| find(tool)) {
        tree.program(tool)?;
    }
    let ours = [&programs.profiler, &programs.tests];
    for program in ours.into_iter().chain(&programs.workloads) {
        let stripped = strip(program, folder)?;
        tree.program_as(program, stripped)?;
    }
    tree.program_as("/init", strip(&programs.init, folder)?)?;
    tree.file("/etc/passwd", 0o644, PASSWD.into())?;
    tree.file("/etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n".into())?;
    tree.file("/orders", 0o644, orders.join("\n").into())?;
    if let Some(folder) = &kernel.modules {
        for (index, module) in modules::collect(folder)?.into_iter().enumerate() {
            let path = format!("/modules/{index:03}-{}", module.name);
            tree.file(format!("{path}.args"), 0o644, module.parameters.into())?;
            tree.file(format!("{path}.ko"), 0o644, module.bytes)?;
        }
    }
    let path = folder.join("initramfs.cpio");
    tree.write(&path)?;
    Ok(path)
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";

/// Installs what is missing.
pub fn obtain_tools() -> Result<()> {
    let missing = || TOOLS.iter().filter(|(tool, _)| find(tool).is_none());
    let mut packages: Vec<String> = missing().map(|(_, package)| (*package).into()).collect();
    packages.sort();
    packages.dedup();
    if !packages.is_empty() && apt::available() {
        apt::install(&packages, "tools that the kernel tests use")?;
    }
    if let Some((tool, _)) = missing().next() {
        bail!(
            "no `{tool}` to test with: run `{}`",
            apt::command(&packages)
        );
    }
    Ok(())
}

/// A user's PATH may lack the folders of the administrator's tools.
fn find(tool: &str) -> Option<PathBuf> {
    shell::which(tool).or_else(|| {
        let folders = ["/usr/sbin", "/sbin"];
        let mut paths = folders.iter().map(|folder| Path::new(folder).join(tool));
        paths.find(|path| shell::is_executable(path))
    })
}

/// A copy without debug information, which would fill the guest's memory.
fn strip(program: &Path, folder: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    let stripped = folder.join(name);
    shell::run_quietly(Command::new("strip").arg("-o").args([&stripped, program]))?;
    Ok(stripped)
}
