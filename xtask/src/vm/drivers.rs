//! Modules that simulate devices (`tests/environments/drivers`), built for one of Debian's kernels
//! with its headers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{kernel::Kernel, modules::ModuleList};
use crate::{
    apt::{self, Lists},
    arch::Arch,
    preparation,
    shell::{self, progress},
    workspace::Workspace,
};

/// Additional tools and files of the tests of devices, with their Debian packages.
pub const TOOLS: &[(&str, &str)] = &[
    ("rdma", "iproute2"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    (PROVIDER, "ibverbs-providers"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
];

/// The provider library that libibverbs loads for soft RoCE.
const PROVIDER: &str = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*";

/// Kernel modules that the tests need.
pub const MODULES: &ModuleList = &[
    ("ib_uverbs", ""),
    // rdma_rxe needs this algorithm.
    ("crc32_generic", ""),
    ("rdma_rxe", ""),
    ("dummy", "numdummies=1"),
];

const SOURCES: &str = "tests/environments/drivers";

/// Builds the modules in `directory`; returns their paths.
pub fn build(
    workspace: &Workspace,
    arch: &Arch,
    kernel: &Kernel,
    directory: &Path,
) -> Result<Vec<PathBuf>> {
    let Some(release) = &kernel.release else {
        bail!("drivers can be built only for Debian's kernels: give a version, such as 6.1");
    };
    let headers = obtain_headers(workspace, arch, release)?;
    let sources = directory.join("drivers");
    copy(&workspace.root.join(SOURCES), &sources)?;
    progress("building the modules that simulate devices");
    let mut make = Command::new("make");
    make.arg("--quiet")
        .arg("-C")
        .arg(headers.join(format!("usr/src/linux-headers-{release}")))
        // The Makefile of the headers requires the path /usr/src.
        .arg("-f")
        .arg(headers.join(format!("usr/src/{}/Makefile", common(release))))
        .arg(format!("M={}", sources.display()))
        .arg("modules");
    preparation::timed(|| shell::run_quietly(&mut make))
        .with_context(|| format!("building {SOURCES}"))?;
    let mut modules = Vec::new();
    for file in files(&sources)? {
        if file.extension().is_some_and(|extension| extension == "ko") {
            let mut strip = Command::new(arch.tool("strip"));
            shell::run_quietly(strip.arg("--strip-debug").arg(&file))?;
            modules.push(file);
        }
    }
    Ok(modules)
}

/// Package of the headers shared by all flavours: `linux-headers-6.1.0-56-common`.
fn common(release: &str) -> String {
    let version = release
        .rsplit_once('-')
        .map_or(release, |(version, _)| version);
    format!("linux-headers-{version}-common")
}

/// Unpacks the headers and build programs without installing them. The compiler is this machine's.
fn obtain_headers(workspace: &Workspace, arch: &Arch, release: &str) -> Result<PathBuf> {
    let package = format!("linux-headers-{release}");
    let directory = workspace.target.join("vm/headers").join(&package);
    let lists = Lists::of(workspace, arch)?;
    let depends = lists.depends(&package)?;
    if !directory.is_dir() {
        let mut packages = vec![package];
        let parts = ["linux-headers-", "linux-kbuild-"];
        let is_part = |name: &&String| parts.iter().any(|part| name.starts_with(part));
        packages.extend(depends.iter().filter(is_part).cloned());
        fs::create_dir_all(workspace.target.join("vm/headers"))?;
        lists.unpack(&packages, &directory)?;
    }
    let compiler = depends.iter().find_map(|name| compiler(name));
    let compiler = compiler.context("the headers do not name their compiler")?;
    let tools = [("make", "make".to_owned()), (&compiler, compiler.clone())];
    let missing = tools
        .iter()
        .filter(|(tool, _)| shell::which(tool).is_none());
    let missing: Vec<String> = missing.map(|(_, package)| package.clone()).collect();
    if !missing.is_empty() {
        if !apt::available() {
            bail!(
                "no {}: run `{}`",
                missing.join(", "),
                apt::command(&missing)
            );
        }
        apt::install(&missing, "builds kernel modules for guests")?;
    }
    Ok(directory)
}

/// `gcc-12` for `linux-compiler-gcc-12-x86`.
fn compiler(package: &str) -> Option<String> {
    let name = package.strip_prefix("linux-compiler-")?;
    Some(name.rsplit_once('-')?.0.to_owned())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    Ok(files)
}

/// Copies the files of a directory into an empty directory.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    for file in files(from)? {
        let name = file.file_name().context("a file has a name")?;
        fs::copy(&file, to.join(name)).with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{common, compiler};

    #[test]
    fn packages_of_headers_and_compiler() {
        assert_eq!(common("6.1.0-56-amd64"), "linux-headers-6.1.0-56-common");
        let found = compiler("linux-compiler-gcc-12-x86");
        assert_eq!(found.as_deref(), Some("gcc-12"));
        assert_eq!(compiler("linux-kbuild-6.1"), None);
    }
}
