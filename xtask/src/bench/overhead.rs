//! `cargo xtask bench overhead`: the overhead of the profiler as tables and as JSON.

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use super::{
    host, overhead_page, peers,
    profiler_cost::{Cost, SCENARIOS},
    programs::Programs,
    rounds::{self, Contestant, Slowdown},
    tools::Tool,
    tracer::Profiler,
    workloads::{Name, Place, Workload},
};
use crate::{
    bpf, run,
    shell::{self, progress},
    workspace::Workspace,
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench overhead                            all measurements
  cargo xtask bench overhead --only slowdown --rounds 15 slowdowns, with less noise
  cargo xtask bench overhead --only slowdown -w tcp --no-peers
  cargo xtask bench overhead --only programs -w syscall ns per run of the programs of one workload
  cargo xtask bench overhead --check                    fails if a goal is missed

Measure on an idle machine. A ratio is the median over all rounds of the time with the profiler divided by the time \
without; `fastest` is the ratio of the fastest runs. docs/overhead.md explains the figures.")]
pub struct Args {
    /// Interleaved rounds per workload
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Duration of the workloads in percent of the default, which is one to three seconds
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// Duration in seconds of the measurement of the profiler
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Run only this measurement; can be repeated
    #[arg(long)]
    only: Vec<Part>,
    /// Run only this workload; can be repeated
    #[arg(short, long, value_name = "NAME")]
    workload: Vec<Name>,
    /// Measure only the profiler: no perf stat, runqlat, bpftrace, pidstat, atop and node_exporter
    #[arg(long)]
    no_peers: bool,
    /// Fail if a goal is missed
    #[arg(long)]
    check: bool,
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure this program instead of the one built here
    #[arg(long)]
    profiler: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Slowdown of the workloads
    Slowdown,
    /// Run time of each BPF program, compared with an empty one
    Programs,
    /// CPU time and memory of the profiler
    Profiler,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let program = program(workspace, args)?;
    if !shell::is_root() {
        return as_root(&program, args);
    }
    let scratch = workspace.target.join("bench");
    fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
    let profiler = Profiler {
        program: &program,
        scratch: &scratch,
    };
    let place = Place {
        scratch: &scratch,
        size_percent: args.size,
    };
    let workloads = Workload::chosen(&args.workload, &place)?;
    let mut report = host::report(workspace)?;
    host::warn_if_busy();
    let measured = measure(&workloads, &profiler, args, &mut report);
    remove_files(&scratch);
    let missed = measured?;
    if args.measures_everything(workspace) {
        overhead_page::record(workspace, &report)?;
        progress(&format!("figures written to {}", overhead_page::PAGE));
    }
    if let Some(path) = &args.json {
        fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.check && !missed.is_empty() {
        bail!("{} goals missed\n  {}", missed.len(), missed.join("\n  "));
    }
    Ok(())
}

/// Measures the CPU time of the profiler after the first seconds, and its memory; an error if a goal is missed.
pub fn check_cost(workspace: &Workspace) -> Result<String> {
    const DURATION: Duration = Duration::from_secs(20);
    let program = bpf::build_optimized(workspace)?;
    let scratch = workspace.target.join("bench");
    fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
    let profiler = Profiler {
        program: &program,
        scratch: &scratch,
    };
    let mut missed = Vec::new();
    for scenario in SCENARIOS {
        let costs = Cost::measure(scenario, DURATION, &profiler, false)?;
        for (text, is_missed) in costs.iter().flat_map(Cost::guarded) {
            progress(&text);
            missed.extend(is_missed.then_some(text));
        }
    }
    if !missed.is_empty() {
        bail!("{} goals missed\n  {}", missed.len(), missed.join("\n  "));
    }
    Ok(format!("{} loads", SCENARIOS.len()))
}

/// Adds the figures to the report; returns the goals that are missed.
fn measure(
    workloads: &[Workload],
    profiler: &Profiler,
    args: &Args,
    report: &mut Value,
) -> Result<Vec<String>> {
    let mut missed = Vec::new();
    if args.measures(Part::Slowdown) {
        let measured = slowdowns(workloads, profiler, args)?;
        report["workloads"] = measured.iter().map(Slowdown::json).collect();
        missed.extend(measured.iter().filter_map(Slowdown::missed));
    }
    if args.measures(Part::Programs) {
        report["programs"] = programs(workloads, profiler, args)?;
    }
    if args.measures(Part::Profiler) {
        let measured = profiler_cost(profiler, args)?;
        report["profiler"] = measured.iter().map(Cost::json).collect();
        missed.extend(measured.iter().flat_map(Cost::missed));
    }
    Ok(missed)
}

/// Removes the files of fio, which the next run creates again within a second.
fn remove_files(scratch: &Path) {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with("fio-") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Args {
    /// Whether the figures are complete, so that they are written to the page.
    fn measures_everything(&self, workspace: &Workspace) -> bool {
        self.only.is_empty()
            && self.workload.is_empty()
            && self
                .profiler
                .as_ref()
                .is_none_or(|path| path.starts_with(&workspace.target))
            && self.size == 100
    }

    fn measures(&self, part: Part) -> bool {
        // The profiler is measured under its own loads.
        let about_workloads = part != Part::Profiler || self.workload.is_empty();
        self.only.contains(&part) || (self.only.is_empty() && about_workloads)
    }

    /// Workloads given by name are always measured.
    fn wants(&self, workload: &Workload, by_default: bool) -> bool {
        by_default || self.workload.contains(&workload.name)
    }
}

fn slowdowns<'a>(
    workloads: &'a [Workload],
    profiler: &Profiler,
    args: &Args,
) -> Result<Vec<Slowdown<'a>>> {
    let wanted = |workload: &&Workload| args.wants(workload, workload.goal.is_some());
    let workloads: Vec<&Workload> = workloads.iter().filter(wanted).collect();
    obtain(&workloads)?;
    let is_compared = |workload: &&Workload| peers::WORKLOADS.contains(&workload.name);
    let peers = if args.no_peers || !workloads.iter().any(is_compared) {
        Vec::new()
    } else {
        peers::available()
    };
    let mut all = Vec::new();
    Slowdown::print_header();
    for workload in workloads {
        let goal = workload.goal;
        let mut tools = vec![Contestant {
            name: "profiler --pid",
            goal,
            attach: Box::new(|pid| profiler.follow(pid)),
        }];
        if is_compared(&workload) {
            tools.push(Contestant {
                name: "profiler --node",
                goal,
                attach: Box::new(|_| profiler.follow_all()),
            });
            tools.extend(peers.iter().map(|peer| peer.contestant()));
        }
        let measured = rounds::measure(workload, args.rounds, &tools)?;
        measured.iter().for_each(Slowdown::print);
        all.extend(measured);
    }
    Ok(all)
}

fn programs(workloads: &[Workload], profiler: &Profiler, args: &Args) -> Result<Value> {
    let wanted = |workload: &&Workload| args.wants(workload, workload.calls_programs);
    let workloads: Vec<&Workload> = workloads.iter().filter(wanted).collect();
    obtain(&workloads)?;
    let mut all = Vec::new();
    for workload in workloads {
        if let Some(source) = workload.source
            && !profiler.has_source(source)?
        {
            progress(&format!(
                "programs, {}: skipped, this profiler has no source `{source}`",
                workload.title
            ));
            continue;
        }
        let programs = Programs::measure(workload, profiler)?;
        programs.print();
        all.push(programs.json());
    }
    Ok(all.into())
}

fn profiler_cost(profiler: &Profiler, args: &Args) -> Result<Vec<Cost>> {
    let duration = Duration::from_secs(args.seconds);
    let mut all = Vec::new();
    for scenario in SCENARIOS {
        let costs = Cost::measure(scenario, duration, profiler, !args.no_peers)?;
        costs.iter().for_each(Cost::print);
        all.extend(costs);
    }
    Ok(all)
}

fn obtain(workloads: &[&Workload]) -> Result<()> {
    let mut tools = workloads.iter().filter_map(|workload| workload.tool);
    tools.try_for_each(Tool::obtain)
}

fn program(workspace: &Workspace, args: &Args) -> Result<PathBuf> {
    if let Some(path) = &args.profiler {
        return path
            .canonicalize()
            .with_context(|| format!("looking for {}", path.display()));
    }
    bpf::build_optimized(workspace)
}

/// Only the measurement needs root, not the build.
fn as_root(profiler: &Path, args: &Args) -> Result<()> {
    if shell::which("sudo").is_none() {
        bail!("measuring requires root: run as root or install sudo");
    }
    let mut command = run::privileged(&env::current_exe()?);
    command.args(env::args_os().skip(1));
    if args.profiler.is_none() {
        command.arg("--profiler").arg(profiler);
    }
    Err(command.exec()).with_context(|| format!("starting `{}`", shell::display(&command)))
}
