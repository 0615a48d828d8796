//! Debian and Ubuntu packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    preparation,
    shell::{self, progress},
    workspace::Workspace,
};

/// Whether xtask can install packages itself.
pub fn available() -> bool {
    shell::is_root() && shell::which("apt-get").is_some()
}

/// The command with which a user installs packages.
pub fn command(packages: &[String]) -> String {
    let sudo = if shell::is_root() { "" } else { "sudo " };
    format!(
        "{sudo}apt-get install --no-install-recommends {}",
        packages.join(" ")
    )
}

/// The version that would be installed.
pub fn candidate(package: &str) -> Option<String> {
    HOST_LISTS.candidate(package)
}

/// Names of packages that match a regular expression.
pub fn names(pattern: &str) -> Vec<String> {
    HOST_LISTS.names(pattern)
}

/// Updates the package lists, once.
pub fn update() {
    HOST_LISTS.update();
}

/// Installs the packages of missing programs.
pub fn obtain(programs: &[(&str, &str)], purpose: &str) -> Result<()> {
    let missing = programs
        .iter()
        .filter(|(program, _)| shell::which(program).is_none());
    let packages: Vec<String> = missing.map(|(_, package)| (*package).to_owned()).collect();
    if packages.is_empty() {
        return Ok(());
    }
    if !available() {
        bail!("{} missing: {}", packages.join(", "), command(&packages));
    }
    install(&packages, purpose)
}

/// Installs packages; `purpose` is reported to the user.
pub fn install(packages: &[String], purpose: &str) -> Result<()> {
    if packages.iter().any(|package| candidate(package).is_none()) {
        update();
    }
    progress(&format!("installing {} ({purpose})", packages.join(" ")));
    preparation::timed(|| {
        if install_now(packages).is_ok() {
            return Ok(());
        }
        // Outdated package lists name files that the mirror no longer has.
        update();
        install_now(packages).with_context(|| format!("installing {}", packages.join(" ")))
    })
}

