//! `cargo xtask test`: all tests, in tiers.
//!
//! A requested tier runs or fails. No tier is skipped, and none passes without running tests.

mod background;
pub mod deny;
pub mod failures;
mod fuzz;
mod leftovers;
mod lint;
mod msrv;
mod new_source;
mod packages;
mod python;
mod rust;

use std::{
    num::NonZero,
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
    /// Tiers to run [default: `fmt`, `lint`, `docs`, `unit`, `e2e` and `hostile`]
    tiers: Vec<Tier>,
    /// All tiers except `gpu`, `oar` and `soak`
    #[arg(long, conflicts_with = "tiers")]
    all: bool,
    /// List the tiers
    #[arg(long)]
    list: bool,
    /// Filters, such as names of tests, for the runner of `unit`, `e2e`, `long`, `kernels`,
    /// `devices`, `counters`, `system`, `jobs`, `hostile`, `readers`, `python`, `browser`, `seeds`,
    /// `fuzz`, `gpu`, `oar` and `soak`
    #[arg(last = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Tier {
    /// Formatting
    Fmt,
    /// Warnings of clippy, rustdoc and the BPF compiler; spelling and terms
    Lint,
    /// Licences, sources, duplicates and known vulnerabilities of the dependencies
    Deny,
    /// Generated pages match the output of the program
    Docs,
    /// Event tables: consistency, and comparison with those of perf, libpfm4 and LIKWID
    Tables,
    /// Tests of single crates
    Unit,
    /// Adding a source to a copy of the workspace: one file and one line
    NewSource,
    /// The oldest supported compiler builds the program; requires rustup
    Msrv,
    /// Parsers on the seeds of `fuzz`, with its instrumentation
    Seeds,
    /// The complete program on this kernel; requires root, BTF and Python
    E2e,
    /// The end-to-end tests that take longest; requirements of `e2e`
    Long,
    /// Other kernels in virtual machines; requires QEMU and Debian's packages
    Kernels,
    /// Devices simulated by modules in a virtual machine; requires QEMU, gcc and Debian's packages
    Devices,
    /// Hardware counters of this machine or, without a PMU, of an emulated arm64 machine, which
    /// then runs all tests of `kernels`
    Counters,
    /// A complete Debian with systemd and cgroup v2 in a virtual machine; requires QEMU and
    /// Debian's packages
    System,
    /// Batch jobs under Slurm and ranks under Open MPI; requires Debian's packages
    Jobs,
    /// Attacks by another user on a running profiler; requirements of `e2e`
    Hostile,
    /// Spark, Dask, DataFusion, polars and others read every table; requires Python 3.11 or later
    /// and Java
    Readers,
    /// The Python package: types, and tests on several versions of Python; requirements of `e2e`
    Python,
    /// Packages in a fresh Debian: installation, upgrade, removal; requires Debian's packages and root
    Packages,
    /// Reports in a browser; requires Debian's Chromium and Python 3.11 or later
    Browser,
    /// Parsers on inputs of libFuzzer, 20 seconds each; `PROFILER_FUZZ_SECONDS` changes the time
    Fuzz,
    /// NVIDIA GPUs compared with nvidia-smi; only on request
    Gpu,
    /// Batch jobs under OAR, in a Debian whose creation takes minutes; only on request
    Oar,
    /// An hour of load and a thousand kills; only on request. `PROFILER_SOAK_SECONDS` and
    /// `PROFILER_SOAK_KILLS` shorten it
    Soak,
}

/// Tiers that run without arguments, and in CI.
const DEFAULT: [Tier; 6] = [
    Tier::Fmt,
    Tier::Lint,
    Tier::Docs,
    Tier::Unit,
    Tier::E2e,
    Tier::Hostile,
];
/// Tiers that run only by name.
const NAMED: [Tier; 3] = [Tier::Gpu, Tier::Oar, Tier::Soak];
/// With fewer CPUs, other tiers would disturb those that measure.
const CPUS_FOR_BACKGROUND: usize = 4;

struct TierResult {
    tier: Tier,
    result: Result<String>,
    took: Duration,
}

