//! Several guests, side by side, and what came of them.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, bail};

use super::{
    NEED_COUNTERS, NEED_CPUS, NEED_DEVICES, drivers,
    hooks::Hooks,
    initramfs::{self, Parts, TOOLS},
    kernel::{self, Flavour, Kernel},
    modules::WANTED,
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

/// How guests are run.
pub struct Guests<'a> {
    pub arch: &'static Arch,
    pub machine: Machine,
    pub hardware: Hardware,
    /// Modules of kernels that are given as files.
    pub modules: Option<&'a Path>,
    pub filter: &'a [String],
}

/// What of the machine is tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hardware {
    /// Only what every machine has.
    Common,
    /// Devices that it does not have: modules of ours play them.
    Played,
}

/// What came of one.
struct Outcome {
    verdict: Result<Verdict>,
    /// What its kernel gives to the BPF programs.
    hooks: Result<Hooks>,
    took: Duration,
}

/// What came of all.
pub struct Session {
    programs: Programs,
    outcomes: Vec<Outcome>,
}

impl Guests<'_> {
    /// Boots the kernels, as many at a time as there are CPUs: a guest keeps one busy.
    pub fn test(&self, workspace: &Workspace, names: &[&str]) -> Result<Session> {
        qemu::obtain(self.arch)?;
        let played = self.hardware == Hardware::Played;
        let flavour = if played {
            Flavour::Full
        } else {
            Flavour::Cloud
        };
        let obtain =
            |name: &&str| kernel::obtain(workspace, self.arch, flavour, name, self.modules);
        let kernels: Vec<Kernel> = names.iter().map(obtain).collect::<Result<_>>()?;
        let programs = programs::build(workspace, self.arch, "kernel")?;
        let tools = [TOOLS, if played { drivers::TOOLS } else { &[] }].concat();
        let userland = Userland::obtain(workspace, self.arch, &tools)?;
        let parts = &Parts {
            userland: &userland,
            programs: &programs,
            tools: &tools,
            modules: if played { drivers::MODULES } else { WANTED },
        };
        let at_a_time = thread::available_parallelism().map_or(1, usize::from);
        let mut outcomes = Vec::new();
        for some in kernels.chunks(at_a_time) {
            thread::scope(|scope| {
                let start = |kernel| scope.spawn(move || self.one(workspace, kernel, parts));
                let started: Vec<_> = some.iter().map(start).collect();
                for guest in started {
                    outcomes.extend(guest.join());
                }
            });
        }
        println!();
        for (kernel, outcome) in kernels.iter().zip(&outcomes) {
            outcome.print(&kernel.name);
        }
        if outcomes.len() != kernels.len() {
            bail!("a guest was lost");
        }
        Ok(Session { programs, outcomes })
    }

    fn one(&self, workspace: &Workspace, kernel: &Kernel, parts: &Parts) -> Outcome {
        let begin = Instant::now();
        let console = self.boot(workspace, kernel, parts);
        let took = begin.elapsed();
        let (verdict, hooks) = match console {
            Ok(console) => {
                let report = verdict::report(&console.lines);
                let report = report.context("a guest did not say what its kernel has");
                let verdict = verdict::judge(&console.lines, console.end);
                (verdict, report.and_then(Hooks::parse))
            }
            Err(error) => (Err(error), Err(Error::msg("a guest was not started"))),
        };
        Outcome {
            verdict,
            hooks,
            took,
        }
    }

    fn boot(&self, workspace: &Workspace, kernel: &Kernel, parts: &Parts) -> Result<Console> {
        let programs = parts.programs;
        let played = self.hardware == Hardware::Played;
        let ending = if played { "-devices" } else { "" };
        let name = format!("{}-{}{ending}", kernel.name, self.arch.name);
        let directory = workspace.target.join("vm/guests").join(name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("making {}", directory.display()))?;
        let profiler = programs.profiler.display();
        let mut plan = vec![
            format!("env PROFILER_BIN={profiler}"),
            "env PROFILER_TEST_TIMEOUT_FACTOR=5".to_owned(),
            // Of these kernels it is known that they let functions be traced.
            "env PROFILER_TEST_REQUIRE_FENTRY=1".to_owned(),
            format!("test {}", programs.tests.display()),
        ];
        let mut built = Vec::new();
        if played {
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
            (!played, NEED_DEVICES),
            (self.arch.counters.is_none(), NEED_COUNTERS),
            (self.machine.cpus == 1, NEED_CPUS),
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

impl Outcome {
    fn print(&self, name: &str) {
        let outcome = match &self.verdict {
            Ok(verdict) => format!("passed  {} tests", verdict.passed),
            Err(error) => format!("FAILED  {error:#}"),
        };
        println!("{name:<6} {:>6.1} s  {outcome}", self.took.as_secs_f64());
    }
}

impl Session {
    /// How many tests passed, if none failed.
    pub fn result(&self) -> Result<u64> {
        let verdicts = self.outcomes.iter().map(|outcome| &outcome.verdict);
        let failed = verdicts.clone().filter(|verdict| verdict.is_err()).count();
        if failed != 0 {
            let errors = verdicts.filter_map(|verdict| verdict.as_ref().err());
            let why: Vec<_> = errors.map(|error| format!("{error:#}")).collect();
            bail!(
                "{failed} of {} kernels failed\n{}",
                self.outcomes.len(),
                why.join("\n")
            );
        }
        Ok(verdicts.flatten().map(|verdict| verdict.passed).sum())
    }

    /// What each kernel, and the one that runs, gives to the BPF programs.
    pub fn hooks(self) -> Result<Vec<Hooks>> {
        let mut check = privileged(&self.programs.profiler);
        let here = Hooks::parse(&shell::stdout(check.args(["check", "--json"]))?)?;
        let mut all = vec![here];
        for outcome in self.outcomes {
            let hooks = outcome.hooks?;
            all.retain(|other| other.kernel != hooks.kernel);
            all.push(hooks);
        }
        Ok(all)
    }
}
