//! `cargo xtask vm`: the kernel tests on kernels other than the one that runs.

mod cpio;
mod initramfs;
mod kernel;
mod modules;
mod programs;
pub mod qemu;
mod tree;
mod verdict;

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use self::{kernel::Kernel, programs::Programs, qemu::Machine};
use crate::{shell::progress, workspace::Workspace};

/// `cargo xtask vm`
#[derive(clap::Args)]
pub struct Args {
    /// Versions of Debian's cloud kernels (6.1), or files of kernel images
    #[arg(required = true, value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Modules of the kernels given as files: their /lib/modules/RELEASE
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Memory of the machine, as qemu takes it
    #[arg(long, default_value = "1G")]
    memory: String,
    /// CPUs of the machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// How qemu runs it: tcg (emulation) works everywhere, kvm where /dev/kvm does
    #[arg(long, default_value = "tcg")]
    accelerator: String,
    /// Seconds after which a guest is taken to hang
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Passed to the tests: names, for example
    #[arg(last = true)]
    filter: Vec<String>,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let machine = Machine {
        memory: args.memory.clone(),
        cpus: args.cpus,
        accelerator: args.accelerator.clone(),
        timeout: Duration::from_secs(args.timeout),
    };
    let mut kernels = Vec::new();
    qemu::obtain()?;
    for name in &args.kernels {
        kernels.push(kernel::obtain(workspace, name, args.modules.as_deref())?);
    }
    let programs = programs::build(workspace)?;
    let mut failures = 0;
    let mut report = Vec::new();
    for kernel in &kernels {
        let begin = Instant::now();
        let result = test(workspace, kernel, &programs, &machine, &args.filter);
        failures += u32::from(result.is_err());
        let outcome = match result {
            Ok(remark) => format!("passed  {remark}"),
            Err(error) => format!("FAILED  {error:#}"),
        };
        let took = begin.elapsed().as_secs_f64();
        report.push(format!("{:<6} {took:>6.1} s  {outcome}", kernel.name));
    }
    println!();
    for line in &report {
        println!("{line}");
    }
    if failures != 0 {
        bail!("{failures} of {} kernels failed", kernels.len());
    }
    Ok(())
}

fn test(
    workspace: &Workspace,
    kernel: &Kernel,
    programs: &Programs,
    machine: &Machine,
    filter: &[String],
) -> Result<String> {
    let folder = workspace.target.join("vm/guest");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let variable = |name: &str, value: &str| format!("env {name}={value}");
    let profiler = programs.profiler.to_string_lossy();
    let mut orders = vec![
        variable("PROFILER_BIN", &profiler),
        variable("PROFILER_TEST_PATIENCE", "10"),
        // Of these kernels it is known that they let functions be traced.
        variable("PROFILER_TEST_FUNCTIONS", "1"),
        format!("test {}", programs.tests.display()),
    ];
    orders.extend(filter.iter().map(|word| format!("arg {word}")));
    let initramfs = initramfs::build(workspace, kernel, programs, &orders, &folder)?;
    progress(&format!("booting {}", kernel.name));
    let console = qemu::boot(kernel, &initramfs, machine)?;
    let verdict = verdict::judge(&console.lines, console.end)?;
    Ok(format!(
        "{} tests, {} ignored",
        verdict.passed, verdict.ignored
    ))
}
