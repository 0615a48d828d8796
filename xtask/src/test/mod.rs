//! `cargo xtask test`: all tests, in tiers.
//!
//! A requested tier runs or fails. No tier is skipped, and none passes without running tests.

mod background;
pub mod deny;
pub mod failures;
mod fuzz;
pub mod guard;
mod leftovers;
mod lint;
mod msrv;
mod new_source;
mod packages;
mod python;
mod queries;
mod results;
mod rust;

use std::{
    num::NonZero,
    path::Path,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ::perfevents::{CORE_PMU, Device};
use anyhow::Result;
use clap::{ValueEnum, value_parser};

use self::results::{Passed, Results, Tree};
use crate::{bench, docs, perfevents, preparation, shell, vm, workspace::Workspace};

/// `cargo xtask test`
#[derive(clap::Args)]
pub struct Args {
    /// Tiers to run, whole [default: `fmt`, `lint`, `docs`, `unit` and `e2e`, and the quick tests of
    /// `python` and `hostile`]
    tiers: Vec<Tier>,
    /// All tiers except `gpu`, `oar` and `soak`; those that have passed on the same files are not
    /// repeated
    #[arg(long, conflicts_with = "tiers")]
    all: bool,
    /// Repeat tiers that have passed
    #[arg(long, requires = "all")]
    again: bool,
    /// Run each selected test this often, without a second attempt; without tiers, tests of `e2e`,
    /// `long` and `hostile`
    #[arg(long, value_name = "TIMES", value_parser = value_parser!(u32).range(1..))]
    #[arg(conflicts_with = "all")]
    stress: Option<u32>,
    /// List the tiers
    #[arg(long)]
    list: bool,
    /// Filters, such as names of tests, for the runner of `unit`, `e2e`, `long`, `kernels`,
    /// `devices`, `counters`, `system`, `jobs`, `hostile`, `readers`, `python`, `frameworks`, `browser`,
    /// `seeds`, `fuzz`, `gpu`, `oar` and `soak`
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
    /// Generated pages match the output of the program; links lead somewhere
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
    /// CPU time and memory of the profiler beside 100 to 10,000 processes, compared with their goals;
    /// requires root and BTF
    Cost,
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
    /// The Python package with PyTorch, Lightning, scikit-learn, Ray and Open MPI, in a Debian 13; requirements
    /// of `e2e`
    Frameworks,
    /// Packages in fresh Debians: installation, upgrade, removal; crates; requires Debian's packages and root
    Packages,
    /// Reports and the manual in a browser; requires Debian's Chromium and Python 3.11 or later
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

/// Tiers that run without arguments, and in CI, in this order.
const DEFAULT: [Tier; 7] = [
    Tier::Fmt,
    Tier::Lint,
    Tier::Unit,
    Tier::Docs,
    Tier::Python,
    Tier::E2e,
    Tier::Hostile,
];
/// Tiers that run only by name.
const NAMED: [Tier; 3] = [Tier::Gpu, Tier::Oar, Tier::Soak];
/// With fewer CPUs, other tiers would disturb those that measure.
const CPUS_FOR_BACKGROUND: usize = 4;

/// Which tests of a tier run.
#[derive(Clone, Copy, Debug)]
struct Selection<'a> {
    /// Only the quick ones, of tiers that have others.
    is_quick: bool,
    /// Filters for the runner of the tests; none if empty.
    filter: &'a [String],
    /// How often each test runs, without a second attempt.
    stress: Option<u32>,
}

impl Selection<'_> {
    /// Whether all tests of a tier run.
    fn is_whole(self, tier: Tier) -> bool {
        let is_part = self.is_quick && [Tier::Python, Tier::Hostile].contains(&tier);
        !is_part && self.filter.is_empty() && self.stress.is_none()
    }
}

