//! The dataset of a site for measurements, made from samples that are recorded on this machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    bpf,
    shell::{self, progress},
    workspace::Workspace,
};

/// Kinds of programs of `workload.py`.
const KINDS: [&str; 4] = ["compute", "io", "pipeline", "wait_often"];

/// `cargo xtask fleet`
#[derive(clap::Args)]
pub struct Args {
    /// Number of nodes
    #[arg(long, default_value_t = 1000)]
    nodes: u64,
    /// Hours of each node
    #[arg(long, default_value_t = 1)]
    hours: u64,
    /// Seed of the jobs and of the variation; the same seed gives the same dataset
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these tables [default: all that the samples have]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    tables: Vec<String>,
    /// Directory of the dataset, which must not exist [default: target/fleet/NODESxHOURSh]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let default = || {
        workspace
            .target
            .join(format!("fleet/{}x{}h", args.nodes, args.hours))
    };
    let out = args.out.clone().unwrap_or_else(default);
    ensure!(
        !out.exists(),
        "{}: exists; remove it, or choose another --out",
        out.display()
    );
    let profiler = bpf::build_optimized(workspace)?;
    let generator = generator(workspace)?;
    let samples = samples(workspace, &profiler)?;
    let numbers = [args.nodes, args.hours * 60, args.seed];
    let mut command = Command::new(generator);
    command
        .arg(samples)
        .arg(&out)
        .args(numbers.map(|number| number.to_string()))
        .args(&args.tables);
    shell::run(&mut command)
}

/// The example that writes datasets.
pub fn generator(workspace: &Workspace) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--package=node-profiler",
        "--example=fleet",
    ]);
    shell::run_slowly(&mut cargo, "building the generator of datasets")?;
    Ok(workspace.target.join("release/examples/fleet"))
}

/// Directory with a run for each kind of program, of a minute. They are recorded once.
pub fn samples(workspace: &Workspace, profiler: &Path) -> Result<PathBuf> {
    let samples = workspace.target.join("fleet/samples");
    if samples.is_dir() {
        return Ok(samples);
    }
    progress("recording samples of four kinds of programs (a minute)");
    let recording = workspace.target.join("fleet/recording");
    if recording.exists() {
        fs::remove_dir_all(&recording)
            .with_context(|| format!("removing {}", recording.display()))?;
    }
    let workload = workspace.root.join("xtask/src/fleet/workload.py");
    let record = |kind: &str| -> Result<Child> {
        let files = recording.join("files").join(kind);
        fs::create_dir_all(&files).with_context(|| format!("creating {}", files.display()))?;
        let mut command = Command::new(profiler);
        command
            .args([
                "run",
                "--quiet",
                "--interval=1s",
                "--duration=60s",
                "--run-id",
                kind,
            ])
            // The mounts of files are known on every kernel.
            .args(["--source", "+file_io=syscalls", "--out"])
            .arg(recording.join("samples"))
            .args(["--", "python3"])
            .arg(&workload)
            .arg(kind)
            .arg(&files);
        command
            .spawn()
            .with_context(|| format!("starting `{}`", shell::display(&command)))
    };
    let children = KINDS.map(|kind| (kind, record(kind)));
    for (kind, child) in children {
        let status = child?.wait().context("waiting for the profiler")?;
        if !status.success() {
            bail!("recording {kind} failed ({status})");
        }
    }
    fs::rename(recording.join("samples"), &samples)
        .with_context(|| format!("creating {}", samples.display()))?;
    Ok(samples)
}
