//! The initramfs of a guest: init, the programs under test, tools of the tests, and modules.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{
    kernel::Kernel,
    modules::{self, ModuleList},
    programs::Programs,
    tree::Tree,
    userland::Userland,
};
use crate::{shell, workspace::Workspace};

/// Programs that the tests call, with their Debian packages.
pub const TOOLS: &[(&str, &str)] = &[
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

/// Contents of a guest.
pub struct Parts<'a> {
    pub userland: &'a Userland,
    pub programs: &'a Programs,
    /// Programs that the tests call.
    pub tools: &'a [(&'a str, &'a str)],
    /// Kernel modules loaded at boot.
    pub modules: &'a ModuleList,
}

/// Mount points and writable directories.
const DIRECTORIES: &[&str] = &["/dev", "/proc", "/sys", "/run", "/root", "/mnt", "/modules"];

/// Writes `initramfs.cpio` to `directory`. The tests load `drivers`, which are not kernel modules
/// of Debian.
pub fn build(
    workspace: &Workspace,
    kernel: &Kernel,
    parts: &Parts,
    drivers: &[PathBuf],
    plan: &[String],
    directory: &Path,
) -> Result<PathBuf> {
    let (userland, programs) = (parts.userland, parts.programs);
    let mut tree = Tree::new(userland);
    for directory in DIRECTORIES {
        tree.directory(directory, 0o755)?;
    }
    tree.directory("/tmp", 0o1777)?;
    tree.directory(workspace.target.join("tmp"), 0o755)?;
    // Stdout of init before it has mounted devtmpfs.
    tree.device("/dev/console", (5, 1))?;
    let tools = parts.tools.iter();
    for tool in tools.filter_map(|(tool, _)| userland.find(tool)) {
        tree.program(tool)?;
    }
    let strip = |program: &Path| strip(&userland.arch.tool("strip"), program, directory);
    let ours = [&programs.profiler, &programs.tests];
    for program in ours.into_iter().chain(&programs.workloads) {
        let stripped = strip(program)?;
        tree.program_as(program, stripped)?;
    }
    tree.program_as("/init", strip(&programs.init)?)?;
    tree.file("/etc/passwd", 0o644, PASSWD.into())?;
    tree.file("/etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n".into())?;
    tree.file("/plan", 0o644, plan.join("\n").into())?;
    add_modules(&mut tree, kernel, parts.modules)?;
    for driver in drivers {
        let name = driver.file_name().context("a driver has a name")?;
        let bytes = fs::read(driver).with_context(|| format!("reading {}", driver.display()))?;
        tree.file(Path::new("/drivers").join(name), 0o644, bytes)?;
    }
    let path = directory.join("initramfs.cpio");
    tree.write(&path)?;
    Ok(path)
}

/// Adds modules, numbered in the order of loading.
pub fn add_modules(tree: &mut Tree, kernel: &Kernel, wanted: &ModuleList) -> Result<()> {
    let Some(directory) = &kernel.modules else {
        return Ok(());
    };
    let found = modules::collect(directory, wanted)?;
    for (index, module) in found.into_iter().enumerate() {
        let path = format!("/modules/{index:03}-{}", module.name);
        tree.file(format!("{path}.args"), 0o644, module.parameters.into())?;
        tree.file(format!("{path}.ko"), 0o644, module.bytes)?;
    }
    Ok(())
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";

/// Copies a program without its symbols, which would fill the guest's memory.
pub fn strip(tool: &str, program: &Path, directory: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    let stripped = directory.join(name);
    shell::run_quietly(Command::new(tool).arg("-o").args([&stripped, program]))?;
    Ok(stripped)
}