struct TierResult {
    tier: Tier,
    result: Result<String>,
    took: Duration,
    /// Of it, building and installing.
    prepared: Duration,
    /// Whether it had passed earlier.
    is_earlier: bool,
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
    let known = Tier::value_variants().iter().copied();
    let requested: Vec<Tier> = match (args.all, &args.tiers[..]) {
        (true, _) => known.filter(|tier| !NAMED.contains(tier)).collect(),
        (false, []) if args.stress.is_some() => vec![Tier::E2e],
        (false, []) => DEFAULT.into(),
        (false, tiers) => known.filter(|tier| tiers.contains(tier)).collect(),
    };
    if args.stress.is_some()
        && let Some(tier) = requested.iter().find(|tier| !tier.has_single_tests())
    {
        eprintln!(
            "error: --stress: the tier `{}` has no single tests to repeat",
            tier.name()
        );
        return ExitCode::FAILURE;
    }
    let selection = Selection {
        is_quick: !args.all && args.tiers.is_empty(),
        filter: &args.filter,
        stress: args.stress,
    };
    let memory = Memory::new(workspace, &requested, selection);
    let is_known = |tier: &Tier| args.all && !args.again && memory.earlier(*tier).is_some();
    let (known, requested): (Vec<_>, Vec<_>) = requested.into_iter().partition(is_known);
    let earlier = known.into_iter().filter_map(|tier| memory.earlier(tier));
    let mut outcomes: Vec<_> = earlier.collect();
    outcomes.extend(run_requested(workspace, &requested, selection, &memory));
    report(&outcomes)
}

/// Runs tiers, in parallel where they do not disturb each other.
fn run_requested(
    workspace: &Workspace,
    requested: &[Tier],
    selection: Selection<'_>,
    memory: &Memory,
) -> Vec<TierResult> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let (mut isolated, measuring): (Vec<_>, Vec<_>) = requested
        .iter()
        .copied()
        .partition(|tier| tier.is_isolated());
    // The longest one, whose guest occupies one CPU, is not left to the end.
    isolated.sort_by_key(|tier| *tier != Tier::Counters);
    let here = |tier: Tier| tier.run(workspace, selection);
    let background = |tier| background::run(workspace, tier, selection.filter);
    if isolated.is_empty() || measuring.is_empty() || cpus < CPUS_FOR_BACKGROUND {
        return run_all(requested, here, memory);
    }
    // Both groups need the object; a failure is reported by each tier that needs it.
    if let Err(error) = crate::bpf::build(workspace) {
        eprintln!("error: {error:#}");
    }
    thread::scope(|scope| {
        let isolated = scope.spawn(|| run_all(&isolated, background, memory));
        let mut outcomes = run_all(&measuring, here, memory);
        outcomes.extend(isolated.join().expect("reports failures, does not panic"));
        outcomes
    })
}

/// Results of whole tiers, also of earlier runs.
struct Memory {
    results: Mutex<Results>,
    /// Hashes of the files on which the tiers depend; none outside of a checkout, and for a
    /// selection of tests.
    hashes: Vec<(Tier, String)>,
}

impl Memory {
    fn new(workspace: &Workspace, tiers: &[Tier], selection: Selection<'_>) -> Self {
        let tree = Tree::read(workspace).ok();
        let hash = |tier: &Tier| {
            let tree = tree.as_ref().filter(|_| selection.is_whole(*tier))?;
            Some((*tier, tree.hash(tier.inputs()).ok()?))
        };
        Self {
            results: Mutex::new(Results::read(workspace)),
            hashes: tiers.iter().filter_map(hash).collect(),
        }
    }

    fn hash(&self, tier: Tier) -> Option<&str> {
        let mut hashes = self.hashes.iter();
        hashes.find_map(|(of, hash)| (*of == tier).then_some(hash.as_str()))
    }

    /// The result of a tier that has passed on the same files.
    fn earlier(&self, tier: Tier) -> Option<TierResult> {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = results.get(&tier.name(), self.hash(tier)?)?;
        Some(TierResult {
            tier,
            result: Ok(passed.figures.clone()),
            took: passed.took,
            prepared: passed.prepared,
            is_earlier: true,
        })
    }

    /// Records the result of a tier.
    fn record(&self, outcome: &TierResult) {
        let Some(hash) = self.hash(outcome.tier) else {
            return;
        };
        let passed = outcome.result.as_ref().ok().map(|figures| Passed {
            tree: hash.to_owned(),
            took: outcome.took,
            prepared: outcome.prepared,
            figures: figures.clone(),
        });
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = results.set(&outcome.tier.name(), passed) {
            shell::progress(&format!("{error:#}"));
        }
    }
}

/// Runs tiers sequentially.
fn run_all(
    tiers: &[Tier],
    run: impl Fn(Tier) -> Result<String>,
    memory: &Memory,
) -> Vec<TierResult> {
    let run = |tier: &Tier| {
        shell::progress(&format!("testing: {}", tier.name()));
        preparation::take();
        let started = Instant::now();
        let result = run(*tier);
        if let Err(error) = &result {
            eprintln!("error: {}: {error:#}", tier.name());
        }
        let outcome = TierResult {
            tier: *tier,
            result,
            took: started.elapsed(),
            prepared: preparation::take(),
            is_earlier: false,
        };
        memory.record(&outcome);
        outcome
    };
    tiers.iter().map(run).collect()
}

