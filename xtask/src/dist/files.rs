//! The files of all packages, below `/`.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{Source, binary::Binary};
use crate::{shell, workspace::Workspace};

/// Configuration files, which an upgrade keeps.
pub const CONFIGURATION: [&str; 1] = ["/etc/profiler.toml"];
/// Where the packages install the program. The files in `docs/deploy` have the place of a program
/// that was copied by hand.
const PROGRAM: &str = "/usr/bin/profiler";
const COPIED: &str = "/usr/local/bin/profiler";

/// Content and permissions by absolute path.
pub struct Files(BTreeMap<PathBuf, (Vec<u8>, u32)>);

impl Files {
    /// The files of the main package. `runnable` is the program for this machine, which prints
    /// manual pages and completions, `scratch` a directory for them.
    pub fn new(
        workspace: &Workspace,
        binary: &Binary,
        runnable: &Path,
        scratch: &Path,
    ) -> Result<Self> {
        let mut files = Self(BTreeMap::new());
        let read = |path: &str| {
            let path = workspace.root.join(path);
            fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let program = fs::read(&binary.program)
            .with_context(|| format!("reading {}", binary.program.display()))?;
        files.add(PROGRAM, program, 0o755);
        for (path, source) in [
            ("/etc/profiler.toml", "xtask/dist/profiler.toml"),
            (
                "/usr/lib/tmpfiles.d/profiler.conf",
                "xtask/dist/profiler.tmpfiles",
            ),
            (
                "/usr/lib/sysusers.d/profiler.conf",
                "docs/deploy/profiler.sysusers",
            ),
            ("/usr/include/profiler_mark.h", "clients/c/profiler_mark.h"),
            (
                "/usr/share/profiler/profiler-mark.sh",
                "clients/bash/profiler-mark.sh",
            ),
            (
                "/usr/share/profiler/mpi/profiler_mpi.c",
                "clients/mpi/profiler_mpi.c",
            ),
            ("/usr/share/profiler/mpi/Makefile", "clients/mpi/Makefile"),
        ] {
            files.add(path, read(source)?, 0o644);
        }
        for unit in ["profiler.service", "profiler-serve.service"] {
            let text = deployed(&read(&format!("docs/deploy/{unit}"))?);
            files.add(format!("/usr/lib/systemd/system/{unit}"), text, 0o644);
        }
        for (scheduler, script, permissions) in [
            ("slurm", "prolog.sh", 0o755),
            ("slurm", "epilog.sh", 0o755),
            ("oar", "prologue.sh", 0o755),
            ("oar", "epilogue.sh", 0o755),
            // PBS imports it.
            ("pbs", "hook.py", 0o644),
        ] {
            let text = deployed(&read(&format!("docs/deploy/{scheduler}-{script}"))?);
            let path = format!("/usr/share/profiler/{scheduler}/{script}");
            files.add(path, text, permissions);
        }
        files.documentation(workspace)?;
        files.printed(runnable, &scratch.join("man"))?;
        Ok(files)
    }

    /// Only a program.
    pub fn program(program: &Path) -> Result<Self> {
        let mut files = Self(BTreeMap::new());
        let content =
            fs::read(program).with_context(|| format!("reading {}", program.display()))?;
        files.add(PROGRAM, content, 0o755);
        Ok(files)
    }

    fn add(&mut self, path: impl Into<PathBuf>, content: Vec<u8>, permissions: u32) {
        self.0.insert(path.into(), (content, permissions));
    }

    fn documentation(&mut self, workspace: &Workspace) -> Result<()> {
        let place = Path::new("/usr/share/doc/profiler");
        let names = ["README.md", "LICENSE-APACHE", "LICENSE-GPL", "LICENSE-MIT"];
        let mut paths: Vec<PathBuf> = names.iter().map(Into::into).collect();
        let entries = fs::read_dir(workspace.root.join("docs"))?;
        for entry in entries {
            let name = PathBuf::from(entry?.file_name());
            if name
                .extension()
                .is_some_and(|extension| extension == "md" || extension == "png")
            {
                paths.push(Path::new("docs").join(name));
            }
        }
        for path in paths {
            let content = fs::read(workspace.root.join(&path))?;
            // Files of documents that link to each other stay in these directories.
            self.add(place.join(path), content, 0o644);
        }
        Ok(())
    }

    /// What the program prints itself.
    fn printed(&mut self, runnable: &Path, directory: &Path) -> Result<()> {
        for (shell, place) in [
            ("bash", "/usr/share/bash-completion/completions/profiler"),
            ("fish", "/usr/share/fish/vendor_completions.d/profiler.fish"),
            ("zsh", "/usr/share/zsh/site-functions/_profiler"),
        ] {
            let script = shell::bytes(Command::new(runnable).args(["completions", shell]))?;
            self.add(place, script, 0o644);
        }
        let _ = fs::remove_dir_all(directory);
        shell::run_quietly(Command::new(runnable).args(["man", "--all"]).arg(directory))?;
        for section in fs::read_dir(directory)? {
            let section = section?.path();
            for page in fs::read_dir(&section)? {
                let page = page?.path();
                let name = page.strip_prefix(directory)?;
                let place = Path::new("/usr/share/man").join(name);
                self.add(with_suffix(&place, ".gz"), gzip(&page)?, 0o644);
            }
        }
        Ok(())
    }

    /// These files, for reading only.
    pub fn of(files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Self {
        let files = files.into_iter();
        Self(
            files
                .map(|(path, content)| (path, (content, 0o644)))
                .collect(),
        )
    }

    /// Size of all contents.
    pub fn bytes(&self) -> u64 {
        let sizes = self.0.values().map(|(content, _)| content.len() as u64);
        sizes.sum()
    }

    /// Adds a file of one format of packages.
    pub fn with(mut self, path: impl Into<PathBuf>, content: Vec<u8>) -> Self {
        self.add(path, content, 0o644);
        self
    }

    /// The same files at other places; files without a place are left out.
    pub fn placed(self, place: impl Fn(&Path) -> Option<PathBuf>) -> Self {
        let files = self.0.into_iter();
        Self(
            files
                .filter_map(|(path, file)| Some((place(&path)?, file)))
                .collect(),
        )
    }

    /// Paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// Writes the files below a new directory, with the time of the source.
    pub fn write(&self, root: &Path, source: &Source) -> Result<()> {
        let _ = fs::remove_dir_all(root);
        for (path, (content, permissions)) in &self.0 {
            let path = root.join(path.strip_prefix("/").unwrap_or(path));
            let parent = path.parent().context("a file has a directory")?;
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(&path, content))
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(*permissions)))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        // Also independent of the umask.
        let time = format!("@{}", source.time);
        let mut directories = Command::new("find");
        directories
            .arg(root)
            .args(["-type", "d", "-exec", "chmod", "0755", "{}", "+"]);
        shell::run_quietly(&mut directories)?;
        let mut touch = Command::new("find");
        touch
            .arg(root)
            .args(["-exec", "touch", "-h", "-d", &time, "{}", "+"]);
        shell::run_quietly(&mut touch)
    }
}

