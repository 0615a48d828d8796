//! Fuzz targets: built with instrumentation, given their seeds, and run for a while each.

use std::{
    env, fs,
    fs::File,
    num::NonZeroU64,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    bpf,
    cargo_tool::CargoTool,
    shell::{self, progress},
    workspace::Workspace,
};

const TOOL: CargoTool = CargoTool {
    name: "cargo-fuzz",
    version: "0.13.1",
    checksum: "990e4e600e695b730ae23c2f4e6336ee63e9efe6527273f557f86d37eac724e7",
};

/// Where the targets are.
const DIRECTORY: &str = "tests/fuzz";

/// Time for each target, s, and the variable that says otherwise.
const SECONDS: u64 = 60;
const SECONDS_VARIABLE: &str = "PROFILER_FUZZ_SECONDS";

/// Targets that run at the same time.
const AT_ONCE: usize = 2;

/// An input that takes longer (s), or more memory (MiB), is a failure.
const INPUT_SECONDS: u64 = 60;
const MEMORY_MIB: u64 = 2048;

/// Runs the targets whose names contain one of the filters, or all.
pub fn run(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let targets = targets(workspace, filter)?;
    let seconds = seconds()?;
    build(workspace)?;
    let scratch = Scratch::new(workspace)?;
    let runs: Vec<_> = targets
        .iter()
        .map(|name| Run::new(workspace, &scratch.0, name))
        .collect();
    for run in &runs {
        run.replay()?;
    }
    let next = AtomicUsize::new(0);
    let results: Vec<Result<u64>> = thread::scope(|scope| {
        let work = || {
            let mut results = Vec::new();
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                results.push(run.fuzz(seconds));
            }
            results
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(thread::ScopedJoinHandle::join);
        results
            .flat_map(|results| results.expect("reports failures, does not panic"))
            .collect()
    });
    let mut inputs = 0;
    let mut failed = Vec::new();
    for result in results {
        match result {
            Ok(count) => inputs += count,
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    let count = targets.len();
    Ok(format!(
        "{count} targets for {seconds} s each, {inputs} inputs"
    ))
}

/// Names of the targets: those of the files.
fn targets(workspace: &Workspace, filter: &[String]) -> Result<Vec<String>> {
    let directory = workspace.root.join(DIRECTORY).join("targets");
    let files =
        fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut names: Vec<_> = files
        .filter_map(|file| {
            let name = file.ok()?.file_name().into_string().ok()?;
            name.strip_suffix(".rs").map(str::to_owned)
        })
        .filter(|name| filter.is_empty() || filter.iter().any(|part| name.contains(part)))
        .collect();
    if names.is_empty() {
        bail!("no fuzz target is called {}", filter.join(" or "));
    }
    names.sort();
    Ok(names)
}

/// Not 0, which libFuzzer takes for no limit.
fn seconds() -> Result<u64> {
    match env::var(SECONDS_VARIABLE) {
        Ok(text) => {
            let seconds: Result<NonZeroU64, _> = text.parse();
            seconds
                .map(NonZeroU64::get)
                .with_context(|| format!("{SECONDS_VARIABLE}={text}: not a number of seconds"))
        }
        Err(_) => Ok(SECONDS),
    }
}

fn build(workspace: &Workspace) -> Result<()> {
    let object = bpf::build(workspace)?;
    let program = obtain(workspace)?;
    // cargo-fuzz itself would change a lock file that does not fit.
    let manifest = workspace.root.join(DIRECTORY).join("Cargo.toml");
    shell::run_quietly(
        workspace
            .cargo()
            .args(["metadata", "--locked", "--format-version=1"])
            .arg("--manifest-path")
            .arg(manifest),
    )?;
    // No sanitizer: those need a nightly compiler and its standard library.
    shell::run_slowly(
        Command::new(program)
            .args(["build", "--sanitizer", "none", "--fuzz-dir", DIRECTORY])
            .arg("--target-dir")
            .arg(output(workspace))
            .current_dir(&workspace.root)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("PROFILER_BPF_OBJECT", object),
        "building the fuzz targets (some minutes the first time)",
    )
}

fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace
        .tools()
        .join(format!("cargo-fuzz-{}", TOOL.version));
    let program = root.join("bin/cargo-fuzz");
    if shell::is_executable(&program) {
        return Ok(program);
    }
    progress("building cargo-fuzz (half a minute)");
    let options = ["--debug", "--config", "profile.dev.debug=false"];
    TOOL.install(workspace, &root, &options, &[])?;
    Ok(program)
}

fn output(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fuzz")
}

/// Where targets have their files: in memory, if possible. It goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(workspace: &Workspace) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() {
            memory.to_owned()
        } else {
            output(workspace)
        };
        let path = parent.join(format!("profiler-fuzz-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A target that is built.
struct Run<'a> {
    name: &'a str,
    program: PathBuf,
    seeds: PathBuf,
    /// Found by earlier runs, and by this one.
    corpus: PathBuf,
    artifacts: PathBuf,
    log: PathBuf,
    scratch: PathBuf,
}

impl<'a> Run<'a> {
    fn new(workspace: &Workspace, scratch: &Path, name: &'a str) -> Self {
        let output = output(workspace);
        let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
        Self {
            name,
            program: output.join(triple).join("release").join(name),
            seeds: workspace.root.join(DIRECTORY).join("seeds").join(name),
            corpus: output.join("corpus").join(name),
            artifacts: output.join("artifacts").join(name),
            log: output.join(format!("{name}.log")),
            scratch: scratch.join(name),
        }
    }

    /// Runs every seed once.
    fn replay(&self) -> Result<()> {
        for directory in [&self.corpus, &self.artifacts, &self.scratch] {
            fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let seeds = fs::read_dir(&self.seeds)
            .with_context(|| format!("reading {}", self.seeds.display()))?;
        if seeds.count() == 0 {
            bail!("{}: no seeds", self.seeds.display());
        }
        self.execute(self.command().arg("-runs=0").arg(&self.seeds))
            .map(drop)
    }

    /// Runs it for a time; returns the number of inputs.
    fn fuzz(&self, seconds: u64) -> Result<u64> {
        let mut command = self.command();
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg("-print_final_stats=1")
            .args([&self.corpus, &self.seeds]);
        let said = self.execute(&mut command)?;
        let count = said.lines().find_map(|line| {
            let count = line.strip_prefix("stat::number_of_executed_units:")?;
            count.trim().parse().ok()
        });
        match count {
            Some(count @ 1..) => Ok(count),
            _ => bail!(
                "{}: no input was run, see {}",
                self.name,
                self.log.display()
            ),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(format!("-artifact_prefix={}/", self.artifacts.display()))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .env("TMPDIR", &self.scratch);
        command
    }

    /// What it prints. An error says where the input is that has failed.
    fn execute(&self, command: &mut Command) -> Result<String> {
        let log =
            File::create(&self.log).with_context(|| format!("creating {}", self.log.display()))?;
        let again = log.try_clone().context("duplicating a file descriptor")?;
        let status = command
            .stdout(log)
            .stderr(again)
            .status()
            .with_context(|| format!("starting `{}`", shell::display(command)))?;
        let said =
            fs::read(&self.log).with_context(|| format!("reading {}", self.log.display()))?;
        let said = String::from_utf8_lossy(&said).into_owned();
        if status.success() {
            return Ok(said);
        }
        let input = said.lines().find_map(|line| {
            let (_, path) = line.split_once("Test unit written to ")?;
            Some(format!("the input is {path}, "))
        });
        bail!(
            "{} has failed ({status}): {}its output is {}\n{}",
            self.name,
            input.unwrap_or_default(),
            self.log.display(),
            last_lines(&said)
        );
    }
}

/// What is to be seen of a failure.
fn last_lines(text: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn the_end_of_a_long_output() {
        assert_eq!(last_lines("a\nb"), "a\nb");
        let long: Vec<_> = (0..100).map(|line| line.to_string()).collect();
        let last = last_lines(&long.join("\n"));
        assert!(last.starts_with("80\n") && last.ends_with("\n99"));
    }
}
