//! `cargo xtask calibrate`: compares counters with programs of known work.

mod counting;
mod verdict;
mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use self::{
    counting::{Counting, Groups},
    verdict::{Counted, Known, Verdict},
    workload::{Kernel, Workload},
};
use crate::{bpf, python, shell::progress, workspace::Workspace};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask calibrate                             all kernels of this CPU, about two minutes
  cargo xtask calibrate -k fma-avx2-dp -k triad     two kernels
  cargo xtask calibrate --cpu 16                    on another kind of core
  PROFILER_PERFEVENTS=DIR cargo xtask calibrate     with custom event tables

Each kernel runs twice, with N iterations (about 1 s) and 3N iterations. The difference of the counts is compared with \
the known work of 2N iterations, which excludes the start of the program.

  ok                FLOPs within 2 % of the known work, bytes between 0.95 and 1.25 times the known work
  WRONG             any other count: most likely a wrong code or formula in the CPU's event table
  no verdict        the events were multiplexed for more than 1 % of the time: stop other profilers,
                    and the NMI watchdog with `sysctl kernel.nmi_watchdog=0`
  not counted here  the CPU has no such metric, or no PMU for it

The bytes of the triad lie between those without and with write-allocate. Run it on an idle machine: memory controllers \
count the traffic of all processes.

The exit code is 0 if something was compared and nothing is WRONG, otherwise 1. Without a PMU, as on most virtual \
machines, nothing can be compared.")]
pub struct Args {
    /// Run only this kernel; can be repeated
    #[arg(short, long, value_name = "NAME")]
    kernel: Vec<String>,
    /// Run the kernels on this CPU [default: the first one]
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Use this profiler instead of the one built here
    #[arg(long)]
    profiler: Option<PathBuf>,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    // Checked before the build, which takes minutes.
    counting::require_pmu(Path::new("/sys"))?;
    let profiler = program(workspace, args)?;
    let groups = Groups::read(&profiler)?;
    if !groups.has_flops() {
        progress(
            "the table of this CPU has no FLOPS group: floating-point operations are not compared",
        );
    }
    let workload = Workload::build(workspace, args.cpu)?;
    let kernels = chosen(workload.kernels()?, &args.kernel)?;
    let directory = workspace.target.join("calibrate");
    remove(&directory)?;
    let counting = Counting {
        profiler: &profiler,
        python: &python::obtain(workspace)?,
        reader: &workspace.root.join("tests/scripts/read.py"),
        directory: &directory,
    };
    let mut verdicts = Vec::new();
    let mut refused = BTreeSet::new();
    print_head();
    for kernel in &kernels {
        compare(
            kernel,
            &workload,
            &groups,
            &counting,
            &mut verdicts,
            &mut refused,
        )?;
    }
    for group in refused {
        println!("{group}: {}", groups.refusal(group).unwrap_or_default());
    }
    match verdict::conclude(&verdicts) {
        Ok(summary) => {
            println!("{summary}");
            remove(&directory)
        }
        Err(why) if verdicts.contains(&Verdict::Wrong) => {
            bail!("{why}; the runs are in {}", directory.display())
        }
        Err(why) => bail!("{why}"),
    }
}

fn program(workspace: &Workspace, args: &Args) -> Result<PathBuf> {
    if let Some(path) = &args.profiler {
        return path
            .canonicalize()
            .with_context(|| format!("looking for {}", path.display()));
    }
    bpf::build_optimized(workspace)
}

fn chosen(mut kernels: Vec<Kernel>, names: &[String]) -> Result<Vec<Kernel>> {
    let known: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("--kernel {unknown}: this machine has {}", known.join(", "));
    }
    kernels.retain(|kernel| names.is_empty() || names.contains(&kernel.name));
    Ok(kernels)
}

/// Prints a line for each metric of the kernel.
fn compare(
    kernel: &Kernel,
    workload: &Workload,
    groups: &Groups,
    counting: &Counting<'_>,
    verdicts: &mut Vec<Verdict>,
    refused: &mut BTreeSet<&'static str>,
) -> Result<()> {
    let mut found = Vec::new();
    for alternatives in kernel.metrics() {
        found.extend(groups.choose(alternatives));
    }
    let group = found.first().map(|(group, _)| *group);
    let counted = match group {
        Some(group) if groups.refusal(group).is_some() => {
            refused.insert(group);
            None
        }
        Some(group) => Some(count(kernel, group, workload, counting)?),
        None => None,
    };
    if found.is_empty() {
        // A metric of the kernel, for the report of its missing group.
        found.extend(kernel.metrics().first().and_then(|all| all.first()));
    }
    for (_, metric) in found {
        let counted = counted.as_ref().map(|(more, totals)| {
            let known = kernel.known(metric, *more);
            (known, totals.get(metric).copied())
        });
        verdicts.push(print(&kernel.name, metric, counted));
    }
    Ok(())
}

/// Difference of the two runs: iterations, and counts by metric.
fn count(
    kernel: &Kernel,
    group: &str,
    workload: &Workload,
    counting: &Counting<'_>,
) -> Result<(u64, BTreeMap<String, Counted>)> {
    let iterations = workload.iterations(kernel)?;
    let run = |times: u64| {
        let words = workload.command(kernel, iterations * times);
        let label = format!("{}-{times}", kernel.name);
        counting.count(group, kernel.scope(), &label, &words)
    };
    let (shorter, longer) = (run(1)?, run(3)?);
    let more = longer.into_iter().filter_map(|(metric, longer)| {
        let shorter = shorter.get(&metric)?;
        Some((metric, longer.since(*shorter)))
    });
    Ok((2 * iterations, more.collect()))
}

fn print_head() {
    print_line([
        "kernel", "metric", "known", "counted", "ratio", "share", "verdict",
    ]);
}

fn print(kernel: &str, metric: &str, compared: Option<(Known, Option<Counted>)>) -> Verdict {
    let Some((known, counted)) = compared else {
        let verdict = Verdict::NotCounted;
        print_line([kernel, metric, "", "", "", "", &verdict.to_string()]);
        return verdict;
    };
    let verdict = Verdict::of(&known, counted);
    let show = |text: &dyn Fn(&Counted) -> String| counted.as_ref().map(text).unwrap_or_default();
    print_line([
        kernel,
        metric,
        &known.to_string(),
        &show(&|counted| verdict::giga(counted.total)),
        &show(&|counted| known.ratio(counted.total)),
        &show(&|counted| format!("{:.3}", counted.share)),
        &verdict.to_string(),
    ]);
    verdict
}

fn print_line([kernel, metric, known, counted, ratio, share, verdict]: [&str; 7]) {
    println!(
        "{kernel:<14} {metric:<12} {known:>23} {counted:>12} {ratio:>15} {share:>6}  {verdict}"
    );
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}
