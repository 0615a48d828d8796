//! The Python package: types, and tests on several versions of Python.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{Selection, rust};
use crate::{
    apt,
    dist::{self, Format},
    python::{self, Environment},
    run::privileged,
    shell,
    workspace::Workspace,
};

/// Other versions of Python, on which the tests run if they are installed.
const VERSIONS: [(&str, Environment); 2] = [("3.9", python::OLDEST), ("3.13", python::NEWEST)];
/// Tests that run on these.
const TESTS: [&str; 4] = [
    "tests/test_marks.py",
    "tests/test_session.py",
    "tests/test_reader.py",
    "tests/test_wheel.py",
];
/// Tests that run without arguments; they need no package but those of the end-to-end tests.
const QUICK: [&str; 2] = ["tests/test_marks.py", "tests/test_session.py"];
/// Options of pytest.
const PYTEST: [&str; 5] = ["-q", "-rfEs", "--tb=short", "-p", "no:cacheprovider"];
/// The server of this test is installed for one version.
const DESELECTED: &str = "tests/test_reader.py::test_s3";
/// From which a test makes a locale.
const LOCALES: &str = "/usr/share/i18n/locales/de_DE";
/// Tests of the tier `frameworks` alone.
const FRAMEWORKS: [&str; 3] = [
    "tests/test_torch.py",
    "tests/test_scikit_learn.py",
    "tests/test_ray.py",
];
/// Tests of this tier that also run in that one, with Debian's Open MPI.
const MPI: &str = "tests/test_frameworks.py::test_mpi_ranks";
const ENVIRONMENT: &str = "tests/environments/frameworks";

/// The tier `python`. Filters are parts of names of tests; with filters, only one version runs.
pub fn run(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    let filter = selection.filter;
    let package = workspace.root.join("python");
    let profiler = rust::profiler(workspace)?;
    if selection.is_quick {
        let python = python::obtain(workspace)?;
        let mut command = pytest(&python, &package, &profiler);
        command.args(QUICK).env("PYTHONPATH", package.join("src"));
        return Ok(format!("{} tests", tests(&mut command)?));
    }
    let python = python::PACKAGE.obtain(workspace)?;
    // The plugin of pytest is an entry point, which only an installed package has.
    shell::run_quietly(
        shell::unprivileged(&mut Command::new(&python))
            .args(["-m", "pip", "install", "-q", "--no-index", "--no-deps"])
            .args(["--no-build-isolation", "--force-reinstall"])
            .arg(&package),
    )?;
    check(workspace, &python, &package)?;
    if !Path::new(LOCALES).exists() {
        apt::install(&["locales".into()], "locales without UTF-8")?;
    }
    let wheels = workspace.target.join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    dist::of_program(workspace, &profiler, &profiler, &[Format::Wheel], &wheels)?;

    let mut command = pytest(&python, &package, &profiler);
    command
        .args(FRAMEWORKS.map(|test| format!("--ignore={test}")))
        .env("PROFILER_WHEELS", &wheels);
    select(&mut command, filter);
    let current = python::version(&python)?;
    let mut remarks = vec![format!("{} tests on {current}", tests(&mut command)?)];
    for (version, environment) in VERSIONS {
        let Some(base) = python::find(version).filter(|_| filter.is_empty()) else {
            continue;
        };
        let full = python::version(&base)?;
        if full == current {
            continue;
        }
        let python = environment.obtain_with(workspace, &base)?;
        let mut command = pytest(&python, &package, &profiler);
        command
            .args(TESTS)
            .args(["--deselect", DESELECTED])
            .env("PROFILER_WHEELS", &wheels)
            .env("PYTHONPATH", package.join("src"));
        remarks.push(format!("{} on {full}", tests(&mut command)?));
    }
    Ok(remarks.join(", "))
}

