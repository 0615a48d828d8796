//! Packages of one Debian release, for any architecture. They are downloaded and unpacked, never
//! installed.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{apt, shell, shell::progress};

/// A stable release: its packages receive only fixes, so that results stay comparable.
const RELEASE: &str = "trixie";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ARCHITECTURES: [&str; 3] = ["amd64", "arm64", "ppc64el"];

/// The directory of the unpacked packages and of their package lists.
pub struct Packages {
    directory: PathBuf,
    updated: Cell<bool>,
}

impl Packages {
    pub fn new(target: &Path) -> Self {
        Self {
            directory: target.join("perfevents").join(RELEASE),
            updated: Cell::new(false),
        }
    }

    /// The directory of the unpacked package, downloaded if it is missing.
    pub fn get(&self, package: &str, architecture: &str) -> Result<PathBuf> {
        let directory = self.directory.join(format!("{package}-{architecture}"));
        if !directory.is_dir() {
            self.fetch(package, architecture, &directory)
                .with_context(|| {
                    format!("fetching {package} for {architecture} from Debian {RELEASE}")
                })?;
        }
        Ok(directory)
    }

    /// The directory of the package's unpacked upstream source.
    pub fn source(&self, package: &str) -> Result<PathBuf> {
        let directory = self.directory.join(format!("{package}-source"));
        if !directory.is_dir() {
            let download = ["source", "--download-only", "--tar-only", package];
            self.unpack(&download, &directory, |archive, into| {
                let mut extract = Command::new("tar");
                extract.args(["--extract", "--strip-components=1", "--file"]);
                extract.arg(archive).arg("--directory").arg(into);
                extract
            })
            .with_context(|| format!("fetching the source of {package} from Debian {RELEASE}"))?;
        }
        Ok(directory)
    }

    fn fetch(&self, package: &str, architecture: &str, directory: &Path) -> Result<()> {
        let package = format!("{package}:{architecture}");
        self.unpack(&["download", &package], directory, |archive, into| {
            let mut extract = Command::new("dpkg-deb");
            extract.arg("--extract").args([archive, into]);
            extract
        })
    }

    /// Downloads one archive and extracts it. The directory appears when it is complete.
    fn unpack(
        &self,
        download: &[&str],
        directory: &Path,
        extract: impl Fn(&Path, &Path) -> Command,
    ) -> Result<()> {
        self.update()?;
        let partial = directory.with_extension("partial");
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
        progress(&format!("apt-get {}", download.join(" ")));
        shell::run_quietly(self.apt_get().args(download).current_dir(&partial))?;
        let archive = fs::read_dir(&partial)?
            .next()
            .context("apt-get downloaded nothing")??
            .path();
        shell::run_quietly(&mut extract(&archive, &partial))?;
        fs::remove_file(&archive)?;
        fs::rename(&partial, directory).with_context(|| format!("making {}", directory.display()))
    }

    /// Updates the package lists once: old lists name files that the mirror no longer has.
    fn update(&self) -> Result<()> {
        if self.updated.replace(true) {
            return Ok(());
        }
        for directory in ["lists/partial", "cache/archives/partial"] {
            let directory = self.directory.join(directory);
            fs::create_dir_all(&directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let place = format!("[signed-by={KEYS}] {} {RELEASE} main", mirror()?);
        let lines = format!("deb {place}\ndeb-src {place}\n");
        fs::write(self.directory.join("sources.list"), lines)?;
        progress(&format!("fetching the package lists of Debian {RELEASE}"));
        shell::run_quietly(self.apt_get().args(["update", "-q"]))
    }

    /// apt-get with the machine's proxy settings, but with package lists of its own.
    fn apt_get(&self) -> Command {
        let directory = self.directory.display();
        let mut command = Command::new("apt-get");
        for option in [
            format!("Dir::Etc::sourcelist={directory}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={directory}/lists"),
            format!("Dir::Cache={directory}/cache"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            // By default, a failed download of a list is only a warning.
            "APT::Update::Error-Mode=any".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        for architecture in ARCHITECTURES {
            command.args(["-o", &format!("APT::Architectures::={architecture}")]);
        }
        command
    }
}

/// The Debian mirror of this machine.
fn mirror() -> Result<String> {
    let find = || {
        let format = "$(ORIGIN) $(LABEL) $(REPO_URI)";
        let targets = shell::stdout(Command::new("apt-get").args([
            "indextargets",
            "--format",
            format,
            "Created-By: Packages",
        ]))
        .ok()?;
        let line = targets
            .lines()
            .find_map(|line| line.strip_prefix("Debian Debian "))?;
        Some(line.trim().to_owned())
    };
    if let Some(mirror) = find() {
        return Ok(mirror);
    }
    // The lists name the origin of a repository.
    if apt::available() {
        apt::update();
    }
    find().context("no package lists of Debian: run `apt-get update`")
}
