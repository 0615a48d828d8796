//! The Python environment of the tests.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt,
    shell::{self, progress},
    workspace::Workspace,
};

/// Packages that the tests import, pinned with their dependencies in tests/requirements.txt.
const PACKAGES: &[&str] = &["duckdb", "pandas", "psutil", "pyarrow"];

/// Fails unless the pinned versions for this Python are installed.
const CHECK: &str = r##"
import sys
from importlib.metadata import version
from pip._vendor.packaging.requirements import Requirement
text = open(sys.argv[1]).read().replace("\\\n", " ")
for line in text.splitlines():
    line = line.split("--hash")[0].strip()
    if line and not line.startswith("#"):
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate():
            assert wanted.specifier.contains(version(wanted.name)), line
"##;

fn requirements(workspace: &Workspace) -> PathBuf {
    workspace.root.join("tests/requirements.txt")
}

pub fn interpreter(workspace: &Workspace) -> PathBuf {
    workspace.target.join("venv/bin/python")
}

/// Versions of the imported packages; `None` unless all pinned versions are installed.
pub fn installed(workspace: &Workspace) -> Option<String> {
    let python = || Command::new(interpreter(workspace));
    let check = &mut python();
    shell::run_quietly(check.args(["-c", CHECK]).arg(requirements(workspace))).ok()?;
    let program = format!(
        "import {}\nprint(', '.join(f'{{m.__name__}} {{m.__version__}}' for m in ({})))",
        PACKAGES.join(", "),
        PACKAGES.join(", "),
    );
    let versions = shell::stdout(python().args(["-c", program.as_str()])).ok()?;
    Some(versions.trim().to_owned())
}

/// The interpreter of the virtual environment, which is created if it is missing or incomplete.
pub fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    let python = interpreter(workspace);
    if installed(workspace).is_some() {
        return Ok(python);
    }
    if !can_create_environments() {
        if !apt::available() {
            bail!(
                "python3 cannot create virtual environments: run `{}`",
                remedy()
            );
        }
        apt::install(
            &["python3".into(), "python3-venv".into()],
            "Python's virtual environments",
        )?;
    }
    progress(&format!(
        "installing {} into a virtual environment",
        PACKAGES.join(", ")
    ));
    let directory = workspace.target.join("venv");
    shell::make_unprivileged(&directory)?;
    shell::run_quietly(
        shell::unprivileged(&mut Command::new("python3"))
            .args(["-m", "venv", "--clear"])
            .arg(directory),
    )?;
    shell::run_quietly(
        shell::unprivileged(&mut Command::new(&python))
            .args(["-m", "pip", "install", "-q", "--require-hashes"])
            .args(["--only-binary", ":all:", "-r"])
            .arg(requirements(workspace)),
    )?;
    installed(workspace)
        .with_context(|| format!("{}: packages cannot be imported", python.display()))?;
    Ok(python)
}

pub fn can_create_environments() -> bool {
    shell::run_quietly(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

pub fn remedy() -> String {
    apt::command(&["python3".into(), "python3-venv".into()])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::PACKAGES;

    /// pip then refuses packages that have no hash or are not listed.
    #[test]
    fn all_requirements_have_versions_and_hashes() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/requirements.txt");
        let text = std::fs::read_to_string(path).expect("the requirements");
        let text = text.replace("\\\n", " ");
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        let mut names = Vec::new();
        for line in lines {
            let (name, rest) = line.split_once("==").expect(line);
            assert!(
                rest.starts_with(|first: char| first.is_ascii_digit()),
                "{line}"
            );
            let hashes = rest
                .split_whitespace()
                .filter_map(|word| word.strip_prefix("--hash=sha256:"));
            let mut count = 0;
            for hash in hashes {
                assert!(
                    hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
                    "{line}"
                );
                count += 1;
            }
            assert!(count >= 1, "{line}");
            names.push(name);
        }
        for package in PACKAGES {
            assert!(names.contains(package), "{package}");
        }
    }
}
