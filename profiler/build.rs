//! Takes the BPF object that `cargo xtask build` made, so that a plain `cargo build` needs no BPF
//! toolchain, and generates the registry of the sources.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[path = "build/source_hash.rs"]
mod source_hash;

/// The commit from which a package is built, for `--version`. Without it, every commit would build
/// the program again.
const COMMIT_VARIABLE: &str = "PROFILER_COMMIT";
/// Names an object to use instead of the workspace's own.
const OBJECT_VARIABLE: &str = "PROFILER_BPF_OBJECT";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let out = directory("OUT_DIR")?;
    registry(&out)?;
    version()?;
    println!("cargo::rerun-if-env-changed={OBJECT_VARIABLE}");
    let object = match env::var_os(OBJECT_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => target_directory(&out).join("bpf/profiler.bpf.o"),
    };
    println!("cargo::rerun-if-changed={}", object.display());
    if !object.is_file() {
        return Err(format!(
            "no BPF object at {}: run `cargo xtask build` once",
            object.display()
        ));
    }
    if env::var_os(OBJECT_VARIABLE).is_none() {
        warn_if_stale(&object)?;
    }
    fs::copy(&object, out.join("profiler.bpf.o"))
        .map(drop)
        .map_err(|error| format!("copying {}: {error}", object.display()))
}

/// Generates the list of all sources from the public modules of `src/sources/mod.rs`. A macro could
/// declare modules and list, but rustfmt does not find modules that a macro declares.
fn registry(out: &Path) -> Result<(), String> {
    let path = directory("CARGO_MANIFEST_DIR")?.join("src/sources/mod.rs");
    println!("cargo::rerun-if-changed={}", path.display());
    let failed = |error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&path).map_err(failed)?;
    let modules = text.lines().filter_map(|line| {
        let module = line.strip_prefix("pub mod ")?;
        module.strip_suffix(';')
    });
    let entries: Vec<String> = modules.map(|module| format!("&{module}::SPEC")).collect();
    let registry = format!("[{}]", entries.join(", "));
    fs::write(out.join("registry.rs"), registry).map_err(failed)
}

/// Sets what `--version` says about the build.
fn version() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={COMMIT_VARIABLE}");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let commit = match variable(COMMIT_VARIABLE) {
        none if none.is_empty() => "unknown: not built as a package".to_owned(),
        commit => commit,
    };
    let package = directory("CARGO_MANIFEST_DIR")?.join("../profiler-ebpf");
    let programs = match env::var_os(OBJECT_VARIABLE) {
        Some(_) => format!("unknown: of {OBJECT_VARIABLE}"),
        None => source_hash::source_hash(&package)
            .map_err(|error| format!("reading {}: {error}", package.display()))?,
    };
    // NVML is a library that a static program cannot open.
    let features = match variable("CARGO_CFG_TARGET_ENV").as_str() {
        "gnu" => "NVML",
        _ => "none",
    };
    println!("cargo::rustc-env=PROFILER_COMMIT={commit}");
    println!("cargo::rustc-env=PROFILER_PROGRAMS={programs}");
    println!("cargo::rustc-env=PROFILER_FEATURES={features}");
    println!("cargo::rustc-env=PROFILER_TARGET={}", variable("TARGET"));
    Ok(())
}

/// The directory that holds the profiles: cargo marks it with a cache tag.
fn target_directory(out: &Path) -> PathBuf {
    out.ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").is_file())
        .map(Path::to_path_buf)
        .or_else(|| env::var_os("CARGO_TARGET_DIR").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("../target"))
}

fn warn_if_stale(object: &Path) -> Result<(), String> {
    let package = directory("CARGO_MANIFEST_DIR")?.join("../profiler-ebpf");
    let recorded = object.with_file_name("sources");
    for path in [&recorded, &package.join("src"), &package.join("Cargo.toml")] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let current = source_hash::source_hash(&package)
        .map_err(|error| format!("reading {}: {error}", package.display()))?;
    if fs::read_to_string(&recorded).is_ok_and(|hash| hash.trim() == current) {
        return Ok(());
    }
    println!(
        "cargo::warning=the BPF object is older than its source: run `cargo xtask build` to use the new one"
    );
    Ok(())
}

fn directory(variable: &str) -> Result<PathBuf, String> {
    env::var_os(variable)
        .map(PathBuf::from)
        .ok_or_else(|| format!("cargo did not set {variable}"))
}
