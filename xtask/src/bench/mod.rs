//! `cargo xtask bench`: overhead of the profiler.

mod bpf_stats;
mod profiler_cost;
mod empty_program;
mod host;
pub mod load;
mod loaded;
mod overhead;
pub mod overhead_page;
mod peers;
mod plot;
mod programs;
mod rounds;
pub mod sleepers;
mod statistics;
pub mod tools;
mod tracer;
mod workload_shell;
mod workloads;

use anyhow::Result;
use clap::Subcommand;

pub use self::overhead::check_cost;
use crate::workspace::Workspace;

/// `cargo xtask bench`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Slowdown of workloads, run time of BPF programs, CPU time and memory of the profiler
    Overhead(overhead::Args),
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.benchmark {
        Benchmark::Overhead(args) => overhead::run(workspace, args),
    }
}
