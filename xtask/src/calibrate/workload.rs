//! `workload-flops`: programs of known work.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::verdict::Known;
use crate::{shell, workspace::Workspace};

const PACKAGE: &str = "e2e";
const PROGRAM: &str = "workload-flops";
/// Duration of the first run; the second takes three times as long.
const LENGTH: Duration = Duration::from_secs(1);
/// Minimum duration from which the time per iteration is computed.
const MEASURABLE: Duration = Duration::from_millis(100);

pub struct Workload {
    program: PathBuf,
    /// CPU to which the program is pinned; each kind of core has its own PMU.
    cpu: String,
}

/// A line of `workload-flops --list`: the work of one iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub name: String,
    precision: String,
    flops: u64,
    bytes: u64,
    bytes_with_allocate: u64,
}

/// Event group and metric.
pub type Metric = (&'static str, &'static str);

impl Workload {
    pub fn build(workspace: &Workspace, cpu: Option<u32>) -> Result<Self> {
        let cpu = cpu.map_or_else(first_cpu, |cpu| Ok(cpu.to_string()))?;
        ensure!(
            shell::which("taskset").is_some(),
            "taskset is missing: install util-linux"
        );
        let package = format!("--package={PACKAGE}");
        let program = format!("--bin={PROGRAM}");
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--quiet", "--release", &package, &program]);
        shell::run_slowly(&mut cargo, &format!("building {PROGRAM}"))?;
        Ok(Self {
            program: workspace.target.join("release").join(PROGRAM),
            cpu,
        })
    }

    /// Kernels supported by this machine.
    pub fn kernels(&self) -> Result<Vec<Kernel>> {
        let list = shell::stdout(Command::new(&self.program).arg("--list"))?;
        let kernels = list.lines().map(|line| {
            Kernel::parse(line)
                .with_context(|| format!("unexpected line of `{PROGRAM} --list`: {line}"))
        });
        kernels.collect()
    }

    /// The command that runs a kernel.
    pub fn command(&self, kernel: &Kernel, iterations: u64) -> Vec<String> {
        let program = self.program.to_string_lossy();
        let iterations = iterations.to_string();
        [
            "taskset",
            "-c",
            &self.cpu,
            &program,
            &kernel.name,
            &iterations,
        ]
        .map(str::to_owned)
        .into()
    }

    /// Number of iterations that take about a second.
    pub fn iterations(&self, kernel: &Kernel) -> Result<u64> {
        let time = |iterations| {
            let words = self.command(kernel, iterations);
            let started = Instant::now();
            shell::run_quietly(Command::new(&words[0]).args(&words[1..]))?;
            Ok(started.elapsed())
        };
        iterations_per_second(time).with_context(|| format!("timing {}", kernel.name))
    }
}

/// Excludes the start of the program, which may take longer than the work.
fn iterations_per_second(mut time: impl FnMut(u64) -> Result<Duration>) -> Result<u64> {
    let mut iterations = 1_u64;
    loop {
        let shorter = time(iterations)?;
        let more = time(3 * iterations)?.saturating_sub(shorter);
        if more >= MEASURABLE {
            let number = 2 * u128::from(iterations) * LENGTH.as_nanos() / more.as_nanos();
            return Ok(u64::try_from(number)?.max(1));
        }
        let next = iterations
            .checked_mul(10)
            .filter(|next| *next < u64::MAX / 3);
        iterations = next.context("an iteration takes no measurable time")?;
    }
}

impl Kernel {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let (name, precision) = (fields.next()?, fields.next()?);
        let mut number = || fields.next()?.parse::<u64>().ok();
        Some(Self {
            name: name.to_owned(),
            precision: precision.to_owned(),
            flops: number()?,
            bytes: number()?,
            bytes_with_allocate: number()?,
        })
    }

    fn counts_memory(&self) -> bool {
        self.bytes > 0
    }

    /// Metrics that count its work; each has alternatives in order of preference.
    pub fn metrics(&self) -> &'static [&'static [Metric]] {
        match (self.counts_memory(), &*self.precision) {
            // Reads and writes have their own codes.
            (true, _) => &[
                &[("MEM", "mem_bw")],
                &[("MEM", "mem_read_bw")],
                &[("MEM", "mem_write_bw")],
            ],
            (false, "single") => &[&[("FLOPS_SP", "sp_flops"), ("FLOPS", "flops")]],
            (false, _) => &[&[("FLOPS_DP", "dp_flops"), ("FLOPS", "flops")]],
        }
    }

    /// Scope of its rows in `perf_metric`.
    pub fn scope(&self) -> &'static str {
        if self.counts_memory() {
            "node"
        } else {
            "target"
        }
    }

    /// Known work of a number of iterations for a metric.
    pub fn known(&self, metric: &str, iterations: u64) -> Known {
        let of_all = |number: u64| number as f64 * iterations as f64;
        if !self.counts_memory() {
            return Known::flops(of_all(self.flops));
        }
        let (least, most) = (of_all(self.bytes), of_all(self.bytes_with_allocate));
        // The triad writes one of three arrays.
        let written = least / 3.0;
        match metric {
            "mem_read_bw" => Known::bytes(least - written, most - written),
            "mem_write_bw" => Known::bytes(written, written),
            _ => Known::bytes(least, most),
        }
    }
}

/// The first CPU of the affinity mask.
fn first_cpu() -> Result<String> {
    let path = Path::new("/proc/self/status");
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    first_allowed(&text).context("/proc/self/status has no list of CPUs: select one with --cpu")
}

fn first_allowed(status: &str) -> Option<String> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let first: String = list
        .trim()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    (!first.is_empty()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_metrics() {
        let kernel = Kernel::parse("avx-sp\tsingle\t128\t0\t0").expect("a line");
        assert_eq!(kernel.scope(), "target");
        assert_eq!(
            kernel.metrics(),
            [[("FLOPS_SP", "sp_flops"), ("FLOPS", "flops")]]
        );
        assert_eq!(kernel.known("sp_flops", 10), Known::flops(1280.0));
        assert_eq!(Kernel::parse("avx-sp\tsingle\t128\t0"), None);
        assert_eq!(Kernel::parse("avx-sp\tsingle\tmany\t0\t0"), None);
    }

    #[test]
    fn a_triad_reads_two_thirds() {
        let triad = Kernel::parse("triad\tdouble\t20\t240\t320").expect("a line");
        assert_eq!(triad.scope(), "node");
        assert_eq!(triad.known("mem_bw", 2), Known::bytes(480.0, 640.0));
        assert_eq!(triad.known("mem_read_bw", 2), Known::bytes(320.0, 480.0));
        assert_eq!(triad.known("mem_write_bw", 2), Known::bytes(160.0, 160.0));
    }

    #[test]
    fn start_of_the_program_does_not_affect_iterations() {
        let machine = |each: u64| {
            iterations_per_second(move |iterations| {
                Ok(Duration::from_millis(300) + Duration::from_nanos(each * iterations))
            })
        };
        assert_eq!(machine(4).expect("measured"), 250_000_000);
        assert_eq!(machine(60_000_000).expect("measured"), 16);
        assert_eq!(machine(5_000_000_000).expect("measured"), 1);
        assert!(machine(0).is_err());
    }

    #[test]
    fn first_cpu_of_a_list() {
        let first = |list: &str| first_allowed(&format!("Name:\tx\nCpus_allowed_list:\t{list}\n"));
        assert_eq!(first("2-7,9").as_deref(), Some("2"));
        assert_eq!(first("12").as_deref(), Some("12"));
        assert_eq!(first_allowed("Name:\tx\n"), None);
    }
}
