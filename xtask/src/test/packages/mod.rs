//! The tier `packages`: packages with the optimised program, checked by the tools of
//! Debian and RPM, and installed in a fresh Debian.

mod crates;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;

use crate::{
    apt::{self, Lists},
    arch::Arch,
    bpf,
    dist::{self, Format},
    run::privileged,
    shell::{self, progress},
    workspace::Workspace,
};

const SCRIPTS: &str = "tests/environments/packages";
/// A package with a module system.
const MODULES: &str = "environment-modules";
/// A program of another one.
const LMOD: &str = "/usr/share/lmod/lmod/libexec/lmod";
/// Releases of Debian in which packages are installed.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// A small program with a build id.
const SMALL: &str = "/usr/bin/true";
/// Version of the package to which the first one is upgraded.
const NEWER: &str = "99.0";

pub fn run(workspace: &Workspace) -> Result<String> {
    let tools = [
        ("lintian", "lintian"),
        ("rpmlint", "rpmlint"),
        ("mmdebstrap", "mmdebstrap"),
        ("groff", "groff"),
    ];
    apt::obtain(&tools, "checks of packages")?;
    if !Path::new(LMOD).exists() || shell::which("tclsh").is_none() {
        let packages = ["lmod", "tcl"].map(str::to_owned);
        apt::install(&packages, "module systems that load the archive")?;
    }
    // Debian does not install both.
    let other = workspace.tools().join(MODULES);
    if !other.is_dir() {
        Lists::of(workspace, Arch::host()?)?.unpack(&[MODULES.to_owned()], &other)?;
    }
    let program = bpf::build_optimized(workspace)?;
    let directory = workspace.target.join("packages");
    is_reproducible(workspace, &program, &directory)?;
    let out = directory.join("dist");
    let _ = fs::remove_dir_all(&out);
    let formats = [
        Format::Deb,
        Format::Rpm,
        Format::Tar,
        Format::Wheel,
        Format::Crate,
    ];
    let packages = dist::of_program(workspace, &program, &program, &formats, &out)?;
    let find = |end: &str| {
        let found = packages.iter().find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(end) && !name.contains("debuginfo") && !name.contains("dbgsym")
        });
        found.with_context(|| format!("no package {end}"))
    };
    let (deb, rpm) = (find(".deb")?, find(".rpm")?);
    let archive = find(".tar.xz")?;

    let script = |name: &str| workspace.root.join(SCRIPTS).join(name);
    check(&packages, &script("rpmlintrc"))?;
    let all_crates: Vec<&Path> = packages
        .iter()
        .map(PathBuf::as_path)
        .filter(|path| path.extension() == Some(OsStr::new("crate")))
        .collect();
    crates::check(workspace, &all_crates, &directory.join("crates"))?;
    let unpacked = directory.join("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    shell::run_quietly(
        Command::new("dpkg-deb")
            .arg("--extract")
            .args([deb, &unpacked]),
    )?;
    pages(&unpacked)?;

    let modules = fresh(archive, &directory.join("archive"))?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_end_matches(".tar.xz");
    let mut load = Command::new("sh");
    shell::run(
        load.arg(script("module.sh"))
            .args([&modules.join(name), &other]),
    )?;
    fs::remove_dir_all(&modules)?;

    let newer = upgraded(deb, &directory)?;
    let wheel = find(&format!("_{}.whl", Arch::host()?.name))?;
    for release in RELEASES {
        let system = directory.join(format!("{release}.tar"));
        if !system.is_file() {
            let mut make = privileged(Path::new("sh"));
            make.arg(script("make.sh")).arg(release).arg(&system);
            shell::run_slowly(&mut make, &format!("creating Debian {release} (a minute)"))?;
        }
        progress(&format!("Debian {release}"));
        let enter = script("enter.sh");
        let root = fresh(&system, &directory.join("root"))?;
        inside(&root, &script("debian.sh"), &[deb, &newer], &enter)?;
        inside(&root, &script("user.sh"), &[archive, wheel], &enter)?;
        let root = fresh(&system, &root)?;
        shell::run(Command::new("sh").arg(script("rpm.sh")).args([&root, rpm]))?;
        fs::remove_dir_all(&root)?;
    }
    Ok(format!("{} packages", packages.len()))
}

