//! `cargo xtask bench overhead`: all that the profiler costs, as a table and as JSON.

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
    attached::Profiler,
    compare,
    controller::{Cost, SCENARIOS},
    host, page,
    pairs::Pairs,
    programs::Programs,
    tools::{BPFTRACE, Tool},
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
  cargo xtask bench overhead                            everything
  cargo xtask bench overhead --only pairs --pairs 15    the slowdowns, with less noise
  cargo xtask bench overhead --only pairs -w tcp -w tcp-one-cpu --compare
  cargo xtask bench overhead --only programs -w syscall ns per run of what one workload calls

Measure on a machine that does nothing else. A ratio is the median over the pairs of the time with the profiler by the \
time without; `fastest` is the fastest run with it by the fastest without. What the figures mean is in docs/overhead.md.")]
pub struct Args {
    /// Interleaved pairs of runs per workload
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Length of each workload's run, in percent of the usual, which is one to three seconds
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// Seconds for which the controller's CPU is measured
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Measure only this; may be given several times
    #[arg(long)]
    only: Vec<Part>,
    /// Run only this workload; may be given several times
    #[arg(short, long, value_name = "NAME")]
    workload: Vec<Name>,
    /// Pairs with bpftrace counting the bytes of sockets as well, for the TCP workloads
    #[arg(long)]
    compare: bool,
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
    /// Time per run of each BPF program, beside that of an empty one
    Programs,
    /// CPU and memory of the controller
    Controller,
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
    let mut report = host::report();
    host::warn_if_busy();
    let measured = measure(&workloads, &profiler, args, &mut report);
    remove_files(&scratch);
    measured?;
    if args.measures_everything(workspace) {
        page::record(workspace, &report)?;
        progress(&format!("the figures are in {}", page::PAGE));
    }
    if let Some(path) = &args.json {
        fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn measure(
    workloads: &[Workload],
    profiler: &Profiler,
    args: &Args,
    report: &mut Value,
) -> Result<()> {
    if args.measures(Part::Pairs) {
        report["workloads"] = pairs(workloads, profiler, args)?;
    }
    if args.measures(Part::Programs) {
        report["programs"] = programs(workloads, profiler, args)?;
    }
    if args.measures(Part::Controller) {
        report["controller"] = controller(profiler, args)?;
    }
    Ok(())
}

/// The files that fio worked on; the next run makes them again within a second.
fn remove_files(scratch: &Path) {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with("fio-") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Args {
    /// Only then are the figures those of the page.
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
        // The controller is measured under loads of its own.
        let about_workloads = part != Part::Controller || self.workload.is_empty();
        self.only.contains(&part) || (self.only.is_empty() && about_workloads)
    }

    /// What was asked for by name is measured in any case.
    fn wants(&self, workload: &Workload, by_default: bool) -> bool {
        by_default || self.workload.contains(&workload.name)
    }
}

fn pairs(workloads: &[Workload], profiler: &Profiler, args: &Args) -> Result<Value> {
    let wanted = |workload: &&Workload| args.wants(workload, workload.goal.is_some());
    let workloads: Vec<&Workload> = workloads.iter().filter(wanted).collect();
    obtain(&workloads)?;
    if args.compare {
        BPFTRACE.obtain()?;
    }
    let mut all = Vec::new();
    let mut show = |pairs: Pairs| {
        pairs.print();
        all.push(pairs.json());
    };
    Pairs::print_header();
    for workload in workloads {
        let follow = |pid| profiler.follow(pid);
        show(Pairs::measure(workload, args.pairs, &follow)?);
        if args.compare && matches!(workload.name, Name::Tcp | Name::TcpOneCpu) {
            let count = |_| compare::socket_bytes();
            let tool = "bpftrace, socket bytes";
            show(Pairs::compare(tool, workload, args.pairs, &count)?);
        }
    }
    Ok(all.into())
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
                "programs, {}: left out, this profiler has no source `{source}`",
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

fn controller(profiler: &Profiler, args: &Args) -> Result<Value> {
    let duration = Duration::from_secs(args.seconds);
    let mut all = Vec::new();
    for scenario in SCENARIOS {
        let cost = Cost::measure(scenario, duration, profiler)?;
        cost.print();
        all.push(cost.json());
    }
    Ok(all.into())
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
