//! Directories of the project and of its build outputs.

use std::{
    env,
    ffi::OsString,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use memchr::memmem;
use serde_json::Value;

use crate::shell;

/// The cargo workspace.
pub struct Workspace {
    pub root: PathBuf,
    pub target: PathBuf,
    /// The minimum version of the compiler, as (major, minor).
    pub rust_version: (u32, u32),
}

impl Workspace {
    pub fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let json = shell::stdout(
            Command::new(cargo())
                .args([
                    "metadata",
                    "--no-deps",
                    "--format-version=1",
                    "--manifest-path",
                ])
                .arg(manifest),
        )?;
        let metadata: Value = serde_json::from_str(&json).context("reading cargo metadata")?;
        let path = |key: &str| {
            let value = metadata[key].as_str();
            value
                .map(PathBuf::from)
                .with_context(|| format!("cargo metadata without {key}"))
        };
        let rust_version = metadata["packages"][0]["rust_version"]
            .as_str()
            .unwrap_or_default();
        Ok(Self {
            root: path("workspace_root")?,
            target: path("target_directory")?,
            rust_version: parse_version(rust_version).unwrap_or((1, 0)),
        })
    }

    /// Directory of the tools that xtask installs.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Paths of this machine, and what a program has in their place.
    fn machine_paths(&self) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
        let root = Some((self.root.clone(), "profiler"));
        root.into_iter().chain(home.map(|home| (home, "cargo")))
    }

    /// Flags that leave the paths of this machine out of a program; `option` is the compiler's.
    pub fn remapped_paths(&self, option: &str) -> Vec<String> {
        self.machine_paths()
            .map(|(from, to)| format!("{option}={}={to}", from.display()))
            .collect()
    }

    /// A path of this machine that a program has, with which other directories give other programs.
    pub fn path_within(&self, program: &[u8]) -> Option<PathBuf> {
        let has = |path: &Path| memmem::find(program, path.as_os_str().as_bytes()).is_some();
        self.machine_paths()
            .map(|(path, _)| path)
            .find(|path| has(path))
    }

    /// For [`Self::remapped_paths`].
    pub const RUSTC: &str = "--remap-path-prefix";
    pub const CLANG: &str = "-ffile-prefix-map";

    /// A cargo command in the workspace, with the user's compiler.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.root);
        command
    }
}

/// The cargo that started xtask, otherwise the one on PATH.
pub fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// (major, minor) of a version such as `1.96.0-nightly` or Debian's `1.96.0+dfsg1-1`.
pub fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn compiler_versions_are_parsed() {
        assert_eq!(parse_version("1.97.0-nightly"), Some((1, 97)));
        assert_eq!(parse_version("1.96.0+dfsg1-1~deb12u2"), Some((1, 96)));
        assert_eq!(parse_version("22.1.8"), Some((22, 1)));
        assert_eq!(parse_version("1.88"), Some((1, 88)));
        assert_eq!(parse_version(""), None);
    }
}
