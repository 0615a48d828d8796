//! Programs from crates.io that the project builds for itself below `target/`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{shell, workspace::Workspace};

/// A crate in the one version that is built. Its own Cargo.lock pins what it depends on.
pub struct CargoTool {
    pub name: &'static str,
    pub version: &'static str,
    /// SHA-256 of the crate, as crates.io has it.
    pub checksum: &'static str,
}

impl CargoTool {
    /// Builds it into `root`, with these options of `cargo install` and variables, as the user behind sudo.
    ///
    /// # Errors
    ///
    /// When the registry has another crate under this name and version, or it does not build.
    pub fn install(
        &self,
        workspace: &Workspace,
        root: &Path,
        options: &[&str],
        variables: &[(&str, &Path)],
    ) -> Result<()> {
        let build = workspace.tools().join("build");
        for directory in [root, &build] {
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
        // Some hundred megabytes that nothing needs any more.
        let _ = fs::remove_dir_all(build);
        Ok(())
    }

    /// `cargo install` believes the registry; a lock file with the checksum makes cargo compare.
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
            .with_context(|| format!("{name} {version} is not the crate that was pinned"))
    }
}
