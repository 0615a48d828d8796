//! `cargo xtask test`: everything that the project tests, in tiers.
//!
//! A tier that was asked for runs or fails; none is skipped, and none passes without having tested.

mod background;
pub mod deny;
pub mod failures;
mod fuzz;
mod lint;
mod rust;

use std::{
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use ::perfevents::{CORE_PMU, Device};
use anyhow::Result;
use clap::ValueEnum;

use crate::{docs, perfevents, shell, vm, workspace::Workspace};

/// `cargo xtask test`
#[derive(clap::Args)]
pub struct Args {
    /// The tiers to run; all of them but `gpu`, `oar` and `soak` if none is named
    tiers: Vec<Tier>,
    /// List the tiers and what they test
    #[arg(long)]
    list: bool,
    /// Passed to the test runner of `unit`, `e2e`, `kernels`, `devices`, `counters`, `system`, `jobs`, `hostile`, `fuzz`, `gpu`, `oar` and `soak`: names of tests, for example
    #[arg(last = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Tier {
    /// The code is formatted
    Fmt,
    /// clippy, rustdoc and the BPF compiler have nothing to say
    Lint,
    /// Licences, sources, duplicates and known holes of the dependencies
    Deny,
    /// The generated pages are what the program prints
    Docs,
    /// The tables of hardware events agree with themselves, and with those of perf, libpfm4 and LIKWID
    Tables,
    /// Tests of single crates: no privilege, no kernel
    Unit,
    /// Real kernel, real readers: needs root, BTF and Python
    E2e,
    /// Other kernels, in virtual machines: needs qemu and Debian's packages
    Kernels,
    /// Devices that are not there, played by modules in a virtual machine: needs qemu, gcc and Debian's packages
    Devices,
    /// Hardware counters: those of this machine or, where it has none, of an emulated arm64 machine, which then runs all tests
    /// of `kernels`
    Counters,
    /// A whole Debian in a virtual machine, with systemd and cgroup v2: needs qemu and Debian's packages
    System,
    /// Batch jobs under a real Slurm, ranks under a real Open MPI: needs Debian's packages
    Jobs,
    /// Attacks by another user on a running profiler: needs what `e2e` needs
    Hostile,
    /// Parsers on inputs that libFuzzer finds, a minute for each; `PROFILER_FUZZ_SECONDS` changes that
    Fuzz,
    /// GPUs of NVIDIA against nvidia-smi: needs one, and runs only when it is named
    Gpu,
    /// Batch jobs under a real OAR, in a Debian of its own that takes minutes to make: runs only when it is named
    Oar,
    /// Storms of an hour each, and a thousand kills: runs only when it is named. `PROFILER_SOAK_SECONDS` and
    /// `PROFILER_SOAK_KILLS` make it shorter
    Soak,
}

/// Those that run only when they are named.
const NAMED: [Tier; 3] = [Tier::Gpu, Tier::Oar, Tier::Soak];

struct Outcome {
    tier: Tier,
    result: Result<String>,
    took: Duration,
}

pub fn run(workspace: &Workspace, args: &Args) -> ExitCode {
    if args.list {
        for tier in Tier::value_variants() {
            let value = tier.to_possible_value().unwrap_or_default();
            println!(
                "{:<7} {}",
                value.get_name(),
                value.get_help().unwrap_or_default()
            );
        }
        return ExitCode::SUCCESS;
    }
    let asked =
        |tier: &&Tier| args.tiers.contains(tier) || args.tiers.is_empty() && !NAMED.contains(*tier);
    let asked: Vec<Tier> = Tier::value_variants()
        .iter()
        .filter(asked)
        .copied()
        .collect();
    let (isolated, measuring): (Vec<_>, Vec<_>) =
        asked.iter().copied().partition(|tier| tier.is_isolated());
    let filter = &args.filter;
    let here = |tier: Tier| tier.run(workspace, filter);
    let background = |tier| background::run(workspace, tier, filter);
    if isolated.is_empty() || measuring.is_empty() {
        return report(&run_all(&asked, here));
    }
    // Both need it; the first to come would build it while the other waits.
    if let Err(error) = crate::bpf::build(workspace) {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    let outcomes = thread::scope(|scope| {
        let isolated = scope.spawn(|| run_all(&isolated, background));
        let mut outcomes = run_all(&measuring, here);
        outcomes.extend(isolated.join().expect("reports failures, does not panic"));
        outcomes
    });
    report(&outcomes)
}

/// One after the other.
fn run_all(tiers: &[Tier], run: impl Fn(Tier) -> Result<String>) -> Vec<Outcome> {
    let run = |tier: &Tier| {
        shell::progress(&format!("testing: {}", tier.name()));
        let started = Instant::now();
        let result = run(*tier);
        if let Err(error) = &result {
            eprintln!("error: {}: {error:#}", tier.name());
        }
        Outcome {
            tier: *tier,
            result,
            took: started.elapsed(),
        }
    };
    tiers.iter().map(run).collect()
}

fn report(outcomes: &[Outcome]) -> ExitCode {
    println!();
    for Outcome { tier, result, took } in outcomes {
        let (verdict, remark) = match result {
            Ok(remark) => ("passed", remark.as_str()),
            Err(_) => ("FAILED", ""),
        };
        println!(
            "{:<7} {verdict}  {:>6.1} s  {remark}",
            tier.name(),
            took.as_secs_f64()
        );
    }
    let mut failed = 0;
    for Outcome { tier, result, .. } in outcomes {
        if let Err(error) = result {
            failed += 1;
            println!("\n{}: {error:#}", tier.name());
        }
    }
    println!("tiers: {} passed, {failed} failed", outcomes.len() - failed);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Whether the kernel has a PMU of the cores.
fn has_counters() -> bool {
    !Device::all(Path::new("/sys"), CORE_PMU).is_empty()
}

impl Tier {
    fn name(self) -> String {
        self.to_possible_value()
            .unwrap_or_default()
            .get_name()
            .to_owned()
    }

    /// Whether it can run beside the tiers that measure, at a low priority: it neither measures this machine's kernel nor
    /// depends on when it gets a CPU. The guests of `devices` and `counters` count their time in instructions. `fuzz` could, but
    /// takes both CPUs for a quarter of an hour: the clocks of other emulated guests do not stand that.
    fn is_isolated(self) -> bool {
        match self {
            Self::Deny | Self::Tables | Self::Devices => true,
            Self::Counters => !has_counters(),
            _ => false,
        }
    }

    /// Runs the tier; the text is a remark for the report.
    fn run(self, workspace: &Workspace, filter: &[String]) -> Result<String> {
        match self {
            Self::Fmt => shell::run(workspace.cargo().args(["fmt", "--all", "--check"]))?,
            Self::Lint => lint::run(workspace)?,
            Self::Deny => return deny::run(workspace),
            Self::Docs => docs::check(workspace, &rust::controller(workspace)?)?,
            Self::Tables => perfevents::check()?,
            Self::Unit => return rust::unit(workspace, filter),
            Self::E2e => return rust::end_to_end(workspace, filter),
            Self::Kernels => return vm::test(workspace, filter),
            Self::Devices => return vm::devices(workspace, filter),
            Self::Counters if has_counters() => return rust::counters(workspace, filter),
            Self::Counters => return vm::counters(workspace, filter),
            Self::Jobs => return rust::jobs(workspace, filter),
            Self::Hostile => return rust::hostile(workspace, filter),
            Self::Fuzz => return fuzz::run(workspace, filter),
            Self::System => return vm::system::test(workspace, filter),
            Self::Gpu => return rust::gpu(workspace, filter),
            Self::Oar => return rust::oar(workspace, filter),
            Self::Soak => return rust::soak(workspace, filter),
        }
        Ok(String::new())
    }
}