pub fn run(workspace: &Workspace, args: &Args) -> ExitCode {
    if args.list {
        for tier in Tier::value_variants() {
            let value = tier.to_possible_value().unwrap_or_default();
            println!(
                "{:<10} {}",
                value.get_name(),
                value.get_help().unwrap_or_default()
            );
        }
        return ExitCode::SUCCESS;
    }
    let is_requested = |tier: &&Tier| match (args.all, &args.tiers[..]) {
        (true, _) => !NAMED.contains(*tier),
        (false, []) => DEFAULT.contains(*tier),
        (false, tiers) => tiers.contains(tier),
    };
    let requested: Vec<Tier> = Tier::value_variants()
        .iter()
        .filter(is_requested)
        .copied()
        .collect();
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let (mut isolated, measuring): (Vec<_>, Vec<_>) = requested
        .iter()
        .copied()
        .partition(|tier| tier.is_isolated());
    // The longest one, whose guest occupies one CPU, is not left to the end.
    isolated.sort_by_key(|tier| *tier != Tier::Counters);
    let filter = &args.filter;
    let here = |tier: Tier| tier.run(workspace, filter);
    let background = |tier| background::run(workspace, tier, filter);
    if isolated.is_empty() || measuring.is_empty() || cpus < CPUS_FOR_BACKGROUND {
        return report(&run_all(&requested, here));
    }
    // Both groups need the object.
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

/// Runs tiers sequentially.
fn run_all(tiers: &[Tier], run: impl Fn(Tier) -> Result<String>) -> Vec<TierResult> {
    let run = |tier: &Tier| {
        shell::progress(&format!("testing: {}", tier.name()));
        let started = Instant::now();
        let result = run(*tier);
        if let Err(error) = &result {
            eprintln!("error: {}: {error:#}", tier.name());
        }
        TierResult {
            tier: *tier,
            result,
            took: started.elapsed(),
        }
    };
    tiers.iter().map(run).collect()
}

fn report(outcomes: &[TierResult]) -> ExitCode {
    println!();
    for TierResult { tier, result, took } in outcomes {
        let (verdict, remark) = match result {
            Ok(remark) => ("passed", remark.as_str()),
            Err(_) => ("FAILED", ""),
        };
        println!(
            "{:<10} {verdict}  {:>6.1} s  {remark}",
            tier.name(),
            took.as_secs_f64()
        );
    }
    let mut failed = 0;
    for TierResult { tier, result, .. } in outcomes {
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

/// Whether the kernel has a core PMU.
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

    /// Whether the tier can run in parallel with others at a low priority: it neither measures this
    /// machine's kernel nor depends on timing. The guests of `devices` and `counters` derive their
    /// time from instructions. `seeds` builds for minutes what `fuzz` runs; `fuzz` itself would
    /// occupy both CPUs.
    fn is_isolated(self) -> bool {
        match self {
            Self::Deny
            | Self::Tables
            | Self::NewSource
            | Self::Msrv
            | Self::Seeds
            | Self::Packages
            | Self::Devices
            | Self::Readers => true,
            Self::Counters => !has_counters(),
            _ => false,
        }
    }

    /// Runs the tier; returns a remark for the report.
    fn run(self, workspace: &Workspace, filter: &[String]) -> Result<String> {
        match self {
            Self::Fmt => shell::run(workspace.cargo().args(["fmt", "--all", "--check"]))?,
            Self::Lint => lint::run(workspace)?,
            Self::Deny => return deny::run(workspace),
            Self::Docs => docs::check(workspace, &rust::controller(workspace)?)?,
            Self::Tables => perfevents::check()?,
            Self::Unit => return rust::unit(workspace, filter),
            Self::NewSource => return new_source::run(workspace),
            Self::Msrv => return msrv::run(workspace),
            Self::E2e => return rust::end_to_end(workspace, filter),
            Self::Long => return rust::long(workspace, filter),
            Self::Kernels => return vm::test(workspace, filter),
            Self::Devices => return vm::devices(workspace, filter),
            Self::Counters if has_counters() => return rust::counters(workspace, filter),
            Self::Counters => return vm::counters(workspace, filter),
            Self::Jobs => return rust::jobs(workspace, filter),
            Self::Hostile => return rust::hostile(workspace, filter),
            Self::Readers => return rust::readers(workspace, filter),
            Self::Python => return python::run(workspace, filter),
            Self::Packages => return packages::run(workspace),
            Self::Browser => return rust::browser(workspace, filter),
            Self::Seeds => return fuzz::seeds(workspace, filter),
            Self::Fuzz => return fuzz::run(workspace, filter),
            Self::System => return vm::system::test(workspace, filter),
            Self::Gpu => return rust::gpu(workspace, filter),
            Self::Oar => return rust::oar(workspace, filter),
            Self::Soak => return rust::soak(workspace, filter),
        }
        Ok(String::new())
    }
}