/// Checks packages with the tools of their systems.
fn check(packages: &[PathBuf], rpmlintrc: &Path) -> Result<()> {
    progress("checking the packages");
    for path in packages {
        let mut check = match path.extension().and_then(OsStr::to_str) {
            Some("deb") => {
                let mut lintian = Command::new("lintian");
                lintian.args([
                    "--fail-on",
                    "error",
                    "--allow-root",
                    "--no-tag-display-limit",
                ]);
                lintian
            }
            Some("rpm") => {
                let mut rpmlint = Command::new("rpmlint");
                rpmlint
                    .args(["--ignore-unused-rpmlintrc", "--rpmlintrc"])
                    .arg(rpmlintrc);
                rpmlint
            }
            _ => continue,
        };
        shell::run_quietly(check.arg(path))?;
    }
    Ok(())
}

/// Runs a script with copies of these packages in a system, without network.
fn inside(root: &Path, script: &Path, packages: &[&Path], enter: &Path) -> Result<()> {
    const PLACE: &str = "/packages";
    let place = root.join(PLACE.trim_start_matches('/'));
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| format!("creating {}", place.display()))?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--net", "sh"])
        .arg(enter)
        .arg(root)
        .arg("sh");
    for path in [script].iter().chain(packages) {
        let name = path.file_name().context("a file")?;
        fs::copy(path, place.join(name)).with_context(|| format!("copying {}", path.display()))?;
        command.arg(Path::new(PLACE).join(name));
    }
    shell::run(&mut command)
}

/// Makes packages of all formats twice, in different directories, and compares them. They contain a
/// small program, because the size takes most of the time.
fn is_reproducible(workspace: &Workspace, runnable: &Path, directory: &Path) -> Result<()> {
    progress("making packages twice");
    let make = |name: &str| {
        let out = directory.join(name);
        let _ = fs::remove_dir_all(&out);
        let formats = Format::value_variants();
        let mut packages = dist::of_program(workspace, Path::new(SMALL), runnable, formats, &out)?;
        packages.push(out.join("SHA256SUMS"));
        anyhow::Ok(packages)
    };
    let (first, second) = (make("first")?, make("second")?);
    let names = |packages: &[PathBuf]| -> Vec<_> {
        let names = packages.iter().map(|path| path.file_name());
        names
            .map(Option::unwrap_or_default)
            .map(ToOwned::to_owned)
            .collect()
    };
    if names(&first) != names(&second) {
        bail!("{first:?} and {second:?} are not the same packages");
    }
    for (one, other) in first.iter().zip(&second) {
        let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
        if read(one)? != read(other)? {
            bail!("{} and {} differ", one.display(), other.display());
        }
    }
    Ok(())
}

/// Renders every manual page; groff warns about mistakes.
fn pages(root: &Path) -> Result<()> {
    let mut number = 0;
    for section in ["man1", "man5"] {
        let directory = root.join("usr/share/man").join(section);
        for page in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let page = page?.path();
            let command = format!(
                "zcat '{}' | groff -Kutf8 -man -Tutf8 -ww -rLL=100n -z",
                page.display()
            );
            let warnings = shell::stderr(Command::new("sh").args(["-c", &command]))?;
            if !warnings.is_empty() {
                bail!("{}: {warnings}", page.display());
            }
            number += 1;
        }
    }
    if number < 2 {
        bail!("no manual pages");
    }
    Ok(())
}

/// Unpacks the system into a new directory.
fn fresh(archive: &Path, root: &Path) -> Result<PathBuf> {
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
    shell::run_quietly(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(root),
    )?;
    Ok(root.to_owned())
}

/// The same package with a newer version.
fn upgraded(deb: &Path, directory: &Path) -> Result<PathBuf> {
    let tree = directory.join("newer");
    let _ = fs::remove_dir_all(&tree);
    shell::run_quietly(
        Command::new("dpkg-deb")
            .arg("--raw-extract")
            .args([deb, &tree]),
    )?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let lines = text.lines().map(|line| match line.split_once(": ") {
        Some(("Version", _)) => format!("Version: {NEWER}\n"),
        _ => format!("{line}\n"),
    });
    fs::write(&control, lines.collect::<String>())?;
    let newer = directory.join("newer.deb");
    shell::run_quietly(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Znone", "--build"])
            .args([&tree, &newer]),
    )?;
    fs::remove_dir_all(&tree)?;
    Ok(newer)
}
