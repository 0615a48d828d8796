//! Kernels to boot: Debian's packages, unpacked and not installed, or an image at hand.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt,
    shell::{self, progress},
    workspace::Workspace,
};

/// A kernel that can be booted.
pub struct Kernel {
    /// Its version as the user gave it, or the name of its file.
    pub name: String,
    pub image: PathBuf,
    /// Its `/lib/modules/RELEASE`, if it has modules.
    pub modules: Option<PathBuf>,
}

/// `name` is a version (`6.1`) or the path of an image, whose modules are in `modules`.
pub fn obtain(workspace: &Workspace, name: &str, modules: Option<&Path>) -> Result<Kernel> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(Kernel {
            name: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            image: path.to_owned(),
            modules: modules.map(Path::to_owned),
        });
    }
    let is_version = !name.is_empty() && name.chars().all(|c| c.is_ascii_digit() || c == '.');
    if !is_version {
        bail!("{name} is neither a version, such as 6.1, nor the file of a kernel image");
    }
    let cache = workspace.target.join("vm/kernels");
    fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
    debian(name, &cache)
}

/// The newest of Debian's packages for this version, or the newest that is unpacked already.
fn debian(version: &str, cache: &Path) -> Result<Kernel> {
    let offered = || {
        newest(
            version,
            apt::names(&format!("^linux-image-{version}.*-cloud-")),
        )
    };
    let mut package = offered();
    if package.is_none() && apt::available() {
        apt::update();
        package = offered();
    }
    let package = package.or_else(|| newest(version, unpacked(cache)));
    let package = package.with_context(|| {
        format!(
            "Debian's package lists have no linux-image-{version}…-cloud-{}: run `apt-get update`, or give the file of \
             a kernel image instead",
            architecture()
        )
    })?;
    let folder = cache.join(&package);
    if !folder.is_dir() {
        download(&package, &folder)
            .or_else(|_| {
                // Package lists that are weeks old name files that the mirror no longer has.
                apt::update();
                download(&package, &folder)
            })
            .with_context(|| format!("fetching {package}"))?;
    }
    Ok(Kernel {
        name: version.to_owned(),
        image: sole(&folder.join("boot"), "vmlinuz-")?,
        modules: Some(
            ["lib/modules", "usr/lib/modules"]
                .iter()
                .find_map(|place| sole(&folder.join(place), "").ok())
                .with_context(|| format!("no modules in {}", folder.display()))?,
        ),
    })
}

fn unpacked(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// Fetches and unpacks; the folder appears when all is there.
fn download(package: &str, folder: &Path) -> Result<()> {
    let fetched = folder.with_extension("fetched");
    let partial = folder.with_extension("partial");
    for folder in [&fetched, &partial] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    progress(&format!("fetching {package}"));
    shell::run_quietly(
        Command::new("apt-get")
            .args(["download", "-q", package])
            .current_dir(&fetched),
    )?;
    let archive = sole(&fetched, "linux-image-")?;
    shell::run_quietly(
        Command::new("dpkg-deb")
            .arg("--extract")
            .args([&archive, &partial]),
    )?;
    let _ = fs::remove_dir_all(&fetched);
    fs::rename(&partial, folder).with_context(|| format!("making {}", folder.display()))
}

/// The newest of these packages that is a kernel of this version: not the debug symbols, not the
/// unsigned image, not the package that only depends on another.
fn newest(version: &str, packages: Vec<String>) -> Option<String> {
    let wanted = numbers(version);
    let suffix = format!("-cloud-{}", architecture());
    let release = |package: &str| {
        let release = package.strip_prefix("linux-image-")?;
        let numbers = numbers(release.strip_suffix(&suffix)?);
        (numbers.len() > 2 && numbers.starts_with(&wanted)).then_some(numbers)
    };
    packages
        .into_iter()
        .filter(|package| release(package).is_some())
        .max_by_key(|package| release(package))
}

/// `6.1.0-56` is 6, 1, 0, 56.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// As Debian calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The only file in a folder whose name begins like that.
fn sole(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(prefix)
        })
        .collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        count => bail!("{count} files {prefix}* in {}", folder.display()),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::newest;

    #[test]
    fn the_newest_package_of_a_version() {
        let packages = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-dbg",
            "linux-image-6.1.0-58-cloud-amd64-unsigned",
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.99+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.118+deb12-cloud-arm64",
        ];
        let newest = |version| newest(version, packages.map(str::to_owned).to_vec());
        assert_eq!(newest("6.1").as_deref(), Some(packages[1]));
        assert_eq!(newest("6.12").as_deref(), Some(packages[6]));
        assert_eq!(newest("6.12.99").as_deref(), Some(packages[5]));
        assert_eq!(newest("6.6"), None);
    }
}
