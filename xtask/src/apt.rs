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
    shell::{self, progress},
    workspace::Workspace,
};

/// Whether packages can be installed without asking anybody.
pub fn available() -> bool {
    shell::is_root() && shell::which("apt-get").is_some()
}

/// The command that a user with the right to do so would type.
pub fn command(packages: &[String]) -> String {
    let sudo = if shell::is_root() { "" } else { "sudo " };
    format!(
        "{sudo}apt-get install --no-install-recommends {}",
        packages.join(" ")
    )
}

/// The version that an installation would bring.
pub fn candidate(package: &str) -> Option<String> {
    OWN.candidate(package)
}

/// Names of the known packages that match the regular expression.
pub fn names(pattern: &str) -> Vec<String> {
    OWN.names(pattern)
}

/// Brings the package lists up to date, once.
pub fn update() {
    OWN.update();
}

/// Installs the packages of those programs that are missing.
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

/// Installs what is missing; `purpose` tells the user why.
pub fn install(packages: &[String], purpose: &str) -> Result<()> {
    if packages.iter().any(|package| candidate(package).is_none()) {
        update();
    }
    progress(&format!("installing {} ({purpose})", packages.join(" ")));
    if install_now(packages).is_ok() {
        return Ok(());
    }
    // Package lists that are weeks old name files that the mirror no longer has.
    update();
    install_now(packages).with_context(|| format!("installing {}", packages.join(" ")))
}

fn install_now(packages: &[String]) -> Result<()> {
    shell::run_quietly(
        alone("apt-get")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// A command that waits for the other tiers' use of this machine's packages: apt-get fails when it finds a lock.
fn alone(program: &str) -> Command {
    let mut command = Command::new("flock");
    command.args(["/var/lib/apt", program]);
    command.args(["-o", "DPkg::Lock::Timeout=600"]);
    command
}

/// The package that an installed file is from, and its version.
pub fn owner(file: &Path) -> Option<(String, String)> {
    let said = shell::stdout(Command::new("dpkg").arg("--search").arg(file)).ok()?;
    let package = said.split([':', ',']).next()?.to_owned();
    let query = ["--show", "--showformat=${Version}", &package];
    let version = shell::stdout(Command::new("dpkg-query").args(query)).ok()?;
    Some((package, version))
}

/// The lists of packages for one architecture.
pub struct Lists {
    /// Where they are, if they are not this machine's own.
    options: Vec<String>,
    updated: Once,
}

/// Those of this machine.
static OWN: Lists = Lists {
    options: Vec::new(),
    updated: Once::new(),
};

impl Lists {
    /// Those of another architecture are in a directory of ours: `dpkg --add-architecture` would change this machine for
    /// good, and needs root.
    pub fn of(workspace: &Workspace, arch: &Arch) -> Result<Self> {
        if arch.is_host() {
            return Ok(Self {
                options: Vec::new(),
                updated: Once::new(),
            });
        }
        let directory = &workspace.target.join("apt").join(arch.debian);
        let make = || {
            fs::create_dir_all(directory.join("lists/partial"))?;
            fs::create_dir_all(directory.join("archives/partial"))?;
            // Nothing is installed: what a package depends on is all to be fetched.
            fs::write(directory.join("status"), "")
        };
        make().with_context(|| format!("making {}", directory.display()))?;
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

    /// The version that an installation would bring.
    pub fn candidate(&self, package: &str) -> Option<String> {
        let policy = shell::stdout(self.command("apt-cache").args(["policy", package])).ok()?;
        let version = policy
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
        (version != "(none)").then(|| version.to_owned())
    }

    /// Names of the known packages that match the regular expression.
    pub fn names(&self, pattern: &str) -> Vec<String> {
        let mut search = self.command("apt-cache");
        shell::stdout(search.args(["search", "--names-only", pattern]))
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    }

    /// Brings the lists up to date, once, if that is for us to do.
    pub fn update(&self) {
        if self.options.is_empty() && !available() {
            return;
        }
        self.updated.call_once(|| {
            progress("bringing the package lists up to date");
            // One unreachable repository among several is no reason to stop: the installation tells.
            let mut update = if self.options.is_empty() {
                alone("apt-get")
            } else {
                self.command("apt-get")
            };
            let _ = shell::run_quietly(update.args(["update", "-q"]));
        });
    }

    /// Names of the packages that a package depends on.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let depends = shell::stdout(self.command("apt-cache").args(["depends", package]))?;
        let names = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Fetches and unpacks packages; the directory appears when all is there.
    pub fn unpack(&self, packages: &[String], directory: &Path) -> Result<()> {
        self.fetch_into(&packages.join(" "), directory, |fetched| {
            let mut fetch = self.command("apt-get");
            fetch.args(["download", "-q"]).args(packages);
            fetch.current_dir(fetched);
            fetch
        })
    }

    /// The same of several, with all that they depend on. Of lists other than this machine's own.
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
        what: &str,
        directory: &Path,
        fetch: impl Fn(&Path) -> Command,
    ) -> Result<()> {
        progress(&format!("fetching {what}"));
        unpack(directory, &fetch)
            .or_else(|_| {
                // Package lists that are weeks old name files that the mirror no longer has.
                self.update();
                unpack(directory, &fetch)
            })
            .with_context(|| format!("fetching {what}"))
    }
}

fn unpack(directory: &Path, fetch: impl Fn(&Path) -> Command) -> Result<()> {
    let beside = |ending: &str| {
        let mut name = directory.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let (fetched, partial) = (beside(".fetched"), beside(".partial"));
    for directory in [&fetched.join("partial"), &partial] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    shell::run_quietly(&mut fetch(&fetched))?;
    let archives = packages_in(&fetched)?;
    if archives.is_empty() {
        bail!("no package came");
    }
    for archive in archives {
        let mut extract = Command::new("dpkg-deb");
        shell::run_quietly(extract.arg("--extract").args([&archive, &partial]))?;
    }
    let _ = fs::remove_dir_all(&fetched);
    let _ = fs::remove_dir_all(directory);
    fs::rename(&partial, directory).with_context(|| format!("making {}", directory.display()))
}

fn packages_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "deb"))
        .collect())
}