/// A file of `docs/deploy` for an installed program, without the steps of an installation by hand.
fn deployed(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text).replace(COPIED, PROGRAM);
    let mut lines = Vec::new();
    let mut is_installation = false;
    for line in text.lines() {
        let comment = line.trim_end();
        if let Some(before) = comment.strip_suffix(" Installation:") {
            is_installation = true;
            lines.push(before.to_owned());
        } else if !(is_installation && (comment == "#" || comment.starts_with("#   "))) {
            is_installation = false;
            lines.push(line.to_owned());
        }
    }
    (lines.join("\n") + "\n").into_bytes()
}

/// Compresses without a name and a time, for the same bytes each time.
pub fn gzip(path: &Path) -> Result<Vec<u8>> {
    shell::bytes(Command::new("gzip").args(["-9", "-n", "-c"]).arg(path))
}

pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::deployed;

    #[test]
    fn steps_by_hand_are_not_in_packages() {
        let text = "# About. Installation:\n#\n#   install /usr/local/bin/profiler\n\n[Unit]\n\
                    ExecStart=/usr/local/bin/profiler run\n# Comment.\n";
        let expected = "# About.\n\n[Unit]\nExecStart=/usr/bin/profiler run\n# Comment.\n";
        assert_eq!(deployed(text.as_bytes()), expected.as_bytes());
    }
}
