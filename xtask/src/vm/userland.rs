//! Tools and libraries of a guest: those of this machine or, for another architecture, Debian's
//! packages unpacked below `target/`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{self, Lists},
    arch::Arch,
    shell,
    workspace::Workspace,
};

/// Directories searched in addition to PATH, for the administrator's tools.
const DIRECTORIES: &[&str] = &["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

pub struct Userland {
    pub arch: &'static Arch,
    /// The directory that is `/` in the guest.
    root: PathBuf,
}

impl Userland {
    /// The userland of this machine.
    pub fn host(arch: &'static Arch) -> Self {
        Self {
            arch,
            root: "/".into(),
        }
    }

    /// A userland with these tools, given with their packages.
    pub fn obtain(
        workspace: &Workspace,
        arch: &'static Arch,
        tools: &[(&str, &str)],
    ) -> Result<Self> {
        let mut userland = Self::host(arch);
        if !arch.is_host() {
            userland.root = workspace.target.join("vm/userland").join(arch.debian);
        }
        let missing = || tools.iter().find(|(tool, _)| userland.find(tool).is_none());
        if missing().is_some() {
            userland.complete(workspace, tools)?;
        }
        match missing() {
            None => Ok(userland),
            Some((tool, package)) if arch.is_host() => {
                let install = apt::command(&[(*package).into()]);
                bail!("`{tool}` is missing: run `{install}`")
            }
            Some((tool, package)) => {
                bail!("no `{tool}` in {package} for {}", arch.debian)
            }
        }
    }

    fn complete(&self, workspace: &Workspace, tools: &[(&str, &str)]) -> Result<()> {
        let packages = |tools: Vec<&(&str, &str)>| -> Vec<String> {
            let names: BTreeSet<&str> = tools.iter().map(|(_, package)| *package).collect();
            names.into_iter().map(str::to_owned).collect()
        };
        if self.arch.is_host() {
            let missing = tools.iter().filter(|(tool, _)| self.find(tool).is_none());
            let missing = packages(missing.collect());
            if apt::available() {
                apt::install(&missing, "tools that the kernel tests use")?;
            }
            return Ok(());
        }
        let mut all = packages(tools.iter().collect());
        // This package has the link /lib.
        all.push("base-files".into());
        let unpacked = Lists::of(workspace, self.arch)?.unpack_all(&all, &self.root);
        unpacked.context("unpacking the guest's tools")
    }

    /// Path on this machine of a path in the guest.
    pub fn real(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Path in the guest of a tool, given by its name, or of a file, given by its path with an
    /// optional final `*`.
    pub fn find(&self, tool: &str) -> Option<PathBuf> {
        if tool.starts_with('/') {
            return self.file(Path::new(tool));
        }
        let own = || self.arch.is_host().then(|| shell::which(tool)).flatten();
        own().or_else(|| {
            let mut paths = DIRECTORIES
                .iter()
                .map(|directory| Path::new(directory).join(tool));
            paths.find(|path| shell::is_executable(&self.real(path)))
        })
    }

    fn file(&self, path: &Path) -> Option<PathBuf> {
        let (directory, name) = (path.parent()?, path.file_name()?.to_str()?);
        let Some(prefix) = name.strip_suffix('*') else {
            return self.real(path).is_file().then(|| path.to_owned());
        };
        let mut entries = fs::read_dir(self.real(directory)).ok()?.flatten();
        let found = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        Some(directory.join(found?.file_name()))
    }

    /// Paths in the guest of the libraries and the loader of a program.
    pub fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>> {
        if !self.arch.is_host() {
            return self.needed(program);
        }
        // ldd fails for scripts and static programs, which have no libraries.
        let Ok(text) = shell::stdout(Command::new("ldd").arg(program)) else {
            return Ok(Vec::new());
        };
        if let Some(line) = text.lines().find(|line| line.contains("not found")) {
            bail!("{} library missing: {}", program.display(), line.trim());
        }
        Ok(paths(&text))
    }

    /// The libraries of a program that this machine cannot execute.
    fn needed(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut programs = vec![program.to_owned()];
        while let Some(program) = programs.pop() {
            let mut readelf = Command::new(self.arch.tool("readelf"));
            let headers = readelf.args(["--wide", "--program-headers", "--dynamic"]);
            let text = shell::stdout(headers.arg(&program))?;
            for name in names(&text) {
                let path = self
                    .library(name)
                    .with_context(|| format!("{} library missing: {name}", program.display()))?;
                if !found.contains(&path) {
                    programs.push(self.real(&path));
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Path in the guest of a library, given by its name, or of the loader, given by its path.
    fn library(&self, name: &str) -> Option<PathBuf> {
        let directories = ["lib", "usr/lib"].map(|directory| Path::new("/").join(directory));
        let directories = directories
            .iter()
            .flat_map(|directory| [directory.join(self.arch.gnu), directory.clone()]);
        // Joining an absolute path yields this path.
        let mut paths = directories.map(|directory| directory.join(name));
        paths.find(|path| self.real(path).is_file())
    }
}

/// Parses `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn paths(ldd: &str) -> Vec<PathBuf> {
    let words = ldd.split_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(Into::into)
        .collect()
}

/// Parses `[Requesting program interpreter: /lib/ld.so]` and
/// `0x1 (NEEDED) Shared library: [libc.so.6]`.
fn names(readelf: &str) -> Vec<&str> {
    const BEFORE: [&str; 2] = ["program interpreter: ", "Shared library: ["];
    let lines = readelf.lines().filter_map(|line| {
        let (_, rest) = BEFORE.iter().find_map(|words| line.split_once(words))?;
        Some(rest.split_once(']')?.0)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{names, paths};

    #[test]
    fn libraries_are_read_from_ldd() {
        let text =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        let expected: [PathBuf; 2] = ["/lib/libc.so.6".into(), "/lib64/ld.so".into()];
        assert_eq!(paths(text), expected);
    }

    #[test]
    fn libraries_are_read_from_readelf() {
        let text = "      [Requesting program interpreter: /lib/ld.so]\n\
                    0x01 (NEEDED)             Shared library: [libc.so.6]\n\
                    0x0e (SONAME)             Library soname: [liba.so]\n";
        assert_eq!(names(text), ["/lib/ld.so", "libc.so.6"]);
    }
}
