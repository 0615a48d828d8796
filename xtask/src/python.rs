//! The Python readers with which the tests open what we write.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt,
    shell::{self, progress},
    workspace::Workspace,
};

const PACKAGES: &[&str] = &["duckdb", "pandas", "psutil", "pyarrow"];

pub fn interpreter(workspace: &Workspace) -> PathBuf {
    workspace.target.join("venv/bin/python")
}

/// The versions of what the tests import, if all of it can be imported.
pub fn installed(workspace: &Workspace) -> Option<String> {
    let program = format!(
        "import {}\nprint(', '.join(f'{{m.__name__}} {{m.__version__}}' for m in ({})))",
        PACKAGES.join(", "),
        PACKAGES.join(", "),
    );
    let versions =
        shell::stdout(Command::new(interpreter(workspace)).args(["-c", program.as_str()])).ok()?;
    Some(versions.trim().to_owned())
}

/// The virtual environment, made if it is not there or not complete.
pub fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    let python = interpreter(workspace);
    if installed(workspace).is_some() {
        return Ok(python);
    }
    if !can_make_environments() {
        if !apt::available() {
            bail!(
                "python3 cannot make virtual environments: run `{}`",
                remedy()
            );
        }
        apt::install(
            &["python3".into(), "python3-venv".into()],
            "virtual environments of Python",
        )?;
    }
    progress(&format!(
        "installing {} into a virtual environment",
        PACKAGES.join(", ")
    ));
    let folder = workspace.target.join("venv");
    shell::run_quietly(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(folder),
    )?;
    shell::run_quietly(
        Command::new(&python)
            .args(["-m", "pip", "install", "-q"])
            .args(PACKAGES),
    )?;
    installed(workspace)
        .with_context(|| format!("{} cannot import its packages", python.display()))?;
    Ok(python)
}

pub fn can_make_environments() -> bool {
    shell::run_quietly(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

pub fn remedy() -> String {
    apt::command(&["python3".into(), "python3-venv".into()])
}
