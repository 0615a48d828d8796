//! Guests that run in parallel, and their results.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, bail};

use super::{
    NEED_COUNTERS, NEED_CPUS, NEED_DEVICES, NEED_HOTPLUG, drivers,
    hooks::Hooks,
    initramfs::{self, Parts, TOOLS},
    kernel::{self, Flavour, Kernel},
    modules::KERNEL_TEST_MODULES,
    programs::{self, Programs},
    qemu::{self, Console, Machine},
    userland::Userland,
    verdict::{self, Verdict},
};
use crate::{
    arch::Arch,
    run::privileged,
    shell::{self, progress},
    workspace::Workspace,
};

/// Settings of the guests.
pub struct Guests<'a> {
    pub arch: &'static Arch,
    pub machine: Machine,
    pub hardware: Hardware,
    /// Modules of kernels given as files.
    pub modules: Option<&'a Path>,
    pub filter: &'a [String],
}

/// Devices of a guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hardware {
    /// Those of every machine.
    Common,
    /// Additional devices, simulated by modules.
    Simulated,
}

struct GuestResult {
    verdict: Result<Verdict>,
    /// Hooks of the BPF programs on its kernel.
    hooks: Result<Hooks>,
    took: Duration,
}

/// Results of all guests.
pub struct Session {
    programs: Programs,
    results: Vec<GuestResult>,
}

impl Guests<'_> {
    /// Boots the kernels, in parallel up to the number of CPUs, because each guest occupies one.
    pub fn test(&self, workspace: &Workspace, names: &[&str]) -> Result<Session> {
        qemu::obtain(self.arch)?;
        let simulated = self.hardware == Hardware::Simulated;
        let flavour = if simulated {
            Flavour::Full
        } else {
            Flavour::Cloud
        };
        let obtain =
            |name: &&str| kernel::obtain(workspace, self.arch, flavour, name, self.modules);
        let kernels: Vec<Kernel> = names.iter().map(obtain).collect::<Result<_>>()?;
        let programs = programs::build(workspace, self.arch, "kernel")?;
        let tools = [TOOLS, if simulated { drivers::TOOLS } else { &[] }].concat();
        let userland = Userland::obtain(workspace, self.arch, &tools)?;
        let parts = &Parts {
            userland: &userland,
            programs: &programs,
            tools: &tools,
            modules: if simulated {
                drivers::MODULES
            } else {
                KERNEL_TEST_MODULES
            },
        };
        let at_a_time = thread::available_parallelism().map_or(1, usize::from);
        let mut results = Vec::new();
        for some in kernels.chunks(at_a_time) {
            thread::scope(|scope| {
                let start = |kernel| scope.spawn(move || self.one(workspace, kernel, parts));
                let started: Vec<_> = some.iter().map(start).collect();
                for guest in started {
                    results.extend(guest.join());
                }
            });
        }
        println!();
        for (kernel, result) in kernels.iter().zip(&results) {
            result.print(&kernel.name);
        }
        if results.len() != kernels.len() {
            bail!("a guest was lost");
        }
        Ok(Session { programs, results })
    }

    fn one(&self, workspace: &Workspace, kernel: &Kernel, parts: &Parts) -> GuestResult {
        let begin = Instant::now();
        let console = self.boot(workspace, kernel, parts);
        let took = begin.elapsed();
        let (verdict, hooks) = match console {
            Ok(console) => {
                let report = verdict::report(&console.lines);
                let report = report.context("no report of the guest's kernel");
                let verdict = verdict::judge(&console.lines, console.end);
                (verdict, report.and_then(Hooks::parse))
            }
            Err(error) => (Err(error), Err(Error::msg("a guest was not started"))),
        };
        GuestResult {
            verdict,
            hooks,
            took,
        }
    }

    fn boot(&self, workspace: &Workspace, kernel: &Kernel, parts: &Parts) -> Result<Console> {
        let programs = parts.programs;
        let simulated = self.hardware == Hardware::Simulated;
        let suffix = if simulated { "-devices" } else { "" };
        let name = format!("{}-{}{suffix}", kernel.name, self.arch.name);
        let directory = workspace.target.join("vm/guests").join(name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        let profiler = programs.profiler.display();
        let mut plan = vec![
            format!("env PROFILER_BIN={profiler}"),
            "env PROFILER_TEST_TIMEOUT_FACTOR=5".to_owned(),
            // These kernels support fexit.
            "env PROFILER_TEST_REQUIRE_FENTRY=1".to_owned(),
            format!("test {}", programs.tests.display()),
        ];
        let mut built = Vec::new();
        if simulated {
            built = drivers::build(workspace, self.arch, kernel, &directory)?;
        } else {
            plan.push(format!("report {profiler} check --json"));
        }
        plan.extend(
            self.arch
                .counters
                .map(|device| format!("counters {device}")),
        );
        let missing = [
            (!simulated, NEED_DEVICES),
            (self.arch.counters.is_none(), NEED_COUNTERS),
            (self.machine.cpus == 1, NEED_CPUS),
            (self.machine.cpus == 1, NEED_HOTPLUG),
        ];
        for (_, tests) in missing.into_iter().filter(|(missing, _)| *missing) {
            plan.extend(["arg --skip".to_owned(), format!("arg {tests}")]);
        }
        plan.extend(self.filter.iter().map(|word| format!("arg {word}")));
        let initramfs = initramfs::build(workspace, kernel, parts, &built, &plan, &directory)?;
        progress(&format!("booting {}", kernel.name));
        qemu::boot(self.arch, kernel, &initramfs, &self.machine)
    }
}

impl GuestResult {
    fn print(&self, name: &str) {
        let result = match &self.verdict {
            Ok(verdict) => format!("passed  {} tests", verdict.passed),
            Err(error) => format!("FAILED  {error:#}"),
        };
        println!("{name:<6} {:>6.1} s  {result}", self.took.as_secs_f64());
    }
}

impl Session {
    /// Number of passed tests; an error if any failed.
    pub fn result(&self) -> Result<u64> {
        let verdicts = self.results.iter().map(|result| &result.verdict);
        let failed = verdicts.clone().filter(|verdict| verdict.is_err()).count();
        if failed != 0 {
            let errors = verdicts.filter_map(|verdict| verdict.as_ref().err());
            let why: Vec<_> = errors.map(|error| format!("{error:#}")).collect();
            bail!(
                "{failed} of {} kernels failed\n{}",
                self.results.len(),
                why.join("\n")
            );
        }
        Ok(verdicts.flatten().map(|verdict| verdict.passed).sum())
    }

    /// Hooks on each tested kernel and on the running one.
    pub fn hooks(self) -> Result<Vec<Hooks>> {
        let mut check = privileged(&self.programs.profiler);
        let here = Hooks::parse(&shell::stdout(check.args(["check", "--json"]))?)?;
        let mut all = vec![here];
        for result in self.results {
            let hooks = result.hooks?;
            all.retain(|other| other.kernel != hooks.kernel);
            all.push(hooks);
        }
        Ok(all)
    }
}
