//! Finds a compiler for `bpfel-unknown-none`.
//!
//! No distribution has `core` compiled for BPF. The compiler therefore needs the source of its
//! `core` (rust-src) and a linker with the same version of LLVM.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt,
    linker::{self, Linker},
    shell,
    workspace::{self, Workspace},
};

/// A compiler, which need not be able to build BPF programs.
#[derive(Clone, Debug)]
pub struct Compiler {
    pub rustc: PathBuf,
    pub sysroot: PathBuf,
    pub release: String,
    /// Major version of its LLVM.
    pub llvm: u32,
}

/// The tools that build the BPF object.
pub struct Toolchain {
    pub compiler: Compiler,
    pub linker: Linker,
}

impl Compiler {
    fn probe(rustc: &Path) -> Result<Self> {
        let command = || {
            let mut command = Command::new(rustc);
            clean(&mut command);
            command
        };
        let version = shell::stdout(command().arg("-vV"))?;
        let field = |name: &str| {
            let value = version.lines().find_map(|line| line.strip_prefix(name));
            value.with_context(|| format!("`{} -vV` without `{name}`", rustc.display()))
        };
        let (llvm, _) = workspace::parse_version(field("LLVM version: ")?)
            .with_context(|| format!("the LLVM version of {}", rustc.display()))?;
        Ok(Self {
            rustc: rustc.to_path_buf(),
            sysroot: shell::stdout(command().args(["--print", "sysroot"]))?
                .trim()
                .into(),
            release: field("release: ")?.to_owned(),
            llvm,
        })
    }

    pub fn has_core_source(&self) -> bool {
        self.sysroot
            .join("lib/rustlib/src/rust/library/core/src/lib.rs")
            .is_file()
    }

    fn is_recent(&self, workspace: &Workspace) -> bool {
        workspace::parse_version(&self.release).is_some_and(|v| v >= workspace.rust_version)
    }

    /// The cargo of this compiler, which can build its `core`, otherwise the one that runs xtask.
    fn cargo(&self) -> PathBuf {
        let own = self.sysroot.join("bin/cargo");
        if shell::is_executable(&own) {
            own
        } else {
            workspace::cargo().into()
        }
    }

    /// A cargo command with this compiler and the unstable `-Z build-std`.
    pub fn cargo_command(&self) -> Command {
        let mut command = Command::new(self.cargo());
        clean(&mut command);
        command
            .env("RUSTC", &self.rustc)
            .env("RUSTC_BOOTSTRAP", "1");
        command
    }
}

/// Removes the compiler and the flags that cargo has set for programs of the host.
fn clean(command: &mut Command) {
    for variable in [
        "CARGO_BUILD_TARGET",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "RUSTC",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTDOC",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
    ] {
        command.env_remove(variable);
    }
}

/// All compilers of this machine, in order of preference.
pub fn compilers() -> Vec<Compiler> {
    let mut paths = rustup_toolchains();
    // A toolchain without rustup, then the distribution's compilers.
    paths.extend(shell::which("rustc").filter(|path| !is_rustup_proxy(path)));
    paths.push("/usr/bin/rustc".into());
    paths.extend(versioned_compilers());
    let mut found: Vec<Compiler> = Vec::new();
    for path in paths.iter().filter(|path| shell::is_executable(path)) {
        // Skip a compiler that does not report its version.
        if let Ok(compiler) = Compiler::probe(path)
            && found.iter().all(|known| known.sysroot != compiler.sysroot)
        {
            found.push(compiler);
        }
    }
    found
}

/// Nightly first, because it supports `-Z build-std`.
fn rustup_toolchains() -> Vec<PathBuf> {
    let list = shell::stdout(Command::new("rustup").args(["toolchain", "list", "--verbose"]));
    let list = list.unwrap_or_default();
    let (mut nightly, others): (Vec<&str>, Vec<&str>) =
        list.lines().partition(|line| line.starts_with("nightly"));
    nightly.extend(others);
    let dirs = nightly
        .iter()
        .filter_map(|line| line.split_whitespace().next_back());
    dirs.map(|dir| Path::new(dir).join("bin/rustc")).collect()
}

fn is_rustup_proxy(rustc: &Path) -> bool {
    rustc.with_file_name("rustup").exists()
}

