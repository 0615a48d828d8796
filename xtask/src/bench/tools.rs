//! Packaged programs for the benchmarks.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{apt, shell};

pub struct Tool {
    pub program: &'static str,
    /// Names of its package in several distributions.
    packages: &'static [&'static str],
    purpose: &'static str,
}

pub static PERF: Tool = Tool {
    program: "perf",
    // Debian and Ubuntu.
    packages: &["linux-perf", "linux-tools-generic"],
    purpose: "perf bench as workload",
};
pub static FIO: Tool = Tool {
    program: "fio",
    packages: &["fio"],
    purpose: "workload with files",
};
pub static IPERF3: Tool = Tool {
    program: "iperf3",
    packages: &["iperf3"],
    purpose: "workload with TCP",
};
pub static BPFTRACE: Tool = Tool {
    program: "bpftrace",
    packages: &["bpftrace"],
    purpose: "comparison with the profiler",
};

pub static ALL: [&Tool; 4] = [&PERF, &FIO, &IPERF3, &BPFTRACE];

impl Tool {
    /// Installs the tool if it is missing.
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

    /// Its version, if the tool works.
    pub fn version(&self) -> Option<String> {
        let output = shell::stdout(Command::new(self.program).arg("--version")).ok()?;
        output.lines().next().map(|line| line.trim().to_owned())
    }

    /// The package of this distribution.
    pub fn package(&self) -> String {
        let known = |name: &&&str| apt::candidate(name).is_some();
        let package = self.packages.iter().find(known);
        package.map_or(self.packages[0], |name| name).to_owned()
    }
}
