//! Tools from crates.io, built once per user.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{preparation, shell, workspace::Workspace};

/// A crate in a pinned version. Its own Cargo.lock pins its dependencies.
pub struct CargoTool {
    pub name: &'static str,
    pub version: &'static str,
    /// SHA-256 of the crate file on crates.io.
    pub checksum: &'static str,
}

impl CargoTool {
    /// The tool, which may not exist yet. Each version, checksum and variant has a directory, in the
    /// user's cache if there is one: a tool takes minutes to build, and all checkouts use it.
    pub fn program(&self, workspace: &Workspace, variant: &str) -> PathBuf {
        self.directory(workspace, variant)
            .join("bin")
            .join(self.name)
    }

    fn directory(&self, workspace: &Workspace, variant: &str) -> PathBuf {
        let cache = shell::cache_directory().map(|cache| cache.join("profiler-tools"));
        let name = format!(
            "{}-{}-{}{variant}",
            self.name,
            self.version,
            &self.checksum[..8]
        );
        cache.unwrap_or_else(|| workspace.tools()).join(name)
    }

    /// Builds the tool with these options of `cargo install` and these environment variables, as the
    /// user who called sudo.
    ///
    /// # Errors
    ///
    /// If the registry has another crate under this name and version, or the build fails.
    pub fn install(
        &self,
        workspace: &Workspace,
        variant: &str,
        options: &[&str],
        variables: &[(&str, &Path)],
    ) -> Result<PathBuf> {
        let root = self.directory(workspace, variant);
        preparation::timed(|| self.build(workspace, &root, options, variables))?;
        Ok(self.program(workspace, variant))
    }

    fn build(
        &self,
        workspace: &Workspace,
        root: &Path,
        options: &[&str],
        variables: &[(&str, &Path)],
    ) -> Result<()> {
        let build = workspace.tools().join("build");
        let tools = root.parent().unwrap_or(root);
        for directory in [tools.parent().unwrap_or(tools), tools, root, &build] {
            shell::make_unprivileged(directory)?;
        }
        self.verify(workspace, &build.join("pin"))?;
        let mut install = workspace.cargo();
        install
            .args(["install", self.name, "--version", self.version])
            .args(["--locked", "--force", "--quiet"])
            .args(options)
            .arg("--root")
            .arg(root)
            .arg("--target-dir")
            .arg(&build)
            .envs(variables.iter().copied());
        shell::run_quietly(shell::unprivileged(&mut install))?;
        // Some hundred megabytes.
        let _ = fs::remove_dir_all(build);
        Ok(())
    }

    /// `cargo install` trusts the registry; with a lock file, cargo compares the checksum.
    fn verify(&self, workspace: &Workspace, project: &Path) -> Result<()> {
        shell::make_unprivileged(project)?;
        let Self {
            name,
            version,
            checksum,
        } = self;
        let manifest = format!(
            "[package]\nname = \"pin\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
             [dependencies]\n{name} = {{ version = \"={version}\", default-features = false }}\n"
        );
        let lock = format!(
            "version = 4\n\n[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\
             source = \"registry+https://github.com/rust-lang/crates.io-index\"\nchecksum = \"{checksum}\"\n"
        );
        for (file, text) in [
            ("Cargo.toml", &*manifest),
            ("Cargo.lock", &lock),
            ("lib.rs", ""),
        ] {
            shell::write_unprivileged(&project.join(file), text)?;
        }
        let mut update = workspace.cargo();
        update
            .args(["update", "--workspace", "--quiet", "--manifest-path"])
            .arg(project.join("Cargo.toml"));
        shell::run_quietly(shell::unprivileged(&mut update))
            .with_context(|| format!("{name} {version} differs from the pinned crate"))
    }
}
