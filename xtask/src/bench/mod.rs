//! `cargo xtask bench`: what the profiler costs.

mod attached;
mod compare;
mod controller;
mod empty;
mod figures;
mod host;
pub mod load;
mod loaded;
mod measuring;
mod overhead;
pub mod page;
mod pairs;
mod parent;
mod programs;
pub mod sleepers;
pub mod tools;
mod workloads;

use anyhow::Result;
use clap::Subcommand;

use crate::workspace::Workspace;

/// `cargo xtask bench`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Slowdown of the target, time per BPF program run, CPU and memory of the controller
    Overhead(overhead::Args),
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.what {
        What::Overhead(args) => overhead::run(workspace, args),
    }
}
