//! Packages of a Debian release, for any architecture. They are downloaded and unpacked, never
//! installed.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{apt, shell, shell::progress};

/// A stable release: its packages receive only fixes, so that results stay comparable. After an
/// update of the release, some mirrors have the package lists of a minor architecture days later
/// than the signed file with their checksums; the next release serves until then.
const RELEASES: [&str; 2] = ["trixie", "forky"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The architecture whose lists include the sources.
const MAIN_ARCHITECTURE: &str = "amd64";

/// The directories of the unpacked packages and of their package lists.
pub struct Packages {
    directory: PathBuf,
    /// Directories of the lists that are up to date.
    updated: RefCell<BTreeSet<PathBuf>>,
}

/// Packages of one architecture of a release.
struct Lists<'a> {
    release: &'a str,
    architecture: &'a str,
    directory: PathBuf,
}

impl Packages {
    pub fn new(target: &Path) -> Self {
        Self {
            directory: target.join("perfevents"),
            updated: RefCell::default(),
        }
    }

    /// The directory of the unpacked package, downloaded if it is missing.
    pub fn get(&self, package: &str, architecture: &str) -> Result<PathBuf> {
        let name = format!("{package}-{architecture}");
        let download = ["download", &format!("{package}:{architecture}")];
        self.find_or_unpack(&name, architecture, &download, |archive, into| {
            let mut extract = Command::new("dpkg-deb");
            extract.arg("--extract").args([archive, into]);
            extract
        })
        .with_context(|| format!("fetching {package} for {architecture} from Debian"))
    }

    /// The directory of the package's unpacked upstream source.
    pub fn source(&self, package: &str) -> Result<PathBuf> {
        let name = format!("{package}-source");
        let download = ["source", "--download-only", "--tar-only", package];
        self.find_or_unpack(&name, MAIN_ARCHITECTURE, &download, |archive, into| {
            let mut extract = Command::new("tar");
            extract.args(["--extract", "--strip-components=1", "--file"]);
            extract.arg(archive).arg("--directory").arg(into);
            extract
        })
        .with_context(|| format!("fetching the source of {package} from Debian"))
    }

    /// The directory `name` of the first release that has it or whose archive can be downloaded.
    fn find_or_unpack(
        &self,
        name: &str,
        architecture: &str,
        download: &[&str],
        extract: impl Fn(&Path, &Path) -> Command,
    ) -> Result<PathBuf> {
        let directories = RELEASES.map(|release| self.directory.join(release).join(name));
        if let Some(directory) = directories.iter().find(|directory| directory.is_dir()) {
            return Ok(directory.clone());
        }
        let mut failure = None;
        for (release, directory) in RELEASES.into_iter().zip(directories) {
            let lists = Lists {
                release,
                architecture,
                directory: self.directory.join(release).join("apt").join(architecture),
            };
            match self.unpack(&lists, download, &directory, &extract) {
                Ok(()) => return Ok(directory),
                Err(error) => {
                    progress(&format!("Debian {release} has failed: {error:#}"));
                    failure.get_or_insert(error);
                }
            }
        }
        Err(failure.expect("there are releases"))
    }

    /// Downloads one archive and extracts it. The directory appears when it is complete.
    fn unpack(
        &self,
        lists: &Lists<'_>,
        download: &[&str],
        directory: &Path,
        extract: impl Fn(&Path, &Path) -> Command,
    ) -> Result<()> {
        if !self.updated.borrow().contains(&lists.directory) {
            lists.update()?;
            self.updated.borrow_mut().insert(lists.directory.clone());
        }
        let partial = directory.with_extension("partial");
        let unpacked = unpack(lists, download, &partial, extract);
        if unpacked.is_err() {
            let _ = fs::remove_dir_all(&partial);
        }
        unpacked?;
        fs::rename(&partial, directory).with_context(|| format!("making {}", directory.display()))
    }
}

/// apt-get compares the archive with the checksum in the signed lists before it is extracted.
fn unpack(
    lists: &Lists<'_>,
    download: &[&str],
    partial: &Path,
    extract: impl Fn(&Path, &Path) -> Command,
) -> Result<()> {
    let _ = fs::remove_dir_all(partial);
    fs::create_dir_all(partial).with_context(|| format!("making {}", partial.display()))?;
    progress(&format!("apt-get {}", download.join(" ")));
    shell::run_quietly(lists.apt_get().args(download).current_dir(partial))?;
    let archive = fs::read_dir(partial)?
        .next()
        .context("apt-get downloaded nothing")??
        .path();
    shell::run_quietly(&mut extract(&archive, partial))?;
    Ok(fs::remove_file(&archive)?)
}

impl Lists<'_> {
    /// Updates the package lists: old lists name files that the mirror no longer has.
    fn update(&self) -> Result<()> {
        for directory in ["lists/partial", "cache/archives/partial"] {
            let directory = self.directory.join(directory);
            fs::create_dir_all(&directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let place = format!(
            "[arch={} signed-by={KEYS}] {} {} main",
            self.architecture,
            mirror()?,
            self.release
        );
        let sources = if self.architecture == MAIN_ARCHITECTURE {
            format!("deb-src {place}\n")
        } else {
            String::new()
        };
        let path = self.directory.join("sources.list");
        fs::write(path, format!("deb {place}\n{sources}"))?;
        progress(&format!(
            "fetching the package lists of Debian {} for {}",
            self.release, self.architecture
        ));
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
            format!("APT::Architectures::={}", self.architecture),
        ] {
            command.args(["-o", &option]);
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
