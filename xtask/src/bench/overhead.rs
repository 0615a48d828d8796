//! `cargo xtask bench overhead`: all that the profiler costs, as a table and as JSON.

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    bpf_stats::Program,
    controller::{Cost, SCENARIOS},
    pairs::{Pairs, workloads},
};
use crate::{apt, bpf, run, shell, workspace::Workspace};

#[derive(clap::Args)]
pub struct Args {
    /// Interleaved pairs of runs per workload
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Switches forth and back in a run of the pipe workload
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(1..))]
    loops: u32,
    /// Seconds for which the controller's CPU is measured
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Measure only this; may be given several times
    #[arg(long)]
    only: Vec<Part>,
    /// Write the figures to this file as well
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure this program instead of the one built here
    #[arg(long)]
    profiler: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Slowdown of the workloads
    Pairs,
    /// Time per run of each BPF program
    Programs,
    /// CPU and memory of the controller
    Controller,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let profiler = program(workspace, args)?;
    if !shell::is_root() {
        return as_root(&profiler, args);
    }
    let scratch = workspace.target.join("bench");
    let measured = |part| args.only.is_empty() || args.only.contains(&part);
    if measured(Part::Pairs) || measured(Part::Programs) {
        obtain_perf()?;
    }
    let mut report = host();
    if measured(Part::Pairs) {
        let mut all = Vec::new();
        for workload in workloads(args.loops) {
            all.push(Pairs::measure(workload, args.pairs, &profiler, &scratch)?);
        }
        println!(
            "{:<27} {:>9} {:>9}   ratio (spread)",
            "workload", "without", "with"
        );
        all.iter().for_each(Pairs::print);
        report["workloads"] = all.iter().map(Pairs::json).collect();
    }
    if measured(Part::Programs) {
        let [pipe, ..] = workloads(args.loops);
        let programs = Program::measure_all(&pipe, &profiler, &scratch)?;
        println!("BPF programs during `{}`", pipe.command);
        programs.iter().for_each(Program::print);
        report["programs"] = programs.iter().map(Program::json).collect();
    }
    if measured(Part::Controller) {
        let duration = Duration::from_secs(args.seconds);
        let mut all = Vec::new();
        for scenario in SCENARIOS {
            let cost = Cost::measure(scenario, duration, &profiler, &scratch)?;
            cost.print();
            all.push(cost.json());
        }
        report["controller"] = all.into();
    }
    if let Some(path) = &args.json {
        fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn program(workspace: &Workspace, args: &Args) -> Result<PathBuf> {
    if let Some(path) = &args.profiler {
        return path
            .canonicalize()
            .with_context(|| format!("looking for {}", path.display()));
    }
    bpf::build(workspace)?;
    bpf::build_controller(workspace, true)
}

/// Building is done; only the measuring needs root.
fn as_root(profiler: &Path, args: &Args) -> Result<()> {
    if shell::which("sudo").is_none() {
        bail!("measuring needs root: run it as root or install sudo");
    }
    let mut command = run::privileged(&env::current_exe()?);
    command.args(env::args_os().skip(1));
    if args.profiler.is_none() {
        command.arg("--profiler").arg(profiler);
    }
    Err(command.exec()).with_context(|| format!("starting `{}`", shell::display(&command)))
}

fn obtain_perf() -> Result<()> {
    let works = || shell::run_quietly(Command::new("perf").arg("--version")).is_ok();
    if works() {
        return Ok(());
    }
    // Debian's name, then Ubuntu's.
    let package = ["linux-perf", "linux-tools-generic"]
        .into_iter()
        .find(|name| apt::candidate(name).is_some())
        .unwrap_or("linux-perf");
    let packages = [package.to_owned()];
    if apt::available() {
        apt::install(&packages, "perf, whose benchmarks are the workloads")?;
    }
    if !works() {
        bail!(
            "`perf` does not work here: run `{}`",
            apt::command(&packages)
        );
    }
    Ok(())
}

/// Without it the figures mean nothing.
fn host() -> Value {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "kernel": kernel.trim(),
        "cpu": model.map(|(_, name)| name),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
    })
}
