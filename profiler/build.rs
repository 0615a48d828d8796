//! Takes the BPF object that `cargo xtask build` made, or that a published package contains, so that
//! `cargo build` needs no BPF toolchain, and generates the registry of the sources.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[path = "build/compression.rs"]
mod compression;
#[path = "build/source_hash.rs"]
mod source_hash;

/// The commit from which a package is built, for `--version`. Without it, every commit would build
/// the program again.
const COMMIT_VARIABLE: &str = "PROFILER_COMMIT";
/// Names an object to use instead of the workspace's own, beside the hash of its sources.
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

/// The BPF object of a build.
struct Object {
    path: PathBuf,
    /// Hash of its sources; none for an object of unknown origin.
    sources: Option<String>,
    /// Commit of the package that contains it.
    commit: Option<String>,
}

fn run() -> Result<(), String> {
    let package = directory("CARGO_MANIFEST_DIR")?;
    let out = directory("OUT_DIR")?;
    registry(&out)?;
    println!("cargo::rerun-if-env-changed={OBJECT_VARIABLE}");
    let is_checkout = package.join("../xtask").is_dir();
    let object = if let Some(path) = env::var_os(OBJECT_VARIABLE) {
        given(path.into())
    } else if is_checkout {
        built(&package, &out)?
    } else {
        packaged(&package)?
    };
    println!("cargo::rerun-if-changed={}", object.path.display());
    let failed = |error| format!("{}: {error}", object.path.display());
    let programs = fs::read(&object.path).map_err(failed)?;
    let compressed = compression::compress(&programs).map_err(failed)?;
    fs::write(out.join("profiler.bpf.o.z"), compressed).map_err(failed)?;
    version(object);
    Ok(())
}

/// The object that the variable names.
fn given(path: PathBuf) -> Object {
    let recorded = path.with_file_name("sources");
    let hash = fs::read_to_string(&recorded).ok();
    if hash.is_some() {
        println!("cargo::rerun-if-changed={}", recorded.display());
    }
    Object {
        path,
        sources: hash.map(|hash| hash.trim().to_owned()),
        commit: None,
    }
}

/// The object that `cargo xtask build` made.
fn built(package: &Path, out: &Path) -> Result<Object, String> {
    let path = target_directory(out).join("bpf/profiler.bpf.o");
    if !path.is_file() {
        return Err(format!(
            "no BPF object at {}: run `cargo xtask build` once",
            path.display()
        ));
    }
    let programs = package.join("../profiler-ebpf");
    let recorded = path.with_file_name("sources");
    for input in [
        &recorded,
        &programs.join("src"),
        &programs.join("Cargo.toml"),
    ] {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    let current = source_hash::source_hash(&programs)
        .map_err(|error| format!("reading {}: {error}", programs.display()))?;
    if !fs::read_to_string(&recorded).is_ok_and(|hash| hash.trim() == current) {
        println!(
            "cargo::warning=the BPF object is older than its source: run `cargo xtask build` to use the new one"
        );
    }
    Ok(Object {
        path,
        sources: Some(current),
        commit: None,
    })
}

/// The object in a published package.
fn packaged(package: &Path) -> Result<Object, String> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let objects = package.join("bpf");
    let path = objects.join(format!("{arch}.o"));
    if !path.is_file() {
        return Err(format!(
            "this package has no BPF object for {arch}: {} is missing",
            path.display()
        ));
    }
    let recorded = |name| {
        let path = objects.join(name);
        let text = fs::read_to_string(&path);
        text.map_err(|error| format!("reading {}: {error}", path.display()))
    };
    Ok(Object {
        path,
        sources: Some(recorded("sources")?.trim().to_owned()),
        commit: Some(recorded("commit")?),
    })
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
fn version(object: Object) {
    println!("cargo::rerun-if-env-changed={COMMIT_VARIABLE}");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let commit = match variable(COMMIT_VARIABLE) {
        none if none.is_empty() => object
            .commit
            .unwrap_or_else(|| "unknown: not built as a package".to_owned()),
        commit => commit,
    };
    let programs = object
        .sources
        .unwrap_or_else(|| format!("unknown: of {OBJECT_VARIABLE}"));
    // NVML is a library that a static program cannot open.
    let features = match variable("CARGO_CFG_TARGET_ENV").as_str() {
        "gnu" => "NVML",
        _ => "none",
    };
    println!("cargo::rustc-env=PROFILER_COMMIT={commit}");
    println!("cargo::rustc-env=PROFILER_PROGRAMS={programs}");
    println!("cargo::rustc-env=PROFILER_FEATURES={features}");
    println!("cargo::rustc-env=PROFILER_TARGET={}", variable("TARGET"));
}

/// The directory that holds the profiles: cargo marks it with a cache tag.
fn target_directory(out: &Path) -> PathBuf {
    out.ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").is_file())
        .map(Path::to_path_buf)
        .or_else(|| env::var_os("CARGO_TARGET_DIR").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("../target"))
}

fn directory(variable: &str) -> Result<PathBuf, String> {
    env::var_os(variable)
        .map(PathBuf::from)
        .ok_or_else(|| format!("cargo did not set {variable}"))
}