/// Ubuntu's `rustc-1.89`, newest first.
fn versioned_compilers() -> Vec<PathBuf> {
    let Ok(entries) = Path::new("/usr/bin").read_dir() else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.strip_prefix("rustc-")?;
            Some((workspace::parse_version(version)?, path))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// A complete toolchain that is installed.
pub fn find(workspace: &Workspace) -> Option<Toolchain> {
    usable(workspace).into_iter().find_map(|compiler| {
        let linker = linker::find(workspace, &compiler)?;
        Some(Toolchain { compiler, linker })
    })
}

/// Compilers that are complete except possibly for a linker.
pub fn usable(workspace: &Workspace) -> Vec<Compiler> {
    let ready = |c: &Compiler| c.has_core_source() && c.is_recent(workspace);
    compilers().into_iter().filter(ready).collect()
}

/// A compiler from a package of the distribution.
pub struct Package {
    pub compiler: Compiler,
    /// Suffix of the name, such as `-web` in `rustc-web`.
    pub suffix: String,
    pub version: String,
}

/// The first packaged compiler; installs one if there is none.
pub fn packaged(workspace: &Workspace) -> Result<Package> {
    let find = || {
        let mut recent = compilers().into_iter().filter(|c| c.is_recent(workspace));
        recent.find_map(|compiler| {
            let (name, version) = apt::owner(&compiler.rustc.canonicalize().ok()?)?;
            Some(Package {
                suffix: name.strip_prefix("rustc")?.to_owned(),
                compiler,
                version,
            })
        })
    };
    if let Some(package) = find() {
        return Ok(package);
    }
    install_compiler(workspace)?;
    find().context("the installed compiler was not found")
}

/// A complete toolchain; missing parts are installed if possible.
pub fn obtain(workspace: &Workspace) -> Result<Toolchain> {
    if let Some(toolchain) = find(workspace) {
        return Ok(toolchain);
    }
    if !usable(workspace).iter().any(linker::is_installable) {
        install_compiler(workspace)?;
        // A matching linker may exist from an earlier installation.
        if let Some(toolchain) = find(workspace) {
            return Ok(toolchain);
        }
    }
    let compilers = usable(workspace);
    let Some(compiler) = compilers.into_iter().find(linker::is_installable) else {
        bail!("no BPF toolchain: {}", remedy(workspace));
    };
    let linker = linker::install(workspace, &compiler)?;
    Ok(Toolchain { compiler, linker })
}

fn install_compiler(workspace: &Workspace) -> Result<()> {
    if !apt::available() {
        bail!("no BPF toolchain: {}", remedy(workspace));
    }
    if compiler_packages(workspace).is_none() {
        apt::update();
    }
    let packages = compiler_packages(workspace).with_context(|| {
        let (major, minor) = workspace.rust_version;
        format!("no BPF toolchain: no package has rustc {major}.{minor} or newer")
    })?;
    apt::install(
        &packages,
        "Rust compiler with the source of its core library",
    )
}

/// The newest compiler that is packaged with its source: `rustc-web` and `rust-web-src` in Debian's
/// security updates, `rustc-1.89` and `rust-1.89-src` in Ubuntu, `rustc` and `rust-src`.
fn compiler_packages(workspace: &Workspace) -> Option<Vec<String>> {
    let newest = apt::names("^rustc(-web|-[0-9.]+)?$")
        .into_iter()
        .filter_map(|name| Some((workspace::parse_version(&apt::candidate(&name)?)?, name)))
        .filter(|(version, _)| *version >= workspace.rust_version)
        .max()?;
    let suffix = newest.1.strip_prefix("rustc")?;
    Some(vec![format!("rustc{suffix}"), format!("rust{suffix}-src")])
}

/// The command that installs a toolchain.
pub fn remedy(workspace: &Workspace) -> String {
    if let Some(compiler) = usable(workspace).first() {
        return linker::remedy(compiler);
    }
    let rustup = "`rustup toolchain install nightly --component rust-src`";
    match shell::which("apt-get").and_then(|_| compiler_packages(workspace)) {
        Some(packages) => format!("run `{}` (or {rustup})", apt::command(&packages)),
        None if shell::which("rustup").is_some() => {
            format!("run {rustup}")
        }
        None => format!("install rustup, then run {rustup}"),
    }
}
