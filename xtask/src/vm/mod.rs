//! `cargo xtask vm`: the kernel tests on kernels other than the one that runs.

mod cpio;
mod hooks;
mod initramfs;
mod kernel;
mod modules;
mod page;
mod programs;
pub mod qemu;
mod tree;
mod verdict;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use self::{
    hooks::Hooks,
    kernel::Kernel,
    programs::Programs,
    qemu::{Console, Machine},
    verdict::Verdict,
};
use crate::{
    run::privileged,
    shell::{self, progress},
    workspace::Workspace,
};

/// The kernels that every change is tested with, besides the one that runs.
const KERNELS: &[&str] = &["6.1", "6.12"];
/// The tests take a minute or two; emulation on a busy machine several times that.
const TIMEOUT: Duration = Duration::from_secs(900);

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
    #[arg(long, default_value = Machine::MEMORY)]
    memory: String,
    /// CPUs of the machine
    #[arg(long, default_value_t = Machine::CPUS, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// How qemu runs it: tcg (emulation) works everywhere, kvm where /dev/kvm does
    #[arg(long, default_value = Machine::ACCELERATOR)]
    accelerator: String,
    /// Seconds after which a guest is taken to hang
    #[arg(long, default_value_t = TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write what was found, here and in the guests, to docs/kernels.md
    #[arg(long, conflicts_with = "filter")]
    write_table: bool,
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
    let names: Vec<&str> = args.kernels.iter().map(String::as_str).collect();
    let guests = Guests {
        machine,
        modules: args.modules.as_deref(),
        filter: &args.filter,
    };
    let session = guests.test(workspace, &names)?;
    if args.write_table {
        page::write(workspace, &session.hooks()?)?;
    }
    session.result().map(drop)
}

/// The tier `kernels` of `cargo xtask test`.
pub fn test(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let guests = Guests {
        machine: Machine {
            memory: Machine::MEMORY.into(),
            cpus: Machine::CPUS,
            accelerator: Machine::ACCELERATOR.into(),
            timeout: TIMEOUT,
        },
        modules: None,
        filter,
    };
    let session = guests.test(workspace, KERNELS)?;
    let tests = session.result()?;
    page::check(workspace, &session.hooks()?)?;
    Ok(format!("{tests} tests on {}", KERNELS.join(", ")))
}

/// How guests are run.
struct Guests<'a> {
    machine: Machine,
    modules: Option<&'a Path>,
    filter: &'a [String],
}

/// What came of it.
struct Session {
    programs: Programs,
    /// Of each guest, its verdict and what its kernel gave to the BPF programs.
    outcomes: Vec<(Result<Verdict>, Option<Hooks>)>,
}

impl Guests<'_> {
    fn test(&self, workspace: &Workspace, names: &[&str]) -> Result<Session> {
        qemu::obtain()?;
        let obtain = |name: &&str| kernel::obtain(workspace, name, self.modules);
        let kernels: Vec<Kernel> = names.iter().map(obtain).collect::<Result<_>>()?;
        let programs = programs::build(workspace)?;
        let mut outcomes = Vec::new();
        let mut report = String::new();
        for kernel in &kernels {
            let begin = Instant::now();
            let (verdict, hooks) = match self.boot(workspace, kernel, &programs) {
                Ok(console) => {
                    let hooks = verdict::report(&console.lines).map(Hooks::parse);
                    let verdict = verdict::judge(&console.lines, console.end);
                    (verdict, hooks.transpose()?)
                }
                Err(error) => (Err(error), None),
            };
            let outcome = match &verdict {
                Ok(verdict) => format!("passed  {} tests", verdict.passed),
                Err(error) => format!("FAILED  {error:#}"),
            };
            let took = begin.elapsed().as_secs_f64();
            let _ = writeln!(report, "{:<6} {took:>6.1} s  {outcome}", kernel.name);
            outcomes.push((verdict, hooks));
        }
        print!("\n{report}");
        Ok(Session { programs, outcomes })
    }

    fn boot(&self, workspace: &Workspace, kernel: &Kernel, programs: &Programs) -> Result<Console> {
        let folder = workspace.target.join("vm/guest");
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let profiler = programs.profiler.display();
        let mut orders = vec![
            format!("env PROFILER_BIN={profiler}"),
            "env PROFILER_TEST_PATIENCE=10".to_owned(),
            // Of these kernels it is known that they let functions be traced.
            "env PROFILER_TEST_FUNCTIONS=1".to_owned(),
            format!("report {profiler} check --json"),
            format!("test {}", programs.tests.display()),
        ];
        orders.extend(self.filter.iter().map(|word| format!("arg {word}")));
        let initramfs = initramfs::build(workspace, kernel, programs, &orders, &folder)?;
        progress(&format!("booting {}", kernel.name));
        qemu::boot(kernel, &initramfs, &self.machine)
    }
}

impl Session {
    /// How many tests passed, if none failed.
    fn result(&self) -> Result<u64> {
        let verdicts = self.outcomes.iter().map(|(verdict, _)| verdict);
        let failed = verdicts.clone().filter(|verdict| verdict.is_err()).count();
        if failed != 0 {
            bail!("{failed} of {} kernels failed", self.outcomes.len());
        }
        Ok(verdicts.flatten().map(|verdict| verdict.passed).sum())
    }

    /// What each kernel, and the one that runs, gives to the BPF programs.
    fn hooks(&self) -> Result<Vec<Hooks>> {
        let mut check = privileged(&self.programs.profiler);
        let here = Hooks::parse(&shell::stdout(check.args(["check", "--json"]))?)?;
        let mut all = vec![here];
        for (_, hooks) in &self.outcomes {
            let hooks = hooks.clone().context("a guest did not say what it has")?;
            all.retain(|other| other.kernel != hooks.kernel);
            all.push(hooks);
        }
        Ok(all)
    }
}
