//! The program of a package: optimised for size and speed, for old C libraries, without debug
//! information, which is a file of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;

use self::compression::compress;
use super::Source;
use crate::{apt, arch::Arch, bpf, cross, python, shell, toolchain, workspace::Workspace};

#[path = "../../../profiler/build/compression.rs"]
mod compression;

/// The oldest C library on which the program runs: that of RHEL 8 and Debian 10.
const GLIBC: &str = "2.28";
/// Profile in Cargo.toml.
const PROFILE: &str = "dist";

/// Largest size of the program that docs/install.md promises.
const MAX_BYTES: u64 = 30_000_000;

/// The C library of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Libc {
    /// Linked dynamically; NVIDIA's library can be opened.
    Gnu,
    /// Linked statically: one file for an initramfs or an empty container, without NVIDIA GPUs.
    Musl,
}

pub struct Binary {
    pub program: PathBuf,
    /// Debug information, which debuggers find by the build id.
    pub symbols: PathBuf,
    pub build_id: String,
}

/// Builds the program that is linked dynamically, and splits it.
pub fn build(workspace: &Workspace, arch: &Arch, source: &Source) -> Result<Binary> {
    let built = compile(workspace, arch, Libc::Gnu, source)?;
    let binary = split(arch, &built, &directory(workspace, arch.target))?;
    check_size(&binary.program)?;
    Ok(binary)
}

/// Builds the static program, which has no debug information.
pub fn build_static(workspace: &Workspace, arch: &Arch, source: &Source) -> Result<PathBuf> {
    let program = compile(workspace, arch, Libc::Musl, source)?;
    check_size(&program)?;
    Ok(program)
}

fn directory(workspace: &Workspace, triple: &str) -> PathBuf {
    workspace.target.join("dist/build").join(triple)
}

/// Builds and links the program.
fn compile(workspace: &Workspace, arch: &Arch, libc: Libc, source: &Source) -> Result<PathBuf> {
    let python = python::DIST.obtain(workspace)?;
    let tools = python.parent().context("the environment has programs")?;
    let (triple, target) = match libc {
        Libc::Gnu => (arch.target.to_owned(), format!("{}.{GLIBC}", arch.target)),
        Libc::Musl => {
            let triple = arch.target.replace("gnu", "musl");
            (triple.clone(), triple)
        }
    };
    let directory = directory(workspace, &triple);
    let object = bpf::build_for(workspace, arch.name)?;

    let (mut cargo, mut flags) = match libc {
        Libc::Gnu => {
            let mut cargo = workspace.cargo();
            let flags = cross::standard_library(workspace, arch, &mut cargo)?;
            cargo.arg("zigbuild");
            (cargo, flags)
        }
        // Distributions have no standard library for musl, but its source.
        Libc::Musl => {
            let package = toolchain::packaged(workspace)?;
            let mut cargo = package.compiler.cargo_command();
            cargo.current_dir(&workspace.root);
            cargo.args(["zigbuild", "-Zbuild-std=std,panic_unwind"]);
            // The debug information of Zig's library has paths of this machine.
            cargo
                .env("CARGO_PROFILE_DIST_DEBUG", "false")
                .env("CARGO_PROFILE_DIST_STRIP", "symbols");
            // The linker has the files with which a program begins and ends.
            (cargo, vec!["-Clink-self-contained=no".to_owned()])
        }
    };
    let mut paths = vec![tools.to_owned()];
    paths.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    cargo
        .args(["--locked", "--profile", PROFILE])
        .args(["--package=node-profiler", "--bin=profiler"])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&directory)
        .env("PATH", std::env::join_paths(paths)?)
        // The C compiler notes this as the directory of the build, wherever that is.
        .env("PWD", "/proc/self/cwd")
        .env("PROFILER_BPF_OBJECT", &object)
        .env("PROFILER_COMMIT", &source.commit)
        .env("SOURCE_DATE_EPOCH", source.time.to_string());
    flags.extend(workspace.remapped_paths(Workspace::RUSTC));
    let variable = format!("CFLAGS_{}", triple.replace('-', "_"));
    cargo.env(
        variable,
        workspace.remapped_paths(Workspace::CLANG).join(" "),
    );
    flags.push("-Clink-arg=-Wl,--build-id=sha1".to_owned());
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let step = format!("building the program for {triple} (minutes)");
    shell::run_slowly(cargo.arg("--quiet"), &step)?;
    let built = directory.join(&triple).join(PROFILE).join("profiler");
    let (program, programs) = (read(&built)?, read(&object)?);
    for bytes in [&program, &programs] {
        if let Some(path) = workspace.path_within(bytes) {
            bail!("{} has the path {}", built.display(), path.display());
        }
    }
    ensure!(
        memmem::find(&program, &compress(&programs)?).is_some(),
        "{} does not have the BPF programs of {}",
        built.display(),
        object.display()
    );
    Ok(built)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn check_size(program: &Path) -> Result<()> {
    let size = fs::metadata(program).context("the program")?.len();
    ensure!(
        size <= MAX_BYTES,
        "the program has {size} bytes, more than {MAX_BYTES}"
    );
    Ok(())
}

pub fn split(arch: &Arch, built: &Path, directory: &Path) -> Result<Binary> {
    let tool = arch.tool("objcopy");
    apt::obtain(&[(&tool, &arch.binutils())], "debug information")?;
    let program = directory.join("profiler");
    let symbols = directory.join("profiler.debug");
    let objcopy = || Command::new(&tool);
    shell::run_quietly(
        objcopy()
            .args(["--only-keep-debug", "--compress-debug-sections"])
            .args([built, &symbols]),
    )?;
    let link = format!("--add-gnu-debuglink={}", symbols.display());
    shell::run_quietly(
        objcopy()
            .args(["--strip-all", &link])
            .args([built, &program]),
    )?;
    let notes = shell::stdout(Command::new(arch.tool("readelf")).arg("-n").arg(&program))?;
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    let Some(build_id) = id.map(str::to_owned) else {
        bail!("{} has no build id", program.display());
    };
    Ok(Binary {
        program,
        symbols,
        build_id,
    })
}