/// The tier `frameworks`, in a Debian below `target/` that has PyTorch without CUDA.
pub fn frameworks(workspace: &Workspace, filter: &[String]) -> Result<String> {
    apt::obtain(&[("mmdebstrap", "mmdebstrap")], "a Debian with PyTorch")?;
    let python = python::obtain(workspace)?;
    let profiler = rust::profiler(workspace)?;
    let script = |name: &str| workspace.root.join(ENVIRONMENT).join(name);
    let requirements = workspace.root.join("tests").join(python::FRAMEWORKS);
    let root = workspace.target.join("frameworks");
    if fs::read(root.join("requirements.txt")).ok() != fs::read(&requirements).ok() {
        let mut make = privileged(Path::new("sh"));
        make.arg(script("make.sh"))
            .args([&root, &requirements, &python]);
        shell::run_slowly(&mut make, "creating a Debian with PyTorch (some minutes)")?;
    }
    let package = workspace.root.join("python");
    let mut command = privileged(Path::new("unshare"));
    command
        .args(["--mount", "sh"])
        .args([&script("enter.sh"), &root, &workspace.root])
        .args([workspace.target.as_path(), Path::new("--")])
        .args([
            "env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C.UTF-8",
        ])
        .args(["HOME=/root", "PYTHONDONTWRITEBYTECODE=1"])
        .arg(format!("PYTHONPATH={}", package.join("src").display()))
        .arg(format!("PROFILER_BIN={}", profiler.display()))
        .args(["python3", "-m", "pytest"])
        .args(PYTEST)
        .arg("--rootdir")
        .arg(&package);
    let tests_of = FRAMEWORKS.into_iter().chain([MPI]);
    command.args(tests_of.map(|test| package.join(test)));
    select(&mut command, filter);
    Ok(format!("{} tests", tests(&mut command)?))
}

/// Selects tests by parts of their names.
fn select(command: &mut Command, filter: &[String]) {
    if !filter.is_empty() {
        command.args(["-k", &filter.join(" or ")]);
    }
}

/// Types and style. `mypy` knows the package alone, `pyright` also those that it uses.
fn check(workspace: &Workspace, python: &Path, package: &Path) -> Result<()> {
    let cache = workspace.target.join("mypy");
    let cache = cache.to_string_lossy();
    let interpreter = python.to_string_lossy();
    let checks: [&[&str]; 3] = [
        &["mypy", "--cache-dir", &cache],
        &["basedpyright", "--pythonpath", &interpreter],
        &["ruff", "check", "--no-cache"],
    ];
    for arguments in checks {
        let mut check = Command::new(python);
        shell::run(check.arg("-m").args(arguments).current_dir(package))?;
    }
    Ok(())
}

fn pytest(python: &Path, package: &Path, profiler: &Path) -> Command {
    let mut command = if shell::is_root() {
        Command::new(python)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env", "--"]).arg(python);
        sudo
    };
    command
        .args(["-m", "pytest"])
        .args(PYTEST)
        .current_dir(package)
        .env("PROFILER_BIN", profiler)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs pytest and returns the number of tests. It fails if a test did not run.
fn tests(command: &mut Command) -> Result<u64> {
    let name = shell::display(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{name}`"))?;
    let mut failures = Vec::new();
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let line = line.with_context(|| format!("reading the output of `{name}`"))?;
        println!("{line}");
        if ["FAILED ", "ERROR ", "SKIPPED "]
            .iter()
            .any(|word| line.starts_with(word))
        {
            failures.push(format!("\n  {line}"));
        }
        last = line;
    }
    let failures = failures.concat();
    let status = child
        .wait()
        .with_context(|| format!("waiting for `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed ({status}){failures}");
    }
    let (passed, skipped) = counts(&last);
    if passed == 0 || skipped > 0 {
        bail!("`{name}`: {passed} tests passed, {skipped} were skipped{failures}");
    }
    Ok(passed)
}

/// Numbers of passed and skipped tests in `83 passed, 1 skipped, 2 warnings in 85.02s (0:01:25)`.
fn counts(line: &str) -> (u64, u64) {
    let count = |word: &str| {
        let words: Vec<_> = line
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .collect();
        let index = words.iter().position(|found| *found == word)?;
        words.get(index.checked_sub(1)?)?.parse().ok()
    };
    (count("passed").unwrap_or(0), count("skipped").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn counts_of_a_summary() {
        let line = "83 passed, 1 skipped, 1 deselected, 2 warnings in 85.02s (0:01:25)";
        assert_eq!(counts(line), (83, 1));
        assert_eq!(counts("57 passed in 21.58s"), (57, 0));
        assert_eq!(counts("no tests ran in 0.01s"), (0, 0));
    }
}