fn report(outcomes: &[TierResult]) -> ExitCode {
    let seconds = |time: Duration| format!("{:.0} s", time.as_secs_f64());
    println!(
        "\n{:<10} {:<7} {:>8} {:>10}",
        "tier", "result", "time", "building"
    );
    for outcome in outcomes {
        let (verdict, remark) = match (&outcome.result, outcome.is_earlier) {
            (Ok(remark), false) => ("passed", remark.as_str()),
            (Ok(remark), true) => ("earlier", remark.as_str()),
            (Err(_), _) => ("FAILED", ""),
        };
        let line = format!(
            "{:<10} {verdict:<7} {:>8} {:>10}  {remark}",
            outcome.tier.name(),
            seconds(outcome.took),
            seconds(outcome.prepared),
        );
        println!("{}", line.trim_end());
    }
    let here = outcomes.iter().filter(|outcome| !outcome.is_earlier);
    let [took, prepared]: [Duration; 2] = [
        here.clone().map(|outcome| outcome.took).sum(),
        here.map(|outcome| outcome.prepared).sum(),
    ];
    println!(
        "{:<18} {:>8} {:>10}",
        "all",
        seconds(took),
        seconds(prepared)
    );
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

    /// Files on which the result depends, as paths of git; all files if empty.
    fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::Fmt => &["*.rs", "*rustfmt.toml", "*Cargo.toml"],
            Self::Deny => &["*Cargo.toml", "*Cargo.lock", "deny.toml", "xtask"],
            Self::Tables => &["Cargo.*", "perfevents", "xtask"],
            Self::Msrv => &[
                "Cargo.*",
                "profiler",
                "profiler-ebpf",
                "perfevents",
                "xtask",
            ],
            Self::NewSource
            | Self::Cost
            | Self::Kernels
            | Self::Devices
            | Self::Counters
            | Self::Seeds
            | Self::Fuzz => &[":(exclude)*.md"],
            _ => &[],
        }
    }

    /// Whether the runner of this machine's tests runs the tier.
    fn has_single_tests(self) -> bool {
        match self {
            Self::Unit
            | Self::E2e
            | Self::Long
            | Self::Jobs
            | Self::Hostile
            | Self::Readers
            | Self::Browser
            | Self::Gpu
            | Self::Oar
            | Self::Soak => true,
            Self::Counters => has_counters(),
            _ => false,
        }
    }

    /// Runs the tier; returns a remark for the report.
    fn run(self, workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
        let filter = selection.filter;
        match self {
            Self::Fmt => shell::run(workspace.cargo().args(["fmt", "--all", "--check"]))?,
            Self::Lint => lint::run(workspace)?,
            Self::Deny => return deny::run(workspace),
            Self::Docs => docs::check(workspace, &rust::profiler(workspace)?)?,
            Self::Tables => perfevents::check()?,
            Self::Unit => return rust::unit(workspace, selection),
            Self::NewSource => return new_source::run(workspace),
            Self::Msrv => return msrv::run(workspace),
            Self::E2e => return rust::end_to_end(workspace, selection),
            Self::Long => return rust::long(workspace, selection),
            Self::Cost => return bench::check_cost(workspace),
            Self::Kernels => return vm::test(workspace, filter),
            Self::Devices => return vm::devices(workspace, filter),
            Self::Counters if has_counters() => return rust::counters(workspace, selection),
            Self::Counters => return vm::counters(workspace, filter),
            Self::Jobs => return rust::jobs(workspace, selection),
            Self::Hostile => return rust::hostile(workspace, selection),
            Self::Readers => return rust::readers(workspace, selection),
            Self::Python => return python::run(workspace, selection),
            Self::Frameworks => return python::frameworks(workspace, filter),
            Self::Packages => return packages::run(workspace),
            Self::Browser => return rust::browser(workspace, selection),
            Self::Seeds => return fuzz::seeds(workspace, filter),
            Self::Fuzz => return fuzz::run(workspace, filter),
            Self::System => return vm::system::test(workspace, filter),
            Self::Gpu => return rust::gpu(workspace, selection),
            Self::Oar => return rust::oar(workspace, selection),
            Self::Soak => return rust::soak(workspace, selection),
        }
        Ok(String::new())
    }
}