fn install_now(packages: &[String]) -> Result<()> {
    shell::run_quietly(
        locked("apt-get")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// A command that waits for other users of this machine's packages. apt-get itself fails if a lock
/// is taken.
fn locked(program: &str) -> Command {
    let mut command = Command::new("flock");
    command.args(["/var/lib/apt", program]);
    command.args(["-o", "DPkg::Lock::Timeout=600"]);
    command
}

/// The package of an installed file, and its version.
pub fn owner(file: &Path) -> Option<(String, String)> {
    let found = shell::stdout(Command::new("dpkg").arg("--search").arg(file)).ok()?;
    let package = found.split([':', ',']).next()?.to_owned();
    let query = ["--show", "--showformat=${Version}", &package];
    let version = shell::stdout(Command::new("dpkg-query").args(query)).ok()?;
    Some((package, version))
}

/// The package lists of one architecture.
pub struct Lists {
    /// Options that select the lists, empty for this machine's lists.
    options: Vec<String>,
    updated: Once,
}

/// The lists of this machine.
static HOST_LISTS: Lists = Lists {
    options: Vec::new(),
    updated: Once::new(),
};

impl Lists {
    /// Lists of another architecture are below `target/`, because `dpkg --add-architecture` needs
    /// root and changes this machine.
    pub fn of(workspace: &Workspace, arch: &Arch) -> Result<Self> {
        if arch.is_host() {
            return Ok(Self {
                options: Vec::new(),
                updated: Once::new(),
            });
        }
        let directory = &workspace.target.join("apt").join(arch.debian);
        let create = || {
            fs::create_dir_all(directory.join("lists/partial"))?;
            fs::create_dir_all(directory.join("archives/partial"))?;
            // No package is installed, so that all dependencies are fetched.
            fs::write(directory.join("status"), "")
        };
        create().with_context(|| format!("creating {}", directory.display()))?;
        let directory = directory.display();
        let options = [
            format!("APT::Architecture={}", arch.debian),
            format!("APT::Architectures={}", arch.debian),
            format!("Dir::State={directory}"),
            format!("Dir::State::Lists={directory}/lists"),
            format!("Dir::State::Status={directory}/status"),
            format!("Dir::Cache={directory}"),
            format!("Dir::Cache::Archives={directory}/archives"),
            "Debug::NoLocking=true".into(),
        ];
        Ok(Self {
            options: options
                .into_iter()
                .flat_map(|option| ["-o".into(), option])
                .collect(),
            updated: Once::new(),
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options);
        command
    }

    /// The version that would be installed.
    pub fn candidate(&self, package: &str) -> Option<String> {
        let policy = shell::stdout(self.command("apt-cache").args(["policy", package])).ok()?;
        let version = policy
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
        (version != "(none)").then(|| version.to_owned())
    }

    /// Names of packages that match a regular expression.
    pub fn names(&self, pattern: &str) -> Vec<String> {
        let mut search = self.command("apt-cache");
        shell::stdout(search.args(["search", "--names-only", pattern]))
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    }

    /// Updates the lists once, if xtask is permitted to.
    pub fn update(&self) {
        if self.options.is_empty() && !available() {
            return;
        }
        self.updated.call_once(|| {
            progress("updating the package lists");
            // If only one of several repositories is unreachable, the installation may still
            // succeed.
            let mut update = if self.options.is_empty() {
                locked("apt-get")
            } else {
                self.command("apt-get")
            };
            let _ = shell::run_quietly(update.args(["update", "-q"]));
        });
    }

    /// Names of a package's dependencies.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let depends = shell::stdout(self.command("apt-cache").args(["depends", package]))?;
        let names = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Fetches and unpacks packages. The directory is created only when it is complete.
    pub fn unpack(&self, packages: &[String], directory: &Path) -> Result<()> {
        self.fetch_into(&packages.join(" "), directory, |fetched| {
            let mut fetch = self.command("apt-get");
            fetch.args(["download", "-q"]).args(packages);
            fetch.current_dir(fetched);
            fetch
        })
    }

    /// Fetches and unpacks packages with all dependencies, for lists other than this machine's.
    pub fn unpack_all(&self, packages: &[String], directory: &Path) -> Result<()> {
        self.fetch_into(&packages.join(" "), directory, |fetched| {
            let mut fetch = self.command("apt-get");
            fetch
                .args(["install", "--download-only", "-q", "-y"])
                .arg("--no-install-recommends")
                .args(["-o", &format!("Dir::Cache::Archives={}", fetched.display())])
                .args(packages);
            fetch
        })
    }

    fn fetch_into(
        &self,
        packages: &str,
        directory: &Path,
        fetch: impl Fn(&Path) -> Command,
    ) -> Result<()> {
        progress(&format!("fetching {packages}"));
        unpack(directory, &fetch)
            .or_else(|_| {
                // Outdated package lists name files that the mirror no longer has.
                self.update();
                unpack(directory, &fetch)
            })
            .with_context(|| format!("fetching {packages}"))
    }
}

fn unpack(directory: &Path, fetch: impl Fn(&Path) -> Command) -> Result<()> {
    let sibling = |suffix: &str| {
        let mut name = directory.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (fetched, partial) = (sibling(".fetched"), sibling(".partial"));
    let unpacked = unpack_by(directory, &fetched, &partial, fetch);
    for left in [&fetched, &partial] {
        let _ = fs::remove_dir_all(left);
    }
    unpacked
}

/// apt-get compares each file with the checksum in the signed lists before it is unpacked.
fn unpack_by(
    directory: &Path,
    fetched: &Path,
    partial: &Path,
    fetch: impl Fn(&Path) -> Command,
) -> Result<()> {
    for directory in [&*fetched.join("partial"), partial] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
    }
    shell::run_quietly(&mut fetch(fetched))?;
    let archives = packages_in(fetched)?;
    if archives.is_empty() {
        bail!("no package was fetched");
    }
    for archive in archives {
        let mut extract = Command::new("dpkg-deb");
        shell::run_quietly(extract.arg("--extract").args([&*archive, partial]))?;
    }
    let _ = fs::remove_dir_all(directory);
    fs::rename(partial, directory).with_context(|| format!("creating {}", directory.display()))
}

fn packages_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "checked-tool";

    /// A repository in a directory with one package, and its lists.
    struct Repository {
        directory: tempfile::TempDir,
        lists: Lists,
    }

    impl Repository {
        /// With the checksum of the package, or another one.
        fn new(checksum: Option<&str>) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let root = directory.path();
            let write = |name: &str, text: &str| {
                let path = root.join(name);
                fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
                fs::write(path, text).expect("written");
            };
            let control = format!(
                "Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@b>\nDescription: a\n"
            );
            write("tree/DEBIAN/control", &control);
            write("tree/usr/share/tool", "content");
            let archive = root.join("tool.deb");
            let mut build = Command::new("dpkg-deb");
            build.arg("--build").args([&root.join("tree"), &archive]);
            shell::run_quietly(&mut build).expect("a package");
            let sum = shell::stdout(Command::new("sha256sum").arg(&archive)).expect("coreutils");
            let sum = checksum.or_else(|| sum.split_whitespace().next());
            let size = fs::metadata(&archive).expect("there").len();
            let entry = format!(
                "{control}Filename: ./tool.deb\nSize: {size}\nSHA256: {}\n",
                sum.expect("a sum")
            );
            write("Packages", &entry);
            let place = root.display();
            write(
                "sources.list",
                &format!("deb [trusted=yes] file:{place} ./\n"),
            );
            write("status", "");
            for name in ["state/lists/partial", "cache/archives/partial"] {
                fs::create_dir_all(root.join(name)).expect("directories");
            }
            let options = [
                format!("Dir::Etc::sourcelist={place}/sources.list"),
                "Dir::Etc::sourceparts=-".to_owned(),
                format!("Dir::State={place}/state"),
                format!("Dir::State::Status={place}/status"),
                format!("Dir::Cache={place}/cache"),
                "APT::Sandbox::User=root".to_owned(),
                "Debug::NoLocking=true".to_owned(),
            ];
            let options = options.into_iter().flat_map(|option| ["-o".into(), option]);
            let lists = Lists {
                options: options.collect(),
                updated: Once::new(),
            };
            Self { directory, lists }
        }

        fn unpack(&self) -> Result<PathBuf> {
            let into = self.directory.path().join("unpacked/tool");
            fs::create_dir_all(into.parent().expect("a directory")).expect("directories");
            self.lists.unpack(&[NAME.to_owned()], &into)?;
            Ok(into)
        }
    }

    #[test]
    fn package_with_its_checksum_is_unpacked() {
        let repository = Repository::new(None);
        let unpacked = repository.unpack().expect("the same file");
        let content = fs::read_to_string(unpacked.join("usr/share/tool"));
        assert_eq!(content.expect("unpacked"), "content");
    }

    #[test]
    fn package_with_another_checksum_is_refused() {
        let listed = "0".repeat(64);
        let repository = Repository::new(Some(&listed));
        let error = format!("{:#}", repository.unpack().expect_err("another file"));
        for word in ["Hash Sum mismatch", NAME, &listed] {
            assert!(error.contains(word), "{word}: {error}");
        }
        let left = fs::read_dir(repository.directory.path().join("unpacked")).expect("there");
        assert_eq!(left.count(), 0, "{error}");
    }
}
