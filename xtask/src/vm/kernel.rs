//! Kernels of guests: Debian's packages, unpacked and not installed, or a given image.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{apt::Lists, arch::Arch, workspace::Workspace};

/// A kernel of a guest.
pub struct Kernel {
    /// The given version, or the name of the file.
    pub name: String,
    pub image: PathBuf,
    /// Its `/lib/modules/RELEASE`, if it has modules.
    pub modules: Option<PathBuf>,
    /// Debian's release, such as `6.1.0-56-amd64`; none for other kernels.
    pub release: Option<String>,
}

/// Debian's configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// For virtual machines: small, without the drivers of most devices.
    Cloud,
    /// For all machines.
    Full,
}

impl Flavour {
    /// Suffix of the package names.
    fn suffix(self, arch: &Arch) -> String {
        match self {
            Self::Cloud => format!("-cloud-{}", arch.debian),
            Self::Full => format!("-{}", arch.debian),
        }
    }
}

/// `name` is a version (`6.1`) or the path of an image with modules in `modules`.
pub fn obtain(
    workspace: &Workspace,
    arch: &Arch,
    flavour: Flavour,
    name: &str,
    modules: Option<&Path>,
) -> Result<Kernel> {
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
            release: None,
        });
    }
    let is_version = !name.is_empty() && name.chars().all(|c| c.is_ascii_digit() || c == '.');
    if !is_version {
        bail!("{name} is neither a version, such as 6.1, nor the path of a kernel image");
    }
    let cache = workspace.target.join("vm/kernels");
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    debian(
        &Lists::of(workspace, arch)?,
        &flavour.suffix(arch),
        name,
        &cache,
    )
}

/// Debian's newest package of this version, or the newest one that is already unpacked.
fn debian(lists: &Lists, suffix: &str, version: &str, cache: &Path) -> Result<Kernel> {
    let available = || {
        let names = lists.names(&format!("^linux-image-{version}.*{suffix}"));
        newest(suffix, version, names)
    };
    let package = available().or_else(|| {
        lists.update();
        available()
    });
    let package = package.or_else(|| newest(suffix, version, unpacked(cache)));
    let package = package.with_context(|| {
        format!(
            "Debian's package lists have no linux-image-{version}…{suffix}: run `apt-get update`, or give the path of \
             a kernel image instead"
        )
    })?;
    let directory = cache.join(&package);
    if !directory.is_dir() {
        lists.unpack(std::slice::from_ref(&package), &directory)?;
    }
    Ok(Kernel {
        name: version.to_owned(),
        release: package.strip_prefix("linux-image-").map(str::to_owned),
        image: sole(&directory.join("boot"), "vmlinuz-")?,
        modules: Some(
            ["lib/modules", "usr/lib/modules"]
                .iter()
                .find_map(|path| sole(&directory.join(path), "").ok())
                .with_context(|| format!("no modules in {}", directory.display()))?,
        ),
    })
}

fn unpacked(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// The newest of these packages with a kernel of this version. Debug symbols, unsigned images and
/// metapackages are ignored.
fn newest(suffix: &str, version: &str, packages: Vec<String>) -> Option<String> {
    let wanted = numbers(version);
    let release = |package: &str| {
        let release = package.strip_prefix("linux-image-")?;
        let release = release.strip_suffix(suffix)?;
        // Another flavour.
        if release.ends_with("-cloud") || release.ends_with("-rt") {
            return None;
        }
        let numbers = numbers(release);
        (numbers.len() > 2 && numbers.starts_with(&wanted)).then_some(numbers)
    };
    packages
        .into_iter()
        .filter(|package| release(package).is_some())
        .max_by_key(|package| release(package))
}

/// Parses `6.1.0-56` to 6, 1, 0, 56.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// The only file in a directory with this prefix.
fn sole(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(prefix)
        })
        .collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        count => bail!("{count} files {prefix}* in {}", directory.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Flavour, newest};
    use crate::arch::Arch;

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
            "linux-image-6.1.0-55-amd64",
            "linux-image-6.1.0-59-rt-amd64",
        ];
        let of = |flavour: Flavour, arch, version| {
            let suffix = flavour.suffix(Arch::parse(arch).expect("known"));
            newest(&suffix, version, packages.map(str::to_owned).to_vec())
        };
        let newest = |arch, version| of(Flavour::Cloud, arch, version);
        let full = of(Flavour::Full, "x86_64", "6.1");
        assert_eq!(full.as_deref(), Some(packages[8]));
        assert_eq!(newest("x86_64", "6.1").as_deref(), Some(packages[1]));
        assert_eq!(newest("x86_64", "6.12").as_deref(), Some(packages[6]));
        assert_eq!(newest("x86_64", "6.12.99").as_deref(), Some(packages[5]));
        assert_eq!(newest("x86_64", "6.6"), None);
        assert_eq!(newest("aarch64", "6.12").as_deref(), Some(packages[7]));
    }
}
