//! Adds a source to a copy of the workspace: a file, and a line that registers it. The programs and
//! outputs must know the source without any other change.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{bpf, shell, workspace::Workspace};

/// The program of the copy.
const PROGRAM: &str = "profiler-new-source";
/// The source that is added; its table has the same name.
const NAME: &str = "descriptors";
/// File of the source.
const FILE: &str = "tests/new_source/descriptors.rs";
/// Directory of the sources, with the list of modules.
const SOURCES: &str = "profiler/src/sources";
/// Source before the new one in the list.
const BEFORE: &str = "pub mod usage;\n";

/// Builds the copy with the new source and checks the program. The remark is the size of the
/// change.
pub fn run(workspace: &Workspace) -> Result<String> {
    let object = bpf::build(workspace)?;
    let scratch = workspace.target.join("new-source");
    let copy = scratch.join("workspace");
    copy_workspace(workspace, &copy)?;
    rename_program(&copy)?;
    let source = workspace.root.join(FILE);
    add_source(&source, &copy)?;

    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace.cargo();
        cargo.args(arguments).current_dir(&copy);
        cargo
    };
    shell::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    // The dependencies are those of the workspace.
    shell::run_slowly(
        cargo(&["build", "--quiet", "--locked", "--workspace"])
            .args(["--bin", PROGRAM, "--target-dir"])
            .arg(&workspace.target)
            .env("PROFILER_BPF_OBJECT", object),
        "building a copy with another source",
    )?;
    let program = workspace.target.join("debug").join(PROGRAM);
    check(&program, &scratch.join("profiles"))?;

    let text = fs::read_to_string(&source).with_context(|| format!("reading {FILE}"))?;
    let lines = text.lines().count();
    Ok(format!("a source in 2 files, {} lines", lines + 1))
}

/// Gives the program another name, so that the build does not replace the program of the workspace.
fn rename_program(copy: &Path) -> Result<()> {
    let path = copy.join("profiler/Cargo.toml");
    let manifest = fs::read_to_string(&path);
    let manifest = manifest.with_context(|| format!("reading {}", path.display()))?;
    let manifest = manifest.replace("[package]\n", "[package]\nautobins = false\n");
    let program = format!("\n[[bin]]\nname = \"{PROGRAM}\"\npath = \"src/main.rs\"\n");
    fs::write(&path, manifest + &program).with_context(|| format!("writing {}", path.display()))
}

/// Copies all but the build outputs and the history.
fn copy_workspace(workspace: &Workspace, copy: &Path) -> Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(|| format!("removing {}", copy.display()))?;
    }
    fs::create_dir_all(copy).with_context(|| format!("creating {}", copy.display()))?;
    let root = &workspace.root;
    let entries = fs::read_dir(root).with_context(|| format!("reading {}", root.display()))?;
    for entry in entries {
        let path = entry.context("reading a directory")?.path();
        if path != workspace.target && !path.ends_with(".git") {
            // Unchanged files keep their time, so that cargo does not compile them again.
            shell::run(Command::new("cp").arg("-a").args([&path, copy]))?;
        }
    }
    Ok(())
}

fn add_source(source: &Path, copy: &Path) -> Result<()> {
    let sources = copy.join(SOURCES);
    fs::copy(source, sources.join(format!("{NAME}.rs")))
        .with_context(|| format!("copying {}", source.display()))?;
    let path = sources.join("mod.rs");
    let modules = fs::read_to_string(&path);
    let modules = modules.with_context(|| format!("reading {}", path.display()))?;
    ensure!(modules.contains(BEFORE), "no `{}`", BEFORE.trim());
    let modules = modules.replace(BEFORE, &format!("{BEFORE}pub mod {NAME};\n"));
    fs::write(&path, modules).with_context(|| format!("writing {}", path.display()))
}

/// Checks that the program knows, describes, runs and stores the source.
fn check(profiler: &Path, out: &Path) -> Result<()> {
    let print = |arguments: &[&str]| shell::stdout(Command::new(profiler).args(arguments));
    let schema: Value = serde_json::from_str(&print(&["schema", "--json"])?)?;
    let mut tables = schema["tables"].as_array().into_iter().flatten();
    let described = tables.any(|table| table["sources"][0] == NAME && table["table"] == NAME);
    ensure!(described, "`profiler schema` does not have the table");
    let reference = print(&["schema", "--markdown"])?;
    let section = format!("## Source `{NAME}`");
    ensure!(reference.contains(&section), "the reference has no section");
    let checked: Value = serde_json::from_str(&print(&["check", "--json"])?)?;
    let mut sources = checked["sources"].as_array().into_iter().flatten();
    let checked = sources.any(|source| source["source"] == NAME);
    ensure!(checked, "`profiler check` does not list the source");

    let run = record(profiler, out)?;
    shell::run_quietly(Command::new(profiler).arg("verify").arg(&run))?;
    ensure!(run.join(NAME).is_dir(), "the run has no rows of the source");
    let views = fs::read_to_string(run.join("views.sql")).context("reading views.sql")?;
    let of_processes = format!("VIEW process_{NAME} AS");
    ensure!(views.contains(&of_processes), "no `{of_processes}`");
    Ok(())
}

/// Profiles a command with the new source only; returns the directory of the run.
fn record(profiler: &Path, out: &Path) -> Result<PathBuf> {
    const RUN: &str = "new-source";
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("removing {}", out.display()))?;
    }
    let mut run = Command::new(profiler);
    run.args(["run", "--quiet", "--interval=20ms", "--run-id", RUN])
        .args(["--source", NAME, "--out"])
        .arg(out)
        .args(["--", "sleep", "0.2"]);
    shell::run_quietly(&mut run)?;
    Ok(out.join(RUN))
}
