//! bpf-linker, which links LLVM bitcode to a BPF object.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    apt,
    cargo_tool::CargoTool,
    shell::{self, progress},
    toolchain::Compiler,
    workspace::{self, Workspace},
};

const TOOL: CargoTool = CargoTool {
    name: "bpf-linker",
    version: "0.13.0",
    checksum: "998bea250d009a4719ed16ab6d772d519b77b031a0261e69223a35013972594b",
};

/// A linker that has linked output of the compiler.
pub struct Linker {
    pub path: PathBuf,
}

/// The linker that xtask has built, otherwise a working one on PATH or in cargo's directory.
pub fn find(workspace: &Workspace, compiler: &Compiler) -> Option<Linker> {
    let own = TOOL.program(workspace, &variant(compiler.llvm));
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let candidates = [
        Some(own),
        shell::which("bpf-linker"),
        cargo_home.map(|home| home.join("bin/bpf-linker")),
    ];
    let path = candidates
        .into_iter()
        .flatten()
        .find(|path| shell::is_executable(path) && works(workspace, compiler, path))?;
    Some(Linker { path })
}

/// One linker per version of LLVM, because each compiler needs its own.
fn variant(llvm: u32) -> String {
    format!("-llvm-{llvm}")
}

/// Tests whether the linker accepts output of the compiler, since version numbers are not
/// sufficient.
fn works(workspace: &Workspace, compiler: &Compiler, linker: &Path) -> bool {
    if linked_llvm(linker).is_some_and(|version| version < compiler.llvm) {
        return false;
    }
    let dir = workspace.target.join("bpf/probe");
    let source = dir.join("probe.rs");
    let bitcode = dir.join("probe.bc");
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(&source, PROBE))
        .is_ok()
        && shell::run_quietly(
            Command::new(&compiler.rustc)
                .args([
                    "--target=bpfel-unknown-none",
                    "--crate-type=lib",
                    "--emit=llvm-bc",
                ])
                .args(["-Cdebuginfo=2", "-o"])
                .args([&bitcode, &source])
                .env("RUSTC_BOOTSTRAP", "1"),
        )
        .is_ok()
        && shell::run_quietly(
            Command::new(linker)
                .args(["--cpu=v3", "--btf", "--export=probe", "-o"])
                .args([&dir.join("probe.o"), &bitcode]),
        )
        .is_ok()
}

/// A minimal program without `core`.
const PROBE: &str = r#"#![feature(no_core, lang_items)]
#![no_core]
#![allow(internal_features)]
#[lang = "pointee_sized"] pub trait PointeeSized {}
#[lang = "meta_sized"] pub trait MetaSized: PointeeSized {}
#[lang = "sized"] pub trait Sized: MetaSized {}
#[lang = "copy"] pub trait Copy {}
impl Copy for u64 {}
#[unsafe(no_mangle)] pub extern "C" fn probe(x: u64) -> u64 { x }
"#;

/// Major version of the LLVM library of the linker; none if it is linked statically.
fn linked_llvm(linker: &Path) -> Option<u32> {
    let libraries = shell::stdout(Command::new("ldd").arg(linker)).ok()?;
    let name = libraries
        .split_whitespace()
        .find(|word| word.starts_with("libLLVM"))?;
    name.split(|c: char| !c.is_ascii_digit())
        .find(|part| !part.is_empty())?
        .parse()
        .ok()
}

/// Prefix of an LLVM with development files.
pub fn llvm_prefix(llvm: u32) -> Option<PathBuf> {
    let given = env::var_os("LLVM_PREFIX").map(PathBuf::from);
    let usual = ["/usr/lib/llvm-", "/usr/lib/llvm", "/usr/lib64/llvm"];
    let usual = usual.map(|path| PathBuf::from(format!("{path}{llvm}")));
    given.into_iter().chain(usual).find(|prefix| {
        let config = prefix.join("bin/llvm-config");
        let version = shell::stdout(Command::new(config).arg("--version")).unwrap_or_default();
        let library = ["lib", "lib64"].map(|dir| prefix.join(dir).join("libLLVM.so"));
        workspace::parse_version(&version).is_some_and(|(major, _)| major == llvm)
            && library.iter().any(|path| path.exists())
    })
}

/// Packages of LLVM's development files and of the libraries that LLVM is linked with.
fn llvm_packages(llvm: u32) -> Vec<String> {
    let mut packages = vec![format!("llvm-{llvm}-dev"), format!("libpolly-{llvm}-dev")];
    packages.extend(["zlib1g-dev", "libzstd-dev"].map(String::from));
    packages
}

/// Whether [`install`] can work.
pub fn is_installable(compiler: &Compiler) -> bool {
    if llvm_prefix(compiler.llvm).is_some() {
        return true;
    }
    let package = format!("llvm-{}-dev", compiler.llvm);
    apt::available() && {
        if apt::candidate(&package).is_none() {
            apt::update();
        }
        apt::candidate(&package).is_some()
    }
}

/// Builds the linker against the compiler's LLVM.
pub fn install(workspace: &Workspace, compiler: &Compiler) -> Result<Linker> {
    let llvm = compiler.llvm;
    if llvm_prefix(llvm).is_none() {
        apt::install(
            &llvm_packages(llvm),
            "LLVM of this compiler, for the BPF linker",
        )?;
    }
    let prefix = llvm_prefix(llvm)
        .with_context(|| format!("LLVM {llvm} not found after its installation"))?;
    progress(&format!(
        "building bpf-linker for LLVM {llvm} (about a minute)"
    ));
    // Any compiler can build the linker; only LLVM must match.
    let feature = format!("--features=llvm-{llvm}");
    let options = ["--no-default-features", &feature];
    let variables = [("LLVM_PREFIX", &*prefix)];
    TOOL.install(workspace, &variant(llvm), &options, &variables)?;
    find(workspace, compiler).context("the new bpf-linker rejects output of the compiler")
}

/// The command that installs a linker.
pub fn remedy(compiler: &Compiler) -> String {
    let llvm = compiler.llvm;
    let build = format!(
        "cargo install bpf-linker --version {} --locked --no-default-features --features llvm-{llvm}",
        TOOL.version
    );
    if llvm_prefix(llvm).is_some() {
        format!("run `{build}`")
    } else if shell::which("apt-get").is_some() {
        format!("run `{}`", apt::command(&llvm_packages(llvm)))
    } else {
        format!("install the development files of LLVM {llvm}, then run `{build}`")
    }
}
