//! Packaged programs for the benchmarks.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{apt, shell};

pub struct Tool {
    pub program: &'static str,
    /// Option with which it prints its version.
    version: &'static str,
    /// Names of its package in several distributions.
    packages: &'static [&'static str],
    purpose: &'static str,
}

pub static PERF: Tool = Tool {
    program: "perf",
    version: "--version",
    // Debian and Ubuntu.
    packages: &["linux-perf", "linux-tools-generic"],
    purpose: "perf bench as workload",
};
pub static FIO: Tool = Tool {
    program: "fio",
    version: "--version",
    packages: &["fio"],
    purpose: "workload with files",
};
pub static IPERF3: Tool = Tool {
    program: "iperf3",
    version: "--version",
    packages: &["iperf3"],
    purpose: "workload with TCP",
};
pub static BPFTRACE: Tool = Tool {
    program: "bpftrace",
    version: "--version",
    packages: &["bpftrace"],
    purpose: COMPARISON,
};
pub static RUNQLAT: Tool = Tool {
    program: "runqlat",
    version: "--version",
    packages: &["libbpf-tools"],
    purpose: COMPARISON,
};
pub static PIDSTAT: Tool = Tool {
    program: "pidstat",
    version: "-V",
    packages: &["sysstat"],
    purpose: COMPARISON,
};
pub static ATOP: Tool = Tool {
    program: "atop",
    version: "-V",
    packages: &["atop"],
    purpose: COMPARISON,
};
pub static NODE_EXPORTER: Tool = Tool {
    program: "prometheus-node-exporter",
    version: "--version",
    packages: &["prometheus-node-exporter"],
    purpose: COMPARISON,
};

const COMPARISON: &str = "comparison with the profiler";

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
        let output = shell::stdout(Command::new(self.program).arg(self.version)).ok()?;
        output.lines().next().map(|line| line.trim().to_owned())
    }

    /// The package of this distribution.
    pub fn package(&self) -> String {
        let known = |name: &&&str| apt::candidate(name).is_some();
        let package = self.packages.iter().find(known);
        package.map_or(self.packages[0], |name| name).to_owned()
    }
}
