//! The BPF object, built separately because its target, compiler and flags differ.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

use crate::{
    preparation,
    shell::{self, progress},
    toolchain::{self, Toolchain},
    workspace::Workspace,
};

#[path = "../../profiler/build/source_hash.rs"]
mod source_hash;

const TARGET: &str = "bpfel-unknown-none";
const PACKAGE: &str = "profiler-ebpf";
/// Target directory, next to the object.
const BUILD: &str = "build";

/// `cargo xtask build`
#[derive(clap::Args)]
pub struct Args {
    /// Build the profiler too, optimised
    #[arg(long, conflicts_with = "debug")]
    release: bool,
    /// Build the profiler too, unoptimised
    #[arg(long)]
    debug: bool,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut built = build(workspace)?;
    if args.release || args.debug {
        built = build_profiler(workspace, args.release)?;
    }
    println!("{}", built.display());
    Ok(())
}

/// Builds the object. Without a toolchain, an existing object of the same sources is used.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    build_for(workspace, std::env::consts::ARCH)
}

/// Builds the object for an architecture (Rust's name), because registers and system calls differ.
pub fn build_for(workspace: &Workspace, arch: &str) -> Result<PathBuf> {
    let paths = Paths::new(workspace, arch);
    let sources = paths.hash_sources()?;
    let toolchain = match toolchain::obtain(workspace) {
        Ok(toolchain) => toolchain,
        Err(error) if paths.is_current(&sources) => {
            progress(&format!("using the existing BPF object ({error:#})"));
            return Ok(paths.object);
        }
        Err(error) => return Err(error),
    };
    shell::run_slowly(
        &mut compile(workspace, &toolchain, &paths),
        "building the BPF programs",
    )?;
    paths.install(&sources)
}

/// Builds the object with warnings as errors, because clippy does not check these programs.
pub fn build_strictly(workspace: &Workspace) -> Result<()> {
    let toolchain = toolchain::obtain(workspace)?;
    let paths = Paths::new(workspace, std::env::consts::ARCH);
    let sources = paths.hash_sources()?;
    let messages =
        preparation::timed(|| shell::stderr(&mut compile(workspace, &toolchain, &paths)))?;
    paths.install(&sources)?;
    // Cargo repeats the warnings of crates that are up to date.
    if messages.lines().any(|line| line.starts_with("warning")) {
        bail!(
            "the compiler warns about the BPF programs\n{}",
            messages.trim()
        );
    }
    Ok(())
}

/// Builds the binary `profiler` and returns its path.
pub fn build_profiler(workspace: &Workspace, release: bool) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    // With the whole workspace selected, dependencies have the same features as in the tests and
    // are built once.
    cargo.args(["build", "--quiet", "--workspace", "--bin=profiler"]);
    if release {
        cargo.arg("--release");
    }
    shell::run_slowly(
        &mut cargo,
        "building the profiler (some minutes the first time)",
    )?;
    let profile = if release { "release" } else { "debug" };
    Ok(workspace.target.join(profile).join("profiler"))
}

/// Builds the object and the optimised binary, and returns its path.
pub fn build_optimized(workspace: &Workspace) -> Result<PathBuf> {
    build(workspace)?;
    build_profiler(workspace, true)
}

fn compile(workspace: &Workspace, toolchain: &Toolchain, paths: &Paths) -> Command {
    let mut cargo = toolchain.compiler.cargo_command();
    // The object names the files of its lines, for the verifier's log.
    let mut flags = workspace.remapped_paths(Workspace::RUSTC);
    flags.extend(self::flags(paths.arch));
    cargo
        .args([
            "build",
            "--quiet",
            "--release",
            "-Zbuild-std=core",
            "--package",
            PACKAGE,
        ])
        .args(["--bin", PACKAGE, "--target", TARGET, "--target-dir"])
        .arg(&paths.build)
        .current_dir(&workspace.root)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env(
            "CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER",
            &toolchain.linker.path,
        )
        // A single unit makes the object reproducible, and bpf-linker sees all functions.
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    cargo
}

fn flags(arch: &str) -> [String; 4] {
    [
        // The layout of `pt_regs` depends on the architecture.
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        // v3 has atomic operations that return the old value; kernels since 5.12 support it.
        "-Ctarget-cpu=v3".into(),
    ]
}

/// Hash of the sources of the BPF programs.
pub fn source_hash(workspace: &Workspace) -> Result<String> {
    hash(&workspace.root.join(PACKAGE))
}

fn hash(package: &Path) -> Result<String> {
    source_hash::source_hash(package).with_context(|| format!("reading {}", package.display()))
}

/// Paths of the object, as the build script of `profiler` expects it, and of the hash of its
/// sources.
struct Paths<'a> {
    arch: &'a str,
    build: PathBuf,
    object: PathBuf,
    recorded: PathBuf,
    package: PathBuf,
}

impl<'a> Paths<'a> {
    fn new(workspace: &Workspace, arch: &'a str) -> Self {
        let mut directory = workspace.target.join("bpf");
        if arch != std::env::consts::ARCH {
            directory.push(arch);
        }
        Self {
            arch,
            build: directory.join(BUILD),
            object: directory.join("profiler.bpf.o"),
            recorded: directory.join("sources"),
            package: workspace.root.join(PACKAGE),
        }
    }

    fn hash_sources(&self) -> Result<String> {
        hash(&self.package)
    }

    fn is_current(&self, sources: &str) -> bool {
        self.object.is_file() && fs::read_to_string(&self.recorded).is_ok_and(|old| old == sources)
    }

    fn install(self, sources: &str) -> Result<PathBuf> {
        let built = self.build.join(TARGET).join("release").join(PACKAGE);
        let bytes = fs::read(&built).with_context(|| format!("reading {}", built.display()))?;
        let bytes = without_debug_information(&bytes)
            .with_context(|| format!("reading {}", built.display()))?;
        replace(&self.object, &bytes)?;
        replace(&self.recorded, sources.as_bytes())?;
        Ok(self.object)
    }
}

/// The kernel and the profiler read BTF, whose places in the programs need no relocation. Three
/// quarters of an object are DWARF, from which the compiler has made it.
fn without_debug_information(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete |= [&b".debug"[..], b".rel.debug", b".rel.BTF"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    }
    // The linker has one table for the names of sections and of symbols; this library needs two.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    builder.delete_orphans();
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// Replaces a file atomically if its content differs, so that dependants are not rebuilt
/// needlessly.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let temporary = path.with_extension("tmp");
    fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| fs::write(&temporary, bytes))
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("writing {}", path.display()))
}
