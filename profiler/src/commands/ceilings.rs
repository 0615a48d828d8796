//! `profiler ceilings`: measures peak performance and bandwidths of this machine.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
};

use clap::{Args, ValueHint};

use super::{print, print_json};
use crate::{
    ceilings::{Ceilings, Machine, Plan, allowed_cpus, busy, directories, file_name},
    failure::{Failure, Reason},
    host::{Host, cpu_list, cpu_list_text},
    report,
    support::{
        clock::{Clock, monotonic_ns},
        units::wall_clock,
    },
};

/// Arguments of `profiler ceilings`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// File to write [default: in /var/lib/profiler/ceilings for root, otherwise in
    /// ~/.local/state/profiler/ceilings, where `profiler report` finds it]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// CPUs to use, such as 0-15,32 [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Measure even if the node is busy; the reasons are stored with the result
    #[arg(long)]
    force: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the node is busy, a CPU cannot be used, or the file not be written.
    pub fn run(&self) -> Result<u8, Failure> {
        let cpus = self.chosen_cpus()?;
        let host = Host::probe("/proc", "/sys", None);
        let machine = Machine::here(&host);
        // Before the measurement, which takes a minute.
        let path = self.path(&machine)?;
        Ceilings::check_output(&path)?;
        let busy = busy(&host.procfs);
        if !busy.is_empty() && !self.force {
            return Err(Failure::new(
                Reason::Target,
                format!(
                    "the node is busy: {}. Other work lowers the result: wait until it has ended, or use --force",
                    busy.join(", ")
                ),
            ));
        }
        let plan = Plan::new(&host, &cpus);
        for omitted in &plan.omitted {
            report!("not measured: {omitted}");
        }
        report!(
            "measuring {} loops on CPUs {}, about {} s",
            plan.len(),
            cpu_list_text(&cpus),
            plan.duration().as_secs()
        );
        let measured = plan.measure(|number, name| progress(number, plan.len(), name));
        progress_end();
        let ceilings = Ceilings {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            measured: Some(now()),
            cpus: Some(cpu_list_text(&cpus)),
            busy,
            machine,
            ..measured.map_err(|error| Failure::new(Reason::Usage, format!("--cpus: {error}")))?
        };
        ceilings.write(&path)?;
        report!("{}", path.display());
        if self.json {
            print_json(&ceilings)?;
        } else {
            print(text(&ceilings))?;
        }
        Ok(0)
    }

    /// The file to write.
    fn path(&self, machine: &Machine) -> Result<PathBuf, Failure> {
        let path = self.output.clone().or_else(|| {
            let directory = directories().into_iter().next()?;
            Some(directory.join(file_name(machine)))
        });
        path.ok_or_else(|| {
            let message = "no directory to write to: use --output FILE";
            Failure::new(Reason::Output, message)
        })
    }

    /// CPUs to use: those that are given, of which this process may use all.
    fn chosen_cpus(&self) -> Result<Vec<usize>, Failure> {
        let allowed = allowed_cpus().map_err(Failure::internal)?;
        let Some(list) = &self.cpus else {
            return Ok(allowed);
        };
        let usage = |what: String| Failure::new(Reason::Usage, format!("--cpus {list}: {what}"));
        let cpus = cpu_list(list).filter(|cpus| !cpus.is_empty());
        let cpus = cpus.ok_or_else(|| usage("not a list of CPUs, such as 0-15,32".to_owned()))?;
        match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => Err(usage(format!(
                "this process may not use CPU {cpu}, only {}",
                cpu_list_text(&allowed)
            ))),
            None => Ok(cpus),
        }
    }
}

fn now() -> String {
    let clock = Clock::new();
    wall_clock(clock.wall_ns(monotonic_ns()))
}

/// A line that replaces itself on a terminal.
fn progress(number: usize, all: usize, name: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{number}/{all} {name}");
        let _ = stderr.flush();
    }
}

fn progress_end() {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K");
    }
}

/// A table with one line for each loop.
fn text(ceilings: &Ceilings) -> String {
    let mut lines = vec![format!(
        "{:<24} {:>5} {:>16} {:>8}",
        "loop", "CPUs", "median", "spread"
    )];
    let mut line = |name: &str, cpus: Option<usize>, rate: String, spread: Option<f64>| {
        let spread = spread.unwrap_or_default() * 100.0;
        let cpus = cpus.unwrap_or_default();
        lines.push(format!("{name:<24} {cpus:>5} {rate:>16} {spread:>6.1} %"));
    };
    for flops in &ceilings.flops {
        let name = flops.name.as_deref().unwrap_or_default();
        let rate = format!("{:.2} GFLOP/s", flops.per_second / 1e9);
        line(name, flops.cpus, rate, flops.spread);
    }
    for bandwidth in &ceilings.bandwidth {
        let access = bandwidth.access.as_deref().unwrap_or_default();
        let name = format!("{} {access}", bandwidth.level);
        let rate = format!("{:.2} GB/s", bandwidth.per_second / 1e9);
        line(&name, bandwidth.cpus, rate, bandwidth.spread);
    }
    lines.join("\n") + "\n"
}
