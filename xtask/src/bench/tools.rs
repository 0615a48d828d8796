//! Packaged programs that the benchmarks run.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{apt, shell};

pub struct Tool {
    pub program: &'static str,
    /// The package that has it: the name of one distribution or another.
    packages: &'static [&'static str],
    purpose: &'static str,
}

pub static PERF: Tool = Tool {
    program: "perf",
    // Debian's name, then Ubuntu's.
    packages: &["linux-perf", "linux-tools-generic"],
    purpose: "perf, whose benchmarks are workloads",
};
pub static FIO: Tool = Tool {
    program: "fio",
    packages: &["fio"],
    purpose: "the workload that reads and writes files",
};
pub static IPERF3: Tool = Tool {
    program: "iperf3",
    packages: &["iperf3"],
    purpose: "the workload that sends through TCP",
};
pub static BPFTRACE: Tool = Tool {
    program: "bpftrace",
    packages: &["bpftrace"],
    purpose: "what the profiler is compared with",
};

pub static ALL: [&Tool; 4] = [&PERF, &FIO, &IPERF3, &BPFTRACE];

impl Tool {
    /// Installs it if it is missing and that is possible.
    pub fn obtain(&self) -> Result<()> {
        if self.version().is_some() {
            return Ok(());
        }
        let packages = [self.package()];
        if apt::available() {
            apt::install(&packages, self.purpose)?;
        }
        if self.version().is_none() {
            bail!(
                "`{}` does not work here: run `{}`",
                self.program,
                apt::command(&packages)
            );
        }
        Ok(())
    }

    /// What it says of itself, if it works.
    pub fn version(&self) -> Option<String> {
        let said = shell::stdout(Command::new(self.program).arg("--version")).ok()?;
        said.lines().next().map(|line| line.trim().to_owned())
    }

    /// The package that this distribution has.
    pub fn package(&self) -> String {
        let known = |name: &&&str| apt::candidate(name).is_some();
        let package = self.packages.iter().find(known);
        package.map_or(self.packages[0], |name| name).to_owned()
    }
}
