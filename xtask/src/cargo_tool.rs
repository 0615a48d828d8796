//! Tools from crates.io, built once per user.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

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

    /// `cargo install` trusts the registry: it compares the file with the checksum there.
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
        for (file, text) in [("Cargo.toml", &*manifest), ("lib.rs", "")] {
            shell::write_unprivileged(&project.join(file), text)?;
        }
        let lock = project.join("Cargo.lock");
        let _ = fs::remove_file(&lock);
        let mut generate = workspace.cargo();
        generate
            .args(["generate-lockfile", "--quiet", "--manifest-path"])
            .arg(project.join("Cargo.toml"));
        shell::run_quietly(shell::unprivileged(&mut generate))?;
        let lock = fs::read_to_string(&lock)?;
        let heading = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        let package = lock.split("[[package]]").find(|it| it.contains(&heading));
        let mut lines = package.into_iter().flat_map(str::lines);
        let found = lines.find_map(|line| line.strip_prefix("checksum = \"")?.strip_suffix('"'));
        if found != Some(checksum) {
            let found = found.unwrap_or("none");
            bail!("{name} {version}: expected the checksum {checksum}, the registry has {found}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;

    const NAME: &str = "checked-tool";
    const VERSION: &str = "1.0.0";

    fn sum(path: &Path) -> String {
        let sum = shell::stdout(Command::new("sha256sum").arg(path)).expect("coreutils");
        sum.split_whitespace().next().expect("a sum").to_owned()
    }

    /// A registry in a directory, in place of crates.io, with one tool. Its build script leaves a file.
    struct Registry {
        directory: tempfile::TempDir,
        workspace: Workspace,
    }

    impl Registry {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let root = directory.path();
            let write = |path: &Path, text: &str| {
                fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
                fs::write(path, text).expect("written");
            };
            let source = root.join(format!("{NAME}-{VERSION}"));
            let package = format!("name = \"{NAME}\"\nversion = \"{VERSION}\"\n");
            write(
                &source.join("Cargo.toml"),
                &format!("[package]\n{package}edition = \"2024\"\n"),
            );
            write(
                &source.join("Cargo.lock"),
                &format!("version = 4\n\n[[package]]\n{package}"),
            );
            write(&source.join("src/main.rs"), "fn main() {}\n");
            let ran = root.join("ran");
            write(
                &source.join("build.rs"),
                &format!("fn main() {{ std::fs::write({ran:?}, \"\").unwrap(); }}\n"),
            );
            let registry = root.join("registry");
            let config = format!(
                "[source.crates-io]\nreplace-with = \"here\"\n[source.here]\nlocal-registry = {registry:?}\n"
            );
            write(&root.join(".cargo/config.toml"), &config);
            let workspace = Workspace {
                root: root.to_owned(),
                target: root.join("target"),
                rust_version: (1, 0),
            };
            let this = Self {
                directory,
                workspace,
            };
            fs::create_dir(&registry).expect("a directory");
            let mut pack = Command::new("tar");
            pack.arg("--create")
                .arg("--gzip")
                .arg("--file")
                .arg(this.archive());
            pack.arg("--directory").arg(&this.workspace.root);
            shell::run_quietly(pack.arg(format!("{NAME}-{VERSION}"))).expect("packed");
            let entry = json!({
                "name": NAME, "vers": VERSION, "deps": [], "features": {}, "yanked": false,
                "cksum": sum(&this.archive()),
            });
            let index = registry.join("index/ch/ec").join(NAME);
            write(&index, &format!("{entry}\n"));
            this
        }

        fn archive(&self) -> PathBuf {
            let name = format!("registry/{NAME}-{VERSION}.crate");
            self.directory.path().join(name)
        }

        /// Installs the tool with this pinned checksum; returns the program.
        fn install(&self, checksum: &str) -> Result<PathBuf> {
            let tool = CargoTool {
                name: NAME,
                version: VERSION,
                checksum: checksum.to_owned().leak(),
            };
            let root = self.directory.path().join("installed");
            // `cargo install` ignores the settings of other directories.
            let home = self.directory.path().join(".cargo");
            tool.build(&self.workspace, &root, &[], &[("CARGO_HOME", &home)])?;
            Ok(root.join("bin").join(NAME))
        }

        #[track_caller]
        fn assert_refused(&self, checksum: &str, expected: &[&str]) {
            let error = self.install(checksum).expect_err("another file");
            let error = format!("{error:#}");
            for word in expected {
                assert!(error.contains(word), "{word}: {error}");
            }
            assert!(!self.directory.path().join("ran").exists(), "{error}");
            let installed = self.directory.path().join("installed/bin");
            assert!(!installed.exists(), "{error}");
        }
    }

    #[test]
    fn tool_with_the_pinned_checksum_is_installed() {
        let registry = Registry::new();
        let program = registry.install(&sum(&registry.archive()));
        shell::run_quietly(&mut Command::new(program.expect("installed"))).expect("it runs");
        assert!(registry.directory.path().join("ran").exists());
    }

    /// The registry has replaced the file and its checksum.
    #[test]
    fn tool_with_another_checksum_is_refused() {
        let registry = Registry::new();
        let pinned = "0".repeat(64);
        let found = sum(&registry.archive());
        registry.assert_refused(&pinned, &[NAME, VERSION, &pinned, &found]);
    }

    /// The file is not that of its checksum.
    #[test]
    fn damaged_tool_is_refused() {
        let registry = Registry::new();
        let pinned = sum(&registry.archive());
        let mut content = fs::read(registry.archive()).expect("there");
        content.extend(b"more");
        fs::write(registry.archive(), content).expect("written");
        registry.assert_refused(&pinned, &[NAME, "checksum"]);
    }
}
