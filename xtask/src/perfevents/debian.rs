//! Packages of one release of Debian, for any architecture: fetched and unpacked, never installed.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{apt, shell, shell::progress};

/// Its packages do not change but for corrections: what they are compared with stays the same.
const RELEASE: &str = "trixie";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ARCHITECTURES: [&str; 3] = ["amd64", "arm64", "ppc64el"];

/// Where they are unpacked, with package lists of their own.
pub struct Packages {
    folder: PathBuf,
    updated: Cell<bool>,
}

impl Packages {
    pub fn new(target: &Path) -> Self {
        Self {
            folder: target.join("perfevents").join(RELEASE),
            updated: Cell::new(false),
        }
    }

    /// The folder that the package is unpacked in.
    pub fn get(&self, package: &str, architecture: &str) -> Result<PathBuf> {
        let folder = self.folder.join(format!("{package}-{architecture}"));
        if !folder.is_dir() {
            self.fetch(package, architecture, &folder)
                .with_context(|| {
                    format!("fetching {package} for {architecture} from Debian {RELEASE}")
                })?;
        }
        Ok(folder)
    }

    /// The directory that the package's source, as its authors published it, is unpacked in.
    pub fn source(&self, package: &str) -> Result<PathBuf> {
        let folder = self.folder.join(format!("{package}-source"));
        if !folder.is_dir() {
            let download = ["source", "--download-only", "--tar-only", package];
            self.unpack(&download, &folder, |archive, into| {
                let mut extract = Command::new("tar");
                extract.args(["--extract", "--strip-components=1", "--file"]);
                extract.arg(archive).arg("--directory").arg(into);
                extract
            })
            .with_context(|| format!("fetching the source of {package} from Debian {RELEASE}"))?;
        }
        Ok(folder)
    }

    fn fetch(&self, package: &str, architecture: &str, folder: &Path) -> Result<()> {
        let package = format!("{package}:{architecture}");
        self.unpack(&["download", &package], folder, |archive, into| {
            let mut extract = Command::new("dpkg-deb");
            extract.arg("--extract").args([archive, into]);
            extract
        })
    }

    /// Downloads one archive and extracts it; the directory appears when all is there.
    fn unpack(
        &self,
        download: &[&str],
        folder: &Path,
        extract: impl Fn(&Path, &Path) -> Command,
    ) -> Result<()> {
        self.update()?;
        let partial = folder.with_extension("partial");
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
        progress(&format!("apt-get {}", download.join(" ")));
        shell::run_quietly(self.apt_get().args(download).current_dir(&partial))?;
        let archive = fs::read_dir(&partial)?
            .next()
            .context("apt-get has left nothing")??
            .path();
        shell::run_quietly(&mut extract(&archive, &partial))?;
        fs::remove_file(&archive)?;
        fs::rename(&partial, folder).with_context(|| format!("making {}", folder.display()))
    }

    /// Brings the lists up to date, once: those of last month name files that the mirror no longer has.
    fn update(&self) -> Result<()> {
        if self.updated.replace(true) {
            return Ok(());
        }
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = self.folder.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let place = format!("[signed-by={KEYS}] {} {RELEASE} main", mirror()?);
        let lines = format!("deb {place}\ndeb-src {place}\n");
        fs::write(self.folder.join("sources.list"), lines)?;
        progress(&format!("fetching the package lists of Debian {RELEASE}"));
        shell::run_quietly(self.apt_get().args(["update", "-q"]))
    }

    /// apt-get with nothing of the machine's own settings but how to reach the mirror.
    fn apt_get(&self) -> Command {
        let folder = self.folder.display();
        let mut command = Command::new("apt-get");
        for option in [
            format!("Dir::Etc::sourcelist={folder}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::Cache={folder}/cache"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            // Otherwise lists that did not come are a warning.
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

/// The mirror of Debian that this machine uses.
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
    // Who made a repository stands in its lists.
    if apt::available() {
        apt::update();
    }
    find().context("this machine has no package lists of Debian: run `apt-get update`")
}
