//! Fuzz targets: build with instrumentation, replay of the seeds, and a limited run of each.

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

use super::lint;
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

const DIRECTORY: &str = "tests/fuzz";
const MANIFEST: &str = "tests/fuzz/Cargo.toml";

/// Time per target, s.
const SECONDS: u64 = 20;
/// Overrides [`SECONDS`].
const SECONDS_VARIABLE: &str = "PROFILER_FUZZ_SECONDS";

/// Number of targets that run in parallel.
const PARALLEL: usize = 2;

/// Limits per input: time (s) and memory (MiB).
const INPUT_SECONDS: u64 = 60;
const MEMORY_MIB: u64 = 2048;

/// Runs the targets on their seeds only, without warnings of clippy. Like [`run`], it takes parts of the
/// targets' names.
pub fn seeds(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let targets = targets(workspace, filter)?;
    build(workspace)?;
    // Most dependencies are those of the workspace.
    lint::outside(workspace, MANIFEST, "target")?;
    let scratch = Scratch::new(workspace)?;
    let mut inputs = 0;
    for name in &targets {
        inputs += Run::new(workspace, &scratch.0, name).replay()?;
    }
    Ok(format!("{} targets, {inputs} inputs", targets.len()))
}

/// Runs the targets whose names contain one of the filters; all targets without filters.
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
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
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

/// Names of the targets, which are those of their files.
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
        bail!("no fuzz target named {}", filter.join(" or "));
    }
    names.sort();
    Ok(names)
}

/// Rejects 0, which libFuzzer interprets as no limit.
fn seconds() -> Result<u64> {
    match env::var(SECONDS_VARIABLE) {
        Ok(text) => {
            let seconds: Result<NonZeroU64, _> = text.parse();
            seconds.map(NonZeroU64::get).with_context(|| {
                format!("{SECONDS_VARIABLE}={text}: not a positive number of seconds")
            })
        }
        Err(_) => Ok(SECONDS),
    }
}

fn build(workspace: &Workspace) -> Result<()> {
    let object = bpf::build(workspace)?;
    let program = obtain(workspace)?;
    // cargo-fuzz would update an outdated lock file.
    let manifest = workspace.root.join(MANIFEST);
    shell::run_quietly(
        workspace
            .cargo()
            .args(["metadata", "--locked", "--format-version=1"])
            .arg("--manifest-path")
            .arg(manifest),
    )?;
    // Without sanitizers, which need a nightly compiler and its standard library.
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
    let program = TOOL.program(workspace, "");
    if shell::is_executable(&program) {
        return Ok(program);
    }
    progress("building cargo-fuzz (half a minute)");
    let options = ["--debug", "--config", "profile.dev.debug=false"];
    TOOL.install(workspace, "", &options, &[])
}

fn output(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fuzz")
}

/// Directory for files of the targets, in memory if possible; removed when it is dropped.
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
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A built target.
struct Run<'a> {
    name: &'a str,
    program: PathBuf,
    seeds: PathBuf,
    /// Inputs found by earlier runs and by this one.
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

    /// Runs each seed once; returns their number.
    fn replay(&self) -> Result<usize> {
        for directory in [&self.corpus, &self.artifacts, &self.scratch] {
            fs::create_dir_all(directory)
                .with_context(|| format!("creating {}", directory.display()))?;
        }
        let seeds = fs::read_dir(&self.seeds)
            .with_context(|| format!("reading {}", self.seeds.display()))?;
        let count = seeds.count();
        if count == 0 {
            bail!("{}: no seeds", self.seeds.display());
        }
        self.execute(self.command().arg("-runs=0").arg(&self.seeds))?;
        Ok(count)
    }

    /// Fuzzes for a time; returns the number of inputs.
    fn fuzz(&self, seconds: u64) -> Result<u64> {
        let mut command = self.command();
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg("-print_final_stats=1")
            .args([&self.corpus, &self.seeds]);
        let output = self.execute(&mut command)?;
        let count = output.lines().find_map(|line| {
            let count = line.strip_prefix("stat::number_of_executed_units:")?;
            count.trim().parse().ok()
        });
        match count {
            Some(count @ 1..) => Ok(count),
            _ => bail!(
                "{}: no inputs were run, see {}",
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

    /// Runs a command of the target and returns its output. An error names the failed input.
    fn execute(&self, command: &mut Command) -> Result<String> {
        let log =
            File::create(&self.log).with_context(|| format!("creating {}", self.log.display()))?;
        let again = log.try_clone().context("duplicating a file descriptor")?;
        let status = command
            .stdout(log)
            .stderr(again)
            .status()
            .with_context(|| format!("starting `{}`", shell::display(command)))?;
        let output =
            fs::read(&self.log).with_context(|| format!("reading {}", self.log.display()))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        if status.success() {
            return Ok(output);
        }
        let input = output.lines().find_map(|line| {
            let (_, path) = line.split_once("Test unit written to ")?;
            Some(format!(", input {path}"))
        });
        bail!(
            "{} failed ({status}){}, output in {}\n{}",
            self.name,
            input.unwrap_or_default(),
            self.log.display(),
            last_lines(&output)
        );
    }
}

/// The part of the output that is shown for a failure.
fn last_lines(text: &str) -> String {
    const MAX_LINES: usize = 20;
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(MAX_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn last_lines_of_a_long_output() {
        assert_eq!(last_lines("a\nb"), "a\nb");
        let long: Vec<_> = (0..100).map(|line| line.to_string()).collect();
        let last = last_lines(&long.join("\n"));
        assert!(last.starts_with("80\n") && last.ends_with("\n99"));
    }
}
